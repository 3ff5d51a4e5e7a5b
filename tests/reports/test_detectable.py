"""The smallest difference and p-value that seeds and examples allow: against SciPy and a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, permutation_test, t

from meltpoint.reports.statistics.sample_sizes import (
    least_difference,
    least_examples,
    seeds_for,
    smallest_difference,
    smallest_p,
)


@pytest.mark.parametrize("pairs", [2, 3, 5, 6])
def test_the_smallest_p_is_that_of_scipys_exact_sign_flip_test_where_all_differences_have_one_sign(pairs: int):
    differences = np.linspace(1.0, 2.0, pairs)
    tested = permutation_test((differences,), lambda d, axis: np.mean(d, axis=axis), permutation_type="samples")
    assert smallest_p(pairs) == pytest.approx(tested.pvalue)


def test_one_seed_shows_nothing():
    assert smallest_p(1) == 1.0
    assert smallest_difference(1, 10**6) is None


def share_found(seeds: int, examples: int, difference: float, deviation: float, disagreement: float) -> float:
    """The share of simulated pairs of cells that are told apart: 4,000 pairs of `seeds` runs.

    Both cells are scored on the same examples, on some of which one or the other is right whatever the seed, and each
    run has a deviation of its own. The test knows neither: both variances are estimated from the runs.
    """
    draw, repeats = np.random.default_rng(0), 4000
    chances = [(disagreement + difference) / 2, (disagreement - difference) / 2, 1 - disagreement]
    better, worse, _ = draw.multinomial(examples, chances, size=repeats).T
    over_examples = (better - worse) / examples
    runs = draw.normal(0.0, deviation, (2, repeats, seeds))
    differences = over_examples + runs[0].mean(axis=1) - runs[1].mean(axis=1)
    freedom = 4 + seeds - 1  # a moderated variance of each cell, whose prior is right
    variances = (4 * deviation**2 + (seeds - 1) * runs.var(axis=2, ddof=1)) / freedom
    from_seeds = t.ppf(0.975, 2 * freedom) * np.sqrt(variances.sum(axis=0) / seeds)
    spread = (better + worse) / examples - over_examples**2
    from_examples = norm.ppf(0.975) * np.sqrt(spread / examples)
    return float(np.mean(np.abs(differences) > np.hypot(from_seeds, from_examples)))


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("examples", "deviation"), [(408, 0.01), (1821, 0.01), (9815, 0.01), (1821, 0.02)])
def test_about_four_of_five_differences_of_that_size_are_found_and_one_of_twenty_where_there_is_none(
    seeds: int, examples: int, deviation: float
):
    smallest = smallest_difference(seeds, examples, deviation)
    assert smallest is not None
    assert 0.74 < share_found(seeds, examples, smallest, deviation, 0.1) < 0.92
    assert share_found(seeds, examples, 0.0, deviation, 0.1) < 0.06


@given(st.integers(2, 60), st.integers(50, 50_000))
def test_more_seeds_and_more_examples_show_smaller_differences_down_to_what_examples_allow(seeds: int, examples: int):
    here = smallest_difference(seeds, examples)
    more_seeds, more_examples = smallest_difference(seeds + 1, examples), smallest_difference(seeds, examples + 50)
    assert None not in (here, more_seeds, more_examples)
    assert here > more_seeds > least_difference(examples)
    assert here > more_examples


@pytest.mark.parametrize(("difference", "examples"), [(0.02, 9815), (0.05, 872), (0.03, 1821)])
def test_the_seeds_for_a_difference_are_the_fewest_that_show_it(difference: float, examples: int):
    seeds = seeds_for(difference, examples)
    assert seeds is not None
    fewer = smallest_difference(seeds - 1, examples)  # None of one seed, which shows nothing
    assert smallest_difference(seeds, examples) <= difference < (fewer or 1.0)


def test_where_examples_are_too_few_no_number_of_seeds_helps():
    needed = least_examples(0.02)
    assert seeds_for(0.02, needed - 1) is None
    assert least_difference(needed) <= 0.02 < least_difference(needed - 1)
