"""The interval and p-value of a difference over seeds and examples: a hierarchical paired bootstrap.

**The design.** The runs of two cells, n seeds of each, are scored on the same N test examples, so seeds and examples
are crossed. To first order the difference D of the cells' means has the variance

    Var D = σ²_A / n_A + σ²_B / n_B + σ²_examples / N,    where σ²_A = σ²_seed + σ²_interaction / N of a cell,

the model of multi-reader multi-case studies (Dorfman, Berbaum & Metz 1992; Obuchowski & Rockette 1995; Hillis 2007),
with seeds as readers. The seeds of two modes share nothing but their numbers, so they are not paired.

**Why not the plain bootstrap** (draw seeds, then examples, take percentiles). It is biased in both directions: the
spread of n drawn seeds is short of their variance by (n − 1) / n and uses no t quantile (with five seeds and nothing
else that varies, 84 % coverage), and the interaction is counted twice, once with the seeds and once with the examples
(Owen 2007, "The pigeonhole bootstrap").

**The replicates** are D* = D + seed part + example part.

- Seed part: t × sqrt(s²_A / n_A + s²_B / n_B). Each s² is a moderated variance (`seed_variance`), which estimates
  σ²_seed + σ²_interaction / N; t is Student's with Welch's degrees of freedom.
- Example part: the same resamples of the examples for both cells and every seed: the difference of the means on the
  resample, minus D. Its variance V estimates σ²_examples / N + the interaction's part, which the seed part has already:
  I, the sum over both cells of the mean, over resamples, of the variance between seeds of the seeds' own deviations,
  divided by n. So it is multiplied by sqrt(max(0, V − I) / V), and by sqrt(N / (N − 1)), because a bootstrap's variance
  is short by (N − 1) / N.

Both parts are independent. The seed part is not drawn: the distribution function of D* is the mean, over the
resamples, of Student's at their distance, so it is smooth and its tails do not end at the last replicate. In either
direction one replicate more is counted, half as far again from D as the farthest: the usual +1 of a Monte Carlo p-value
(Davison & Hinkley 1997, section 4.2), for a tail that is not a step.

**The least seed part.** A few seeds may agree by accident (accuracies are multiples of 1 / N), which makes s² small.
But the seed part's variance is at least I, which the N examples measure well. So a tail is also computed with a seed
part of variance I, normal because I is known well, and the larger of both tails counts: a difference has to be clear of
the observed seeds and of the examples.

The interval is from the 2.5th to the 97.5th percentile and p is twice the smaller tail beyond 0: the interval leaves 0
out exactly where p < 0.05, before the share of failed runs is added to p (`seed_variance`).

**This model.** One finalist of each cell, the exported one, over examples alone: the percentile interval of the paired
bootstrap. One seed is enough for it, and it says nothing about another run of the same recipe.

A sum of an estimated t and a known part is the Behrens–Fisher distribution; its intervals cover at least what they
claim. `benchmarks.statistics_simulation` measures it; the figures are in `docs/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meltpoint.reports.statistics.seed_variance import SeedVariance, welch
from meltpoint.tasks.core.metrics import Floats

TAIL = 0.025
"""The tail beyond a 95 % interval, on either side."""
FARTHER = 1.5
"""The distance of the replicate that is added in each direction, in distances of the farthest resample."""


@dataclass(frozen=True)
class Side:
    """One cell of a comparison.

    Attributes:
        observed: its runs' scores, (seeds,).
        resampled: the same on resamples of the examples, (resamples, seeds).
        variance: over seeds, of one run.
    """

    observed: Floats
    resampled: Floats
    variance: SeedVariance

    @property
    def seeds(self) -> int:
        """The number of its runs."""
        return len(self.observed)


def unpaired(upper: Side, lower: Side, units: int) -> Replicates:
    """The difference of two cells, upper − lower: D with its seed part, and the example part of each resample.

    Args:
        upper, lower: on the same resamples, two seeds or more each.
        units: independent examples of the split, N: groups, if examples belong to groups.
    """
    correction = units / max(1, units - 1)
    sides = (upper, lower)
    own = [side.resampled - side.observed for side in sides]
    together = own[0].mean(axis=1) - own[1].mean(axis=1)
    interaction = correction * sum(
        float(np.mean(deviations.var(axis=1, ddof=1))) / side.seeds for deviations, side in zip(own, sides, strict=True)
    )
    scale, freedom = welch([(side.variance.value / side.seeds, side.variance.freedom) for side in sides])
    centre = float(upper.observed.mean() - lower.observed.mean())
    return Replicates(centre, scale, math.sqrt(interaction), freedom, _kept(together, interaction, correction))


def of_models(upper: float, lower: float, upper_resampled: Floats, lower_resampled: Floats, units: int) -> Replicates:
    """The difference of two trained models over examples alone.

    Args:
        upper, lower: their scores.
        upper_resampled, lower_resampled: on the same resamples, (resamples,).
        units: as for `unpaired`.
    """
    correction = units / max(1, units - 1)
    deviations = (upper_resampled - upper) - (lower_resampled - lower)
    return Replicates(upper - lower, 0.0, 0.0, 1.0, math.sqrt(correction) * deviations)


def _kept(together: Floats, interaction: float, correction: float) -> Floats:
    """The example part: deviations on resamples without the share of their variance that is interaction."""
    variance = correction * float(together.var())
    kept = max(0.0, variance - interaction) / variance if variance > 0 else 0.0
    return math.sqrt(correction * kept) * together


def probability_better(upper_resampled: Floats, lower_resampled: Floats) -> float:
    """P(A > B): the probability that one run of A beats one of B on new examples; ties count half.

    Bouthillier et al. 2021, section 4. Every run of A is paired with every run of B, on the same resample: the seeds of
    two modes share nothing but their numbers, and n × n pairs say more than n.

    Args:
        upper_resampled, lower_resampled: scores on the same resamples, (resamples, seeds).
    """
    gaps = upper_resampled[:, :, None] - lower_resampled[:, None, :]
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


@dataclass(frozen=True)
class Replicates:
    """The distribution of D*: a Student's t around each resample's D + example part.

    Attributes:
        centre: D.
        scale: the standard error of the seed part.
        least_scale: the least standard error, sqrt(I).
        freedom: degrees of freedom of `scale`.
        deviations: the example part, (resamples,).
    """

    centre: float
    scale: float
    least_scale: float
    freedom: float
    deviations: Floats

    def below(self, value: float, side: int) -> float:
        """P(D* ≤ value), with the added replicate below (side −1) or above (+1)."""
        return self._tail(np.array(value - self.centre - self._with_farther(side)))

    def p(self) -> float:
        """Twice the smaller of the tails beyond 0."""
        smallest = 2 / (len(self.deviations) + 1) if self._has_steps else float(np.finfo(np.float64).tiny)
        return min(1.0, max(smallest, 2 * min(self.below(0.0, -1), self.above(0.0))))

    def above(self, value: float) -> float:
        """P(D* ≥ value), with the added replicate above."""
        return self._tail(np.array(self.centre + self._with_farther(1) - value))

    def interval(self, tail: float = TAIL) -> tuple[float, float]:
        """The percentiles that leave a share of `tail` on either side."""
        if self._has_steps:
            rank = math.ceil(tail * (len(self.deviations) + 1)) - 1
            ends = [np.sort(self._with_farther(side)) for side in (-1, 1)]
            return float(self.centre + ends[0][rank]), float(self.centre + ends[1][-1 - rank])
        low = self._solved(lambda value: self.below(value, -1) - tail, -1)
        high = self._solved(lambda value: tail - self.above(value), 1)
        return low, high

    @property
    def _has_steps(self) -> bool:
        """True if all seeds agree on every resample, so that there is no seed part."""
        return self.scale == self.least_scale == 0

    def _with_farther(self, side: int) -> Floats:
        farthest = side * FARTHER * float(np.abs(self.deviations).max())
        return np.append(self.deviations, farthest)

    def _tail(self, distances: Floats) -> float:
        """The larger of the means of Student's and the normal distribution function; without a scale, of a step."""
        from scipy.special import ndtr, stdtr  # takes a second to import

        seen = distances >= 0 if self.scale == 0 else stdtr(self.freedom, distances / self.scale)
        if self.least_scale <= self.scale:
            return float(np.mean(seen))
        return max(float(np.mean(seen)), float(np.mean(ndtr(distances / self.least_scale))))

    def _solved(self, excess: Callable[[float], float], side: int) -> float:
        """The value at which an increasing function is 0."""
        from scipy.optimize import brentq

        reach = self.scale + self.least_scale + FARTHER * float(np.abs(self.deviations).max())
        inner, outer = self.centre - side * reach, self.centre + side * reach
        while side * excess(outer) < 0:
            outer = self.centre + 2 * (outer - self.centre)
        return float(brentq(excess, *sorted((inner, outer)), xtol=1e-9 * reach))
