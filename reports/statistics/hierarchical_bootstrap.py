"""The interval and p-value of a difference over seeds and examples: a hierarchical paired bootstrap.

**The design.** n seeds of two cells are scored on the same N test examples, so seeds and examples are crossed. Let d_s
be the difference for seed s on these examples and D the mean of d_s. To first order

    d_s = Δ + seed_s + examples + interaction_s,    variances  σ²_seed, σ²_examples / N, σ²_interaction / N,
    Var D = σ²_seed / n + σ²_examples / N + σ²_interaction / (n N),

the model of multi-reader multi-case studies (Dorfman, Berbaum & Metz 1992; Obuchowski & Rockette 1995; Hillis 2007),
with seeds as readers.

**Why not the plain bootstrap** (draw seeds, then examples, take percentiles). It is biased in both directions: the
spread of n drawn seeds is short of their variance by (n − 1) / n and knows no t quantile (with five seeds and nothing
else that varies, 84 % coverage), and the interaction is counted twice, once with the seeds and once with the examples
(Owen 2007, "The pigeonhole bootstrap").

**The replicates** are D* = D + seed part + example part.

- Seed part: t × sqrt(s² / n), t Student's with n − 1 degrees of freedom: two to ten values give no distribution of
  their own to draw from. s² is the sample variance of the d_s, which estimates σ²_seed + σ²_interaction / N.
- Example part: the same resamples of the examples for both cells and every seed: mean over seeds of the difference on
  the resample, minus D. Its variance V estimates σ²_examples / N + σ²_interaction / (n N), whose second term the seed
  part has already: R / n, where R is the mean, over resamples, of the variance between seeds of the seeds' own
  deviations. So it is multiplied by sqrt(max(0, V − R / n) / V), and by sqrt(N / (N − 1)), because a bootstrap's
  variance is short by (N − 1) / N.

Both parts are independent. The seed part is not drawn: the distribution function of D* is the mean, over the
resamples, of Student's at their distance, so it is smooth and its tails do not end at the last replicate. In either
direction one replicate more is counted, half as far again from D as the farthest: the usual +1 of a Monte Carlo p-value
(Davison & Hinkley 1997, section 4.2), for a tail that is not a step.

**The least seed part.** A few seeds may agree by accident (accuracies are multiples of 1 / N), which makes s² nearly 0.
But the variance of d_s is at least σ²_interaction / N, which the N examples measure well: R. So a tail is also computed
with a seed part of variance R / n, normal because R is known well, and the larger of both tails counts: a difference
has to be clear of the seeds as they were seen, and of the examples. (Raising s² itself to R would cost far more: by
Gaussian simulation 99.6 to 100 % coverage for five, three and two seeds without an effect of seeds, in place of 98.0 to
99.4 %. Subtracting R from s², as an estimate of σ²_seed alone would, covers as little as 86 to 93 % for two to five
seeds.)

The interval is from the 2.5th to the 97.5th percentile and p is twice the smaller tail beyond 0: the interval leaves 0
out exactly where p < 0.05.

A sum of an estimated t and a known part is the Behrens–Fisher distribution; its intervals cover at least what they
claim. `benchmarks.statistics_simulation` measures it; the figures are in `docs/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meltpoint.tasks.core.metric import Floats

TAIL = 0.025
"""Of a 95 % interval, on either side."""
FARTHER = 1.5
"""The distance of the replicate that is added in each direction, in distances of the farthest resample."""


@dataclass(frozen=True)
class Estimate:
    """A difference with its uncertainty.

    Attributes:
        delta: the mean difference over the seeds, D.
        low, high: the 95 % interval.
        p: two-sided p-value of "no difference"; never 0.
        seeds_error: standard error of the seed part, sqrt(s² / n), or the least one if that is larger.
        examples_error: standard deviation of the example part.
        probability_better: P(A > B) (`probability_better`).
    """

    delta: float
    low: float
    high: float
    p: float
    seeds_error: float
    examples_error: float
    probability_better: float


def estimate(upper: Floats, lower: Floats, upper_resampled: Floats, lower_resampled: Floats, examples: int) -> Estimate:
    """The difference of two cells, upper − lower.

    Args:
        upper, lower: the scores of the seeds that both have, in the same order, (seeds,); two seeds or more.
        upper_resampled, lower_resampled: the scores on the same resamples, (resamples, seeds).
        examples: examples of the split, N.
    """
    differences = upper - lower
    found = parts(differences, upper_resampled - lower_resampled, examples)
    low, high = found.interval()
    better = probability_better(upper_resampled, lower_resampled)
    seeds_error = max(found.scale, found.least_scale)
    return Estimate(found.centre, low, high, found.p(), seeds_error, float(found.deviations.std()), better)


def parts(differences: Floats, resampled: Floats, examples: int) -> Replicates:
    """D with its seed part, and the example part of each resample.

    Args:
        differences: d_s, (seeds,).
        resampled: the differences on each resample, (resamples, seeds).
        examples: N.
    """
    seeds = len(differences)
    correction = examples / max(1, examples - 1)
    deviations = resampled - differences
    together = deviations.mean(axis=1)
    interaction = correction * float(np.mean(deviations.var(axis=1, ddof=1))) / seeds  # R / n
    variance = correction * float(together.var())
    kept = max(0.0, variance - interaction) / variance if variance > 0 else 0.0
    seen = float(differences.var(ddof=1)) / seeds
    return Replicates(
        float(differences.mean()), math.sqrt(seen), math.sqrt(interaction), seeds - 1,
        math.sqrt(correction * kept) * together,
    )  # fmt: skip


def probability_better(upper_resampled: Floats, lower_resampled: Floats) -> float:
    """P(A > B): the probability that one run of A beats one of B on new examples; ties count half.

    Bouthillier et al. 2021, section 4. Every run of A meets every run of B, on the same resample: the seeds of two
    modes share no more than their number, and n × n meetings say more than n.

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
        scale: the standard error of the seed part as it was seen, sqrt(s² / n).
        least_scale: the least one, sqrt(R / n).
        freedom: degrees of freedom of the first.
        deviations: the example part, (resamples,).
    """

    centre: float
    scale: float
    least_scale: float
    freedom: int
    deviations: Floats

    def below(self, value: float, side: int) -> float:
        """P(D* ≤ value), the replicate that is added being below (side −1) or above (+1)."""
        return self._tail(np.array(value - self.centre - self._with_farther(side)))

    def p(self) -> float:
        """Twice the smaller of the tails beyond 0."""
        upwards = self._tail(self.centre + self._with_farther(1))  # P(D* ≥ 0), by the symmetry of t
        smallest = 2 / (len(self.deviations) + 1) if self._has_steps else float(np.finfo(np.float64).tiny)
        return min(1.0, max(smallest, 2 * min(self.below(0.0, -1), upwards)))

    def interval(self) -> tuple[float, float]:
        """The 2.5th and the 97.5th percentile."""
        if self._has_steps:
            rank = math.ceil(TAIL * (len(self.deviations) + 1)) - 1
            ends = [np.sort(self._with_farther(side)) for side in (-1, 1)]
            return float(self.centre + ends[0][rank]), float(self.centre + ends[1][-1 - rank])
        low = self._solved(lambda value: self.below(value, -1) - TAIL, -1)
        high = self._solved(lambda value: TAIL - self._tail(self.centre + self._with_farther(1) - value), 1)
        return low, high

    @property
    def _has_steps(self) -> bool:
        """True where all seeds agree on every resample, so that there is no seed part."""
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
