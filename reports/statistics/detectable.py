"""The smallest p-value and the smallest difference that numbers of seeds and of test examples can show."""

from __future__ import annotations

import math

from meltpoint.reports.statistics.seed_variance import MOST_FREEDOM

ALPHA, POWER = 0.05, 0.80
"""Two-sided level, and the share of true differences of that size that are found; the customary values."""

SEED_DEVIATION = 0.01
"""Assumed standard deviation of a score over seeds: a point, about what fine-tuning shows on small tasks."""

DISAGREEMENT = 0.10
"""Assumed share of examples on which exactly one of two cells is right; independent errors at 85 % would be 25 %."""

MOST_SEEDS = 100


def smallest_p(seeds: int) -> float:
    """The smallest p-value of an exact two-sided sign-flip test on so many pairs: all differences have one sign."""
    return min(1.0, 2.0 ** (1 - seeds))


def smallest_difference(
    seeds: int, examples: int, deviation: float = SEED_DEVIATION, disagreement: float = DISAGREEMENT
) -> float | None:
    """The true difference in accuracy that a comparison of two cells finds with a probability of about `POWER`.

    Two-sided at `ALPHA`, before any adjustment for several comparisons. The part of the seeds has Student's quantiles,
    with the degrees of freedom of two moderated variances, the part of the examples normal ones; their squares add up.

    Args:
        seeds: runs of each cell.
        examples: independent examples of the split.
        deviation: standard deviation of a score over seeds.
        disagreement: share of examples on which exactly one of the cells is right.

    Returns:
        A fraction; None for fewer than two seeds.
    """
    if seeds < 2:
        return None
    from scipy.stats import t  # takes a second to import

    freedom = 2 * (MOST_FREEDOM + seeds - 1)
    over_seeds = float(t.ppf(1 - ALPHA / 2, freedom) + t.ppf(POWER, freedom)) * deviation * math.sqrt(2 / seeds)
    return math.hypot(over_seeds, least_difference(examples, disagreement))


def least_difference(examples: int, disagreement: float = DISAGREEMENT) -> float:
    """The smallest difference that examples allow with any number of seeds."""
    return _normal_quantiles() * math.sqrt(disagreement / examples)


def least_examples(difference: float, disagreement: float = DISAGREEMENT) -> int:
    """The number of examples below which no number of seeds shows a difference."""
    return math.ceil(disagreement * (_normal_quantiles() / difference) ** 2)


def _normal_quantiles() -> float:
    from scipy.stats import norm

    return float(norm.ppf(1 - ALPHA / 2) + norm.ppf(POWER))


def seeds_for(difference: float, examples: int) -> int | None:
    """The smallest number of seeds that finds a true difference; None if even `MOST_SEEDS` do not."""
    for seeds in range(2, MOST_SEEDS + 1):
        smallest = smallest_difference(seeds, examples)
        if smallest is not None and smallest <= difference:
            return seeds
    return None
