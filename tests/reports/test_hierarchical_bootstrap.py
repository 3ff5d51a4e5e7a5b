"""The interval and p-value of a difference, Holm's adjustment, and the sizes that would do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from meltpoint.reports.statistics.comparison import sign_flip
from meltpoint.reports.statistics.hierarchical_bootstrap import Replicates, estimate, parts, probability_better
from meltpoint.reports.statistics.holm import holm
from meltpoint.reports.statistics.sample_sizes import Design


def crossed(seed: int, seeds: int, examples: int, resamples: int = 400, effect: float = 0.0, seed_spread: float = 0.02):
    """Mean-like scores of two cells: values of examples plus a seed's own shift, and their paired resamples."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(2, examples, 1)) * 0.5 + draw.normal(size=(2, examples, seeds))
    values += draw.normal(size=(2, 1, seeds)) * seed_spread
    values[0] += effect
    drawn = draw.integers(0, examples, (resamples, examples))
    scores = [side.mean(axis=0) for side in values]
    again = [np.stack([side[row].mean(axis=0) for row in drawn]) for side in values]
    return scores[0], scores[1], again[0], again[1], examples


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), seeds=st.integers(2, 6), effect=st.floats(0.0, 1.0))
def test_the_interval_leaves_0_out_exactly_where_p_is_below_5_percent(seed, seeds, effect):
    found = estimate(*crossed(seed, seeds, 40, 100, effect))
    assert (not found.low <= 0 <= found.high) == (found.p < 0.05)
    assert found.low < found.delta < found.high
    assert 0 < found.p <= 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_exchanging_the_cells_turns_the_interval_round_and_keeps_p(seed):
    upper, lower, upper_again, lower_again, size = crossed(seed, 4, 40, 100, 0.3)
    one = estimate(upper, lower, upper_again, lower_again, size)
    other = estimate(lower, upper, lower_again, upper_again, size)
    assert (one.low, one.high, one.p) == pytest.approx((-other.high, -other.low, other.p), abs=1e-7)
    assert one.probability_better == pytest.approx(1 - other.probability_better)


def test_without_an_example_part_the_interval_is_students():
    differences = np.array([0.01, 0.03, 0.02, 0.05])
    found = parts(differences, np.tile(differences, (50, 1)), 100)
    assert not found.deviations.any()
    expected = stats.ttest_1samp(differences, 0.0)
    assert found.p() == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()), abs=1e-7)


def test_seeds_that_agree_by_accident_prove_no_more_than_the_examples_allow():
    draw = np.random.default_rng(0)
    resampled = 0.004 + draw.normal(scale=0.01, size=(2000, 3))
    found = parts(np.full(3, 0.004), resampled, 400)
    assert found.scale == 0
    assert found.least_scale == pytest.approx(0.01 / np.sqrt(3), rel=0.1)
    assert found.p() == pytest.approx(2 * stats.norm.sf(0.004 / (0.01 / np.sqrt(3))), abs=0.03)


def test_the_interaction_is_counted_once():
    draw = np.random.default_rng(1)
    example, own = draw.normal(scale=0.03, size=(20_000, 1)), draw.normal(scale=0.05, size=(20_000, 4))
    found = parts(np.zeros(4), example + own, 10_000)
    assert found.deviations.std() == pytest.approx(0.03, rel=0.05), "not sqrt(0.03² + 0.05² / 4)"
    assert found.least_scale == pytest.approx(0.05 / 2, rel=0.05)


def test_seeds_that_agree_on_every_resample_leave_the_percentiles_of_the_examples():
    example = np.linspace(-0.02, 0.02, 999)
    found = Replicates(0.01, 0.0, 0.0, 4, example)
    assert found.interval() == pytest.approx((0.01 + example[24 - 1], 0.01 + example[-24]))
    assert Replicates(1.0, 0.0, 0.0, 4, example).p() == pytest.approx(2 / 1000)
    assert Replicates(0.0, 0.0, 0.0, 4, np.zeros(9)).p() == 1.0
    assert Replicates(0.0, 0.0, 0.0, 4, np.zeros(9)).interval() == (0.0, 0.0)


def test_p_falls_below_what_a_count_of_replicates_could_say():
    deviations = np.random.default_rng(0).normal(scale=0.001, size=1000)
    assert 0 < Replicates(0.5, 0.001, 0.0, 9, deviations).p() < 1e-9


def test_a_better_run_is_counted_over_all_pairs_of_seeds_and_ties_by_half():
    upper, lower = np.array([[3.0, 1.0]]), np.array([[1.0, 2.0]])
    assert probability_better(upper, lower) == (1 + 1 + 0.5 + 0) / 4


def closed_testing(p_values: list[float]) -> list[float]:
    """By brute force: the largest Bonferroni p-value of all sets of hypotheses that hold this one."""
    places = range(len(p_values))
    sets = [chosen for size in places for chosen in itertools.combinations(places, size + 1)]
    bonferroni = {chosen: min(1.0, len(chosen) * min(p_values[place] for place in chosen)) for chosen in sets}
    return [max(p for chosen, p in bonferroni.items() if place in chosen) for place in places]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holms_adjustment_is_closed_testing_with_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(closed_testing(p_values))


def test_no_comparisons_need_no_adjustment():
    assert holm([]) == []


@pytest.mark.parametrize(("pairs", "lowest"), [(2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125), (10, 2 / 1024)])
def test_an_exact_sign_flip_test_cannot_go_below_its_number_of_assignments(pairs, lowest):
    assert sign_flip([0.02 + 0.001 * place for place in range(pairs)]) == pytest.approx(lowest)


def test_a_sign_flip_test_of_one_pair_says_nothing():
    assert sign_flip([0.1]) is None


def test_a_sign_flip_test_of_many_pairs_draws_its_assignments():
    assert sign_flip([0.01] * 30) == pytest.approx(0.0, abs=0.001)


def test_seeds_help_where_they_vary_and_examples_where_those_do():
    seedy = Design(0.02, 0.03**2, 0.001**2, seeds=5, examples=1000)
    needs = seedy.needs(0.05, 6)
    assert needs.seeds is not None
    enough, fewer = (seedy.p(np.array(float(n)), np.array(1000.0)) for n in (needs.seeds, needs.seeds - 1))
    assert enough < 0.05 <= fewer
    few_examples = Design(0.02, 0.001**2, 0.02**2, seeds=5, examples=400).needs(0.05, 6)
    assert few_examples.seeds is None
    assert few_examples.examples == pytest.approx(400 * 1.96**2, rel=0.02)
    assert few_examples.with_seeds == 5


def test_where_both_parts_are_too_wide_more_of_both_are_named():
    needs = Design(0.01, 0.05**2, 0.01**2, seeds=3, examples=400).needs(0.05, 4)
    assert needs.seeds is None
    assert needs.with_seeds is not None
    assert needs.with_seeds > 3
    assert needs.examples is not None
    assert needs.examples > 400


def test_no_size_tells_apart_what_does_not_differ():
    needs = Design(0.0, 0.01**2, 0.01**2, seeds=5, examples=400).needs(0.05)
    assert (needs.seeds, needs.examples) == (None, None)
