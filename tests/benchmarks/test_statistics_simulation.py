"""The simulations behind `docs/statistics.md`, smaller: false claims, power, and coverage, within simulation error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meltpoint.benchmarks.simulated_finals import KINDS, Finals
from meltpoint.benchmarks.statistics_simulation import (
    PARTS,
    coverage,
    error,
    false_claims,
    power,
    sides,
    true_difference,
)

NOTHING = (0.85, 0.85, 0.85)


@pytest.mark.parametrize("metric", KINDS)
def test_the_simulated_modes_reach_their_levels(metric):
    found = sides(Finals(metric, 4000, 3, (0.9, 0.8), seed_spread=0.0), np.random.default_rng(0), 1)
    first, second = (float(side.observed.mean()) for side in found)
    if metric in ("accuracy", "pearson"):
        assert (first, second) == (pytest.approx(0.9, abs=0.02), pytest.approx(0.8, abs=0.02))
    assert first > second


def test_modes_of_the_same_level_do_not_differ_and_others_do():
    assert true_difference(Finals("f1", 100, 3, (0.8, 0.8))) == 0
    assert true_difference(Finals("accuracy", 100, 3, (0.9, 0.8), seed_spread=0.0)) == pytest.approx(0.1, abs=0.003)
    assert true_difference(Finals("accuracy", 100, 3, (0.9, 0.8))) == pytest.approx(0.1, abs=0.003)


def test_runs_of_one_mode_agree_on_examples_no_more_than_runs_of_two_where_it_is_the_same():
    same = Finals("accuracy", 5000, 1, (0.8, 0.8), same_mode=True)
    for finals, least in ((same, 0.26), (Finals("accuracy", 5000, 1, (0.8, 0.8)), 0.15)):
        first, second = (runs[0].gold == runs[0].predicted for runs in finals.draw(np.random.default_rng(0)))
        assert np.corrcoef(first, second)[0, 1] > least
    other = [runs[0].gold == runs[0].predicted for runs in same.draw(np.random.default_rng(0))]
    assert np.corrcoef(*other)[0, 1] < 0.6


@pytest.mark.parametrize("part", PARTS)
def test_the_tables_are_markdown_with_as_many_columns_in_each_row(part, monkeypatch):
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.SEEDS", (3,))
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.KINDS", ("accuracy",))
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.EXAMPLES", 40)
    monkeypatch.setattr("meltpoint.benchmarks.statistics_simulation.MORE_EXAMPLES", 60)
    lines = list(PARTS[part](2, 50))
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) >= 3


def test_few_small_tables_claim_a_difference_of_nothing():
    """At most 5 % within simulation error: of 40 tables, 1.96 standard errors are 6.8 %."""
    share = false_claims(Finals("", 100, 5, NOTHING[:2], same_mode=True), 40, 200)
    assert share <= 0.05 + error(0.05, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("same_mode", [True, False])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_at_most_5_percent_of_tables_of_no_difference_claim_one_after_holm(seeds, same_mode):
    tables = 300
    share = false_claims(Finals("", 400, seeds, NOTHING, same_mode), tables, 1000, seed=50 + seeds)
    assert share <= 0.05 + error(0.05, tables)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("metric", KINDS)
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_interval_holds_the_true_difference_in_95_percent_or_more(metric, seeds):
    repetitions = 150 if metric == "spearman" else 300
    found = coverage(Finals(metric, 400, seeds, (0.87, 0.85)), repetitions, 500, seed=50 + seeds)
    assert found.ours >= 0.95 - error(0.95, repetitions)
    assert found.ours > found.examples_only, "which takes the seeds as they are"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_where_seeds_vary_most_the_plain_bootstrap_falls_short_and_this_one_does_not():
    found = coverage(Finals("accuracy", 1000, 3, (0.87, 0.85), seed_spread=0.4), 400, 500)
    assert found.ours >= 0.95 - error(0.95, 400)
    assert found.hierarchical < 0.9


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_more_seeds_find_a_difference_of_two_points_more_often():
    found = [power(Finals("", 2000, n, (0.87, 0.85, 0.85), seed_spread=0.03), 15, 1000) for n in (3, 5, 10)]
    alone, among = zip(*found, strict=True)
    assert list(alone) == sorted(alone)
    assert list(among) == sorted(among)
    assert alone[-1] > 0.8
    assert among[-1] > among[0]
    assert not math.isnan(sum(alone))
