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

- Seed part: t × sqrt(s²_A / n_A + s²_B / n_B). Each s² is a moderated variance (`seeds`), which estimates
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
out exactly where p < 0.05, before the share of failed runs is added to p (`seeds`).

**This model.** One finalist of each cell, the exported one, over examples alone: the percentile interval of the paired
bootstrap. One seed is enough for it, and it says nothing about another run of the same recipe.

A sum of an estimated t and a known part is the Behrens–Fisher distribution; its intervals cover at least what they
claim. `benchmarks.statistics_simulation` measures it; the figures are in `docs/statistics.md`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.statistics.seeds import SeedVariance, welch
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core.metrics import Floats

Groups = NDArray[np.int64] | None

CHUNK = 2**20
"""Counts in memory at a time: 8 MB."""
KEPT_CHUNKS = 16
"""Chunks of a task that are kept between its cells: 4 000 resamples of 2 000 examples are 8 chunks."""


def resampled(score: Scorer, examples: int, resamples: int, name: str, groups: Groups = None) -> Floats:
    """The scores of bootstrap resamples.

    Args:
        score: counts (resamples, examples) → scores (resamples, runs).
        examples: examples of the split.
        name: of the split; it seeds the draws, with the sizes.
        groups: the index of each example's group, (examples,); None if each example is drawn by itself.

    Returns:
        (resamples, runs).
    """
    return np.concatenate([score(counts) for counts in counts_of(examples, resamples, name, groups)])


def counts_of(examples: int, resamples: int, name: str, groups: Groups = None) -> Iterator[Floats]:
    """Chunks of counts, (some resamples, examples): how often each example was drawn.

    If examples come in groups (documents, authors), whole groups are drawn: the cluster bootstrap (Davison & Hinkley
    1997, section 3.8). Examples of a group may depend on each other; groups do not.

    Each row sums to `examples`; with groups, the counts of one example of each group sum to the number of groups.
    """
    rows = max(1, CHUNK // examples)
    units = units_of(examples, groups)
    seed = int.from_bytes(hashlib.sha256(f"{name} {units}".encode()).digest()[:8], "big")
    for number, start in enumerate(range(0, resamples, rows)):
        counts = _chunk(units, min(rows, resamples - start), seed, number)
        yield counts if groups is None else counts[:, groups]


def units_of(examples: int, groups: Groups) -> int:
    """The number of independent units: groups, or examples if there are no groups."""
    return examples if groups is None else int(groups.max()) + 1


@lru_cache(maxsize=KEPT_CHUNKS)
def _chunk(units: int, rows: int, seed: int, number: int) -> Floats:
    drawn = np.random.default_rng([seed, number]).integers(units, size=(rows, units))
    places = drawn + units * np.arange(rows)[:, None]
    counts = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
    counts.flags.writeable = False  # cached, and returned more than once
    return counts


Scorer = Callable[[Floats], Floats]
"""Counts (resamples, examples) → scores (resamples, runs)."""


Runs = Sequence[ScoredExamples]


def ranker(values: NDArray[np.generic]) -> Scorer:
    """Counts → ranks in each resample less their mean, (resamples, examples); ties have the mean of their ranks."""
    distinct, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(places[order])) + 1])

    def ranks(counts: Floats) -> Floats:
        tied = counts[:, order]
        if len(distinct) < len(values):
            tied = np.add.reduceat(tied, starts, axis=1)  # (resamples, distinct values)
        found = np.cumsum(tied, axis=1)
        found -= tied / 2
        found -= counts.sum(axis=1, keepdims=True) / 2
        return found[:, places]

    return ranks


def roc_auc(runs: Runs) -> Scorer:
    """The area under the ROC curve from the ranks of the positives (Mann & Whitney 1947)."""
    found = [[(ranker(scores), positive) for scores, positive in _columns(run)] for run in runs]

    def area(counts: Floats, ranks: Scorer, positive: Floats) -> tuple[Floats, Floats]:
        size = counts.sum(axis=1)
        ours = counts @ positive
        others = size - ours
        # `ranks` are less the mean rank, (size + 1) / 2.
        above = (counts * ranks(counts)) @ positive + ours * (size + 1) / 2 - ours * (ours + 1) / 2
        has_curve = (ours > 0) & (others > 0)
        return np.divide(above, ours * others, out=np.zeros_like(above), where=has_curve), has_curve.astype(np.float64)

    def score(counts: Floats) -> Floats:
        columns = []
        for labels in found:
            areas, known = zip(*(area(counts, ranks, positive) for ranks, positive in labels), strict=True)
            number = np.sum(known, axis=0)
            total = np.sum(areas, axis=0)
            columns.append(np.where(number > 0, total / np.maximum(number, 1), 0.5))
        return np.stack(columns, axis=1)

    return score


def average_precision(runs: Runs) -> Scorer:
    """Σ (Rₙ − Rₙ₋₁) Pₙ over the distinct scores, the highest first, as `metrics.average_precision`."""
    found = [[(_cumulated(scores), positive) for scores, positive in _columns(run)] for run in runs]

    def of_label(counts: Floats, cumulate: Callable[[Floats], tuple[Floats, Floats]], positive: Floats) -> Floats:
        ours = counts @ positive
        here, above = cumulate(counts * positive)
        _, retrieved = cumulate(counts)
        precision = np.divide(above, retrieved, out=np.zeros_like(above), where=retrieved > 0)
        areas: Floats = np.divide((here * precision).sum(axis=1), ours, out=np.zeros_like(ours), where=ours > 0)
        return areas

    def score(counts: Floats) -> Floats:
        return np.stack(
            [np.mean([of_label(counts, *column) for column in labels], axis=0) for labels in found], axis=1
        )  # fmt: skip

    return score


def _columns(run: ScoredExamples) -> list[tuple[NDArray[np.float64], Floats]]:
    """(probabilities, positives) of each ranked label: for two exclusive labels, the second only."""
    assert run.probabilities is not None, "the metric needs probabilities"
    gold = run.gold if run.gold.ndim == 2 else run.gold[:, None] == np.arange(len(run.labels))
    labels = [1] if run.gold.ndim == 1 and len(run.labels) == 2 else range(len(run.labels))
    return [(run.probabilities[:, label], gold[:, label].astype(np.float64)) for label in labels]


def _cumulated(scores: NDArray[np.float64]) -> Callable[[Floats], tuple[Floats, Floats]]:
    """Weights (resamples, examples) → (of each distinct score, of it and all higher ones), the highest score first."""
    distinct, places = np.unique(-scores, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(distinct)))

    def cumulate(weights: Floats) -> tuple[Floats, Floats]:
        here = np.add.reduceat(weights[:, order], starts, axis=1)
        return here, np.cumsum(here, axis=1)

    return cumulate


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
        upper, lower: on the same resamples, two seeds or more each; or one with a variance of 0, which is exact.
        units: independent examples of the split, N: groups, if examples belong to groups.
    """
    correction = units / max(1, units - 1)
    sides = (upper, lower)
    own = [side.resampled - side.observed for side in sides]
    together = own[0].mean(axis=1) - own[1].mean(axis=1)
    interaction = correction * sum(
        float(np.mean(deviations.var(axis=1, ddof=1))) / side.seeds
        for deviations, side in zip(own, sides, strict=True)
        if side.seeds > 1
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
