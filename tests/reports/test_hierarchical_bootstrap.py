"""The interval and p-value of a difference, Holm's adjustment, and the sizes that would do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from meltpoint.reports.statistics.comparison import holm
from meltpoint.reports.statistics.hierarchical_bootstrap import (
    Replicates,
    Side,
    of_models,
    probability_better,
    unpaired,
)
from meltpoint.reports.statistics.seeds import (
    LEAST_FREEDOM,
    MOST_FREEDOM,
    NO_VARIANCE,
    RECORDED,
    Design,
    Prior,
    SeedVariance,
    failed,
    prior_freedom,
    prior_of,
    welch,
)


def crossed(seed: int, seeds: int, examples: int, resamples: int = 400, effect: float = 0.0, seed_spread: float = 0.02):
    """Mean-like scores of two cells: values of examples plus a seed's own shift, and their paired resamples."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(2, examples, 1)) * 0.5 + draw.normal(size=(2, examples, seeds))
    values += draw.normal(size=(2, 1, seeds)) * seed_spread
    values[0] += effect
    drawn = draw.integers(0, examples, (resamples, examples))
    scores = [side.mean(axis=0) for side in values]
    again = [np.stack([side[row].mean(axis=0) for row in drawn]) for side in values]
    prior = Prior(seed_spread**2)
    sides = [Side(own, many, prior.moderated(own, "accuracy")) for own, many in zip(scores, again, strict=True)]
    return sides[0], sides[1], examples


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), seeds=st.integers(2, 6), effect=st.floats(0.0, 1.0))
def test_the_interval_leaves_0_out_exactly_where_p_is_below_5_percent(seed, seeds, effect):
    found = unpaired(*crossed(seed, seeds, 40, 100, effect))
    low, high = found.interval()
    assert (not low <= 0 <= high) == (found.p() < 0.05)
    assert low < found.centre < high
    assert 0 < found.p() <= 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_exchanging_the_cells_turns_the_interval_round_and_keeps_p(seed):
    upper, lower, size = crossed(seed, 4, 40, 100, 0.3)
    one, other = unpaired(upper, lower, size), unpaired(lower, upper, size)
    assert one.interval() == pytest.approx(tuple(-end for end in other.interval()[::-1]), abs=1e-7)
    assert one.p() == pytest.approx(other.p(), abs=1e-7)
    ahead = probability_better(upper.resampled, lower.resampled)
    assert ahead == pytest.approx(1 - probability_better(lower.resampled, upper.resampled))


def against_nothing(observed, resampled, examples):
    """The runs of a cell against runs that score 0 on every resample."""
    seeds = len(observed)
    zeros = Side(np.zeros(seeds), np.zeros_like(resampled), SeedVariance(0.0, seeds - 1))
    return unpaired(Side(observed, resampled, SeedVariance(float(observed.var(ddof=1)), seeds - 1)), zeros, examples)


def test_seeds_that_agree_by_accident_prove_no_more_than_the_examples_allow():
    draw = np.random.default_rng(0)
    resampled = 0.004 + draw.normal(scale=0.01, size=(2000, 3))
    found = against_nothing(np.full(3, 0.004), resampled, 400)
    assert found.scale == 0
    assert found.least_scale == pytest.approx(0.01 / np.sqrt(3), rel=0.1)
    assert found.p() == pytest.approx(2 * stats.norm.sf(0.004 / (0.01 / np.sqrt(3))), abs=0.03)


def test_the_interaction_is_counted_once():
    draw = np.random.default_rng(1)
    example, own = draw.normal(scale=0.03, size=(20_000, 1)), draw.normal(scale=0.05, size=(20_000, 4))
    found = against_nothing(np.zeros(4), example + own, 10_000)
    assert found.deviations.std() == pytest.approx(0.03, rel=0.05), "not sqrt(0.03² + 0.05² / 4)"
    assert found.least_scale == pytest.approx(0.05 / 2, rel=0.05)


def test_seeds_that_agree_on_every_resample_leave_the_percentiles_of_the_examples():
    example = np.linspace(-0.02, 0.02, 999)
    found = Replicates(0.01, 0.0, 0.0, 4, example)
    assert found.interval() == pytest.approx((0.01 + example[24 - 1], 0.01 + example[-24]))
    assert Replicates(1.0, 0.0, 0.0, 4, example).p() == pytest.approx(2 / 1000)
    assert Replicates(0.0, 0.0, 0.0, 4, np.zeros(9)).p() == 1.0
    assert Replicates(0.0, 0.0, 0.0, 4, np.zeros(9)).interval() == (0.0, 0.0)


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


