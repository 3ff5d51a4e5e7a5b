"""Seeds: the variance of a cell's score over them, and how many of them, and of examples, a claim needs.

The variance comes from a cell's own few runs and from the other cells of its sweep.

Two runs say next to nothing about their variance: one degree of freedom, a factor of 12.7 in a 95 % interval. But the
cells of a sweep have variances of one order, so each cell's is drawn towards the common one (Smyth 2004, "Linear models
and empirical Bayes methods", section 4: the moderated t of limma). With s² of n runs, a prior s₀² of d₀ degrees of
freedom gives

    (d₀ s₀² + (n − 1) s²) / (d₀ + n − 1),   of d₀ + n − 1 degrees of freedom.

- **s₀²** is the mean of the cells' s², each weighted by its degrees of freedom, together with `RECORDED` (standard
  deviation 1.5 points, `RECORDED_FREEDOM`), which carries a sweep of two cells and has little weight among thirty. The
  arithmetic mean is larger than Smyth's estimate, which goes by logarithms: if the variances differ, it errs on the
  safe side.
- **d₀** is Smyth's estimate from the spread of log s² (his section 6.2), at most `MOST_FREEDOM` and at least
  `LEAST_FREEDOM`; from fewer than `ENOUGH_CELLS` cells it is `MOST_FREEDOM`. Four degrees of freedom stand for
  variances whose logarithms have a standard deviation of 0.8, as those of modes and tasks have.

**Failed runs come first.** A fine-tuning run that ends at chance is not a draw from the others' distribution. A cell
whose runs spread over more than `FAILED_SPREAD` has a failed run. It is never pooled: it keeps its own s² with n − 1
degrees of freedom, and lends nothing to the prior. The share q of failed runs in the sweep has a second use: all n runs
of a cell fail with a probability of qⁿ, and these runs alone cannot reveal it. So a claim that a cell is the worse one
has at least this p.

Only scores between 0 and 1 (those that are shown × 100) are pooled: errors have units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meltpoint.tasks.core.metrics import Floats
from meltpoint.tasks.core.scoring import in_points

RECORDED = 0.015**2
"""The variance over seeds of recorded finals: in the tables of docs/results and of the demo (261 cells, failed runs
left out) the root mean square of the deviations is 1.4 points, their median 0.8."""
RECORDED_FREEDOM = 4.0
MOST_FREEDOM, LEAST_FREEDOM = 4.0, 1.0
ENOUGH_CELLS = 6
FAILED_SPREAD = 0.08
"""Best minus worst run of a cell, as a fraction, above which a run has failed: eight points."""


@dataclass(frozen=True)
class SeedVariance:
    """A variance over seeds, and its degrees of freedom."""

    value: float
    freedom: float


NO_VARIANCE = SeedVariance(0.0, math.inf)
"""Of a mode in which nothing is random."""


@dataclass(frozen=True)
class Prior:
    """The distribution of variances of one sweep.

    Attributes:
        value: s₀².
        freedom: d₀.
        failed_share: q, the share of runs that failed.
    """

    value: float = RECORDED
    freedom: float = MOST_FREEDOM
    failed_share: float = 0.0

    def moderated(self, scores: Floats, metric: str) -> SeedVariance:
        """The variance of a cell's runs; not pooled for a cell with a failed run, nor for an error.

        Args:
            scores: (seeds,), two or more; or one, if pooling is possible.
        """
        own_freedom = len(scores) - 1
        own = float(scores.var(ddof=1)) if own_freedom else 0.0
        if not in_points(metric) or failed(scores).any():
            return SeedVariance(own, own_freedom)
        freedom = self.freedom + own_freedom
        return SeedVariance((self.freedom * self.value + own_freedom * own) / freedom, freedom)

    def all_failed(self, runs: int) -> float:
        """The probability that a number of runs all failed."""
        return float(self.failed_share**runs)


def failed(scores: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """The runs that failed: those that are more than `FAILED_SPREAD` below the best of their cell.

    Args:
        scores: of runs of one cell, of a metric whose higher scores are better, (seeds,).
    """
    below: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = scores.max() - scores > FAILED_SPREAD
    return below


def prior_of(cells: Sequence[Floats]) -> Prior:
    """The prior of a sweep.

    Args:
        cells: the scores of each cell's runs, (seeds,) each, of metrics between 0 and 1.
    """
    runs = sum(map(len, cells))
    share = sum(int(failed(scores).sum()) for scores in cells) / runs if runs else 0.0
    sound = [scores for scores in cells if len(scores) > 1 and not failed(scores).any()]
    freedoms = np.array([len(scores) - 1 for scores in sound], dtype=np.float64)
    variances = np.array([scores.var(ddof=1) for scores in sound], dtype=np.float64)
    total = RECORDED_FREEDOM * RECORDED + float(freedoms @ variances)
    return Prior(total / (RECORDED_FREEDOM + float(freedoms.sum())), prior_freedom(variances, freedoms), share)


def prior_freedom(variances: Floats, freedoms: Floats) -> float:
    """d₀ by the method of moments (Smyth 2004, section 6.2), within its limits."""
    known = variances > 0  # runs that agree to the last example say nothing about the spread of log s²
    if known.sum() < ENOUGH_CELLS:
        return MOST_FREEDOM
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma  # takes a second to import

    half = freedoms[known] / 2
    logs = np.log(variances[known]) - digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - polygamma(1, half).mean())  # trigamma(d₀ / 2)
    if excess <= float(polygamma(1, MOST_FREEDOM / 2)):
        return MOST_FREEDOM
    half_freedom = brentq(lambda half: float(polygamma(1, half)) - excess, 1e-3, 1e3)  # trigamma's inverse
    return max(LEAST_FREEDOM, 2 * float(half_freedom))


def welch(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The standard error and the degrees of freedom of a sum of independent variances (Welch 1947).

    Args:
        parts: (variance of the mean, its degrees of freedom) of each side.
    """
    variance = sum(value for value, _ in parts)
    if variance == 0:
        return 0.0, min(freedom for _, freedom in parts)
    return math.sqrt(variance), variance**2 / sum(value**2 / freedom for value, freedom in parts if value > 0)


