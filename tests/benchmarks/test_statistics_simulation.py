"""The simulations behind `docs/statistics.md`, smaller: false claims, power, and coverage, within simulation error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meltpoint.benchmarks.statistics_simulation import (
    FAILED_LEVEL,
    LEVEL,
    MARGIN,
    PARTS,
    REGIMES,
    Design,
    claims,
    draw_task,
    error,
    level_claims,
    power,
)


def test_the_simulated_runs_reach_their_levels_and_one_in_twenty_fails():
    draw = np.random.default_rng(0)
    runs = draw_task(Design(20_000, 40, lead=0.05, failing=0.05), draw, 2).observed
    sound = np.where(runs > (LEVEL + FAILED_LEVEL) / 2, runs, np.nan)
    assert np.nanmean(sound, axis=1) == pytest.approx([LEVEL, LEVEL, LEVEL + 0.05], abs=0.01)
    assert 0.01 < np.isnan(sound).mean() < 0.1
    assert np.nanstd(sound, axis=1) == pytest.approx(0.008, abs=0.004)


@pytest.mark.parametrize("part", PARTS)
def test_the_tables_have_as_many_columns_in_each_row(part, monkeypatch):
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.SEEDS", (1, 2))
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.TASKS", (1,))
    rows = list(PARTS[part](1, 40))
    assert len({len(row) for row in rows}) == 1
    assert len(rows) >= 2


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_small_tables_claim_a_difference_of_nothing(seeds):
    """At most 5 % within simulation error: of 40 tables, 1.96 standard errors are 6.8 %."""
    assert claims(Design(200, seeds), 40, 200)[0] <= 0.05 + error(0.05, 40)


def test_fifteen_points_on_500_examples_are_claimed_with_two_seeds():
    assert power(Design(500, 2, lead=0.15), 20, 200) >= 0.95


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("tasks", [1, 4, 12])
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_at_most_5_percent_of_tables_of_no_difference_claim_one_and_intervals_cover(seeds, tasks, regime):
    tables = 200
    wrong, covered = claims(replace(Design(500, seeds, tasks), **REGIMES[regime]), tables, 500, seed=50 + seeds)
    assert wrong <= 0.05 + error(0.05, tables)
    assert covered >= 0.95 - error(0.95, tables)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_at_most_5_percent_of_modes_that_are_behind_by_the_margin_are_called_level(seeds):
    assert level_claims(Design(2000, seeds, lead=MARGIN), 300, 500) <= 0.05 + error(0.05, 300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("lead", "examples", "least"), [(0.15, 500, 0.95), (0.05, 2000, 0.8)])
def test_two_seeds_find_what_a_first_answer_needs(lead, examples, least):
    assert power(Design(examples, 2, lead=lead), 200, 500) >= least