def test_seeds_help_where_they_vary_and_examples_where_those_do():
    seedy = Design(0.02, 0.03**2, 0.001**2, seeds=5, examples=1000, freedom=16)
    needs = seedy.needs(0.05, 6)
    assert needs.seeds is not None
    enough, fewer = (seedy.p(np.array(float(n)), np.array(1000.0)) for n in (needs.seeds, needs.seeds - 1))
    assert enough < 0.05 <= fewer
    few_examples = Design(0.02, 0.001**2, 0.02**2, seeds=5, examples=400, freedom=16).needs(0.05, 6)
    assert few_examples.seeds is None
    assert few_examples.examples == pytest.approx(400 * 1.96**2, rel=0.02)
    assert few_examples.with_seeds == 5
    both = Design(0.01, 0.05**2, 0.01**2, seeds=3, examples=400, freedom=12).needs(0.05, 4)
    assert both.seeds is None
    assert (both.with_seeds or 0) > 3
    assert (both.examples or 0) > 400
    nothing = Design(0.0, 0.01**2, 0.01**2, seeds=5, examples=400, freedom=16).needs(0.05)
    assert (nothing.seeds, nothing.examples) == (None, None), "no size tells apart what does not differ"


def test_without_an_example_part_two_cells_are_welchs_test():
    draw = np.random.default_rng(3)
    values = draw.normal(0.02, 0.01, 5), draw.normal(0.0, 0.03, 4)
    sides = [Side(own, np.tile(own, (50, 1)), SeedVariance(own.var(ddof=1), len(own) - 1)) for own in values]
    found = unpaired(sides[0], sides[1], 100)
    expected = stats.ttest_ind(*values, equal_var=False)
    assert found.p() == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()), abs=1e-7)


def test_a_side_without_chance_leaves_the_other_sides_t_test_against_its_score():
    draw = np.random.default_rng(4)
    values = draw.normal(0.02, 0.01, 5)
    ours = Side(values, np.tile(values, (50, 1)), SeedVariance(values.var(ddof=1), 4))
    exact = Side(np.zeros(1), np.zeros((50, 1)), NO_VARIANCE)
    expected = stats.ttest_1samp(values, 0.0)
    for found, sign in ((unpaired(ours, exact, 100), 1), (unpaired(exact, ours, 100), -1)):
        assert found.p() == pytest.approx(expected.pvalue)
        low, high = sorted(sign * bound for bound in expected.confidence_interval())
        assert found.interval() == pytest.approx((low, high), abs=1e-7)


def test_one_seed_tells_of_these_models_by_the_paired_bootstrap_over_examples():
    draw = np.random.default_rng(0)
    right = draw.random((2, 400)) < [[0.9], [0.7]]
    again = [right[:, draw.integers(0, 400, 400)].mean(axis=1) for _ in range(3000)]
    upper, lower = np.array(again).T
    found = of_models(right[0].mean(), right[1].mean(), upper, lower, 400)
    low, high = np.quantile(upper - lower, [0.025, 0.975])
    assert found.interval() == pytest.approx((low, high), abs=0.003)
    assert found.p() < 0.001


def test_variances_are_drawn_towards_the_prior_as_limma_does():
    """limma's squeezeVar: (d₀ s₀² + d s²) / (d₀ + d)."""
    scores = np.array([0.80, 0.83, 0.82])
    found = Prior(0.0004, 4.0).moderated(scores, "accuracy")
    assert found.freedom == 6
    assert found.value == pytest.approx((4 * 0.0004 + 2 * scores.var(ddof=1)) / 6)
    assert Prior(0.0004, 4.0).moderated(scores, "mse") == SeedVariance(float(scores.var(ddof=1)), 2)


def test_a_failed_run_is_found_first_and_never_pooled():
    cells = [np.array([0.90, 0.91]), np.array([0.92, 0.55]), np.array([0.85, 0.86])]
    assert failed(cells[1]).tolist() == [False, True]
    prior = prior_of(cells)
    assert prior.failed_share == 1 / 6
    assert prior.value == prior_of([cells[0], cells[2], np.array([0.9])]).value
    assert prior.moderated(cells[1], "accuracy").freedom == 1
    assert prior.all_failed(2) == pytest.approx(1 / 36)


def test_two_cells_rest_on_the_recorded_prior_and_thirty_on_their_own():
    draw = np.random.default_rng(0)
    few, many = (prior_of([draw.normal(0.8, 0.003, 2) for _ in range(count)]) for count in (2, 300))
    assert few.value == pytest.approx(RECORDED * 4 / 6, rel=0.1)
    assert many.value == pytest.approx(0.003**2, rel=0.5)


@pytest.mark.parametrize(("log_spread", "low", "high"), [(0.0, MOST_FREEDOM, MOST_FREEDOM), (1.5, LEAST_FREEDOM, 2.0)])
def test_the_priors_freedom_follows_how_much_variances_differ(log_spread, low, high):
    draw = np.random.default_rng(1)
    deviations = 0.01 * np.exp(draw.normal(scale=log_spread, size=400))
    variances = np.array([draw.normal(scale=one, size=5).var(ddof=1) for one in deviations])
    assert low <= prior_freedom(variances, np.full(400, 4.0)) <= high


def test_welchs_freedom_is_between_the_smaller_side_and_both_together():
    assert welch([(1.0, 5), (1.0, 5)]) == (pytest.approx(2**0.5), pytest.approx(10))
    assert welch([(1.0, 5), (0.0, 5)])[1] == pytest.approx(5)