MOST_SEEDS = 1000
MOST_EXAMPLES = 10**8


@dataclass(frozen=True)
class Needs:
    """The sizes with which a difference as large as the one observed would be claimed.

    Attributes:
        seeds: with the present examples; None if more than `MOST_SEEDS`, or if no number is enough.
        examples: with `with_seeds` seeds; None if `seeds` is enough, or if there is no difference.
        with_seeds: the present seeds, or more if the seed part alone is too wide for any number of examples.
    """

    seeds: int | None = None
    examples: int | None = None
    with_seeds: int | None = None


@dataclass(frozen=True)
class Design:
    """An observed difference, and the two parts of its variance.

    Attributes:
        delta: the difference.
        seed_variance: variance of the seed part with one seed per cell.
        example_variance: variance of the example part.
        seeds, examples: n and N.
        freedom: degrees of freedom of the seed part; each further seed adds two, one per cell.
    """

    delta: float
    seed_variance: float
    example_variance: float
    seeds: int
    examples: int
    freedom: float

    def p(self, seeds: Floats, examples: Floats) -> Floats:
        """The p-values of this difference with other sizes, by Welch's t; the example part has infinite freedom.

        Args:
            seeds, examples: sizes; one of them may be a single number.
        """
        from scipy.special import stdtr  # takes a second to import

        of_seeds = self.seed_variance / seeds
        variance = of_seeds + self.example_variance * self.examples / examples
        with np.errstate(divide="ignore", invalid="ignore"):
            own = self.freedom + 2 * (seeds - self.seeds)
            freedom = np.where(of_seeds > 0, own * (variance / of_seeds) ** 2, 1e9)
            distance = np.where(variance > 0, abs(self.delta) / np.sqrt(variance), np.inf)
        p: Floats = 2 * stdtr(freedom, -distance)
        return p

    def needs(self, alpha: float, from_seeds: int = 2) -> Needs:
        """The sizes with which the difference would be claimed.

        Args:
            alpha: the level, divided by the factor of the table's adjustment.
            from_seeds: the smallest number of seeds to consider.
        """
        if self.delta == 0:
            return Needs()
        most = MOST_SEEDS if self.seed_variance > 0 else from_seeds - 1
        numbers = np.arange(from_seeds, most + 1, dtype=np.float64)
        enough = self._first(numbers, self.p(numbers, np.array(float(self.examples))), alpha)
        if enough is not None:
            return Needs(seeds=enough)
        # As many seeds as leave half of the variance to the examples.
        numbers = np.arange(self.seeds, MOST_SEEDS + 1, dtype=np.float64)
        alone = replace(self, seed_variance=2 * self.seed_variance)
        seeds = self._first(numbers, alone.p(numbers, np.array(np.inf)), alpha)
        if seeds is None:
            return Needs()
        sizes = np.geomspace(self.examples, MOST_EXAMPLES, 2000)
        more = self._first(sizes, self.p(np.array(float(seeds)), sizes), alpha)
        return Needs(examples=more, with_seeds=seeds)

    @staticmethod
    def _first(numbers: Floats, p_values: Floats, alpha: float) -> int | None:
        claimed = np.flatnonzero(p_values < alpha)
        return int(numbers[claimed[0]]) if len(claimed) else None


def rounded_up(number: int) -> int:
    """A number rounded up to two significant digits: it follows from a variance that is itself a rough figure."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step
