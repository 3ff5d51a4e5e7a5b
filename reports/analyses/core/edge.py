"""EDGE: mutual information by hashing (Noshad, Zeng & Hero 2018, arXiv 1801.09125v2), the estimator of P1's figure 2.

Both sides are hashed into buckets; a bucket is a node of a bipartite graph, and an edge joins two buckets that samples
share. With N samples, N_i and M_j of them in the buckets i and j, N_ij in both, equations 6 and 9 are

    I = Σ_ij (N_i M_j / N²) g(N_ij N / (N_i M_j)),   g(x) = x log2 x,

which is Σ_ij (N_ij / N) log2(N_ij N / (N_i M_j)). States are projected at random (the p-stable hash, equation 10) and
cut into cells of width ε, shifted by b (equations 3 and 4). An ensemble over several ε makes the estimate (section 4).

P1 used EDGE "with default hyper-parameter values". The paper names none; its authors' release does, and version 4.3.1
(December 2018) was the newest when P1 appeared. The constants are those defaults: the number of projections, the width
from the distance to the k-th neighbour, ten widths within 10 %, their median, and a second pass at a width that the
first pass's estimate sets. That second pass widens the cells without bound as the estimate falls: below about 0.2 bits
all samples share one bucket and the estimate is 0. So a 0 of this estimator means "little", and does not exclude
dependence; `Estimate.first_pass` shows it, compared with its value for shuffled labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Buckets: TypeAlias = NDArray[np.int64]

SAMPLES_PER_CELL = 10  # release: with N samples, log2(N / 10) projections
PROBES = 500  # release: number of samples whose neighbour distances set a width
NEIGHBOURS, EXPONENT, EXPONENT_STEP = 0.43, 2 / 3, 0.17  # release: k = 0.43 N^(2/3 + 0.17 d / (d + 1))
WIDTHS_PER_DIMENSION = 3 * 0.9  # release: ε = 3 · 0.9 · d · (mean distance to the k-th neighbour)
SHRINK = 0.9  # release: the second pass applies the factor 0.9 once more
NOTHING_BITS = 0.001  # release: lower bound of an edge's log ratio; the paper's equation 9 has none
MOST_BITS = 10.0  # release: upper bound of an edge's log ratio, U of equation 9
SCALES = np.linspace(1.0, 1.1, 10)  # release: ten widths ε, as multiples of the narrowest
SEED = 3334  # release: of the projections


@dataclass(frozen=True)
class Estimate:
    """Mutual information in bits: the final estimate and that of the first pass."""

    bits: float
    first_pass: float


class ContinuousSide:
    """One side of the samples: real vectors, randomly projected, to be divided into cells of any width.

    Args:
        values: (samples, dim) or (samples,) real numbers.
        drawn: the number of random numbers that the other side's projections have used; this side uses the next ones.

    Raises:
        ValueError: fewer than 20 samples, which one projection needs.
    """

    def __init__(self, values: Floats, drawn: int = 0) -> None:
        self.values = values
        columns = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        samples, dim = columns.shape
        if samples < 2 * SAMPLES_PER_CELL:
            raise ValueError(f"mutual information of {samples} examples cannot be estimated; it takes 20 or more.")
        self.dim = min(dim, math.floor(math.log2(samples / SAMPLES_PER_CELL)))
        deviations = columns.std(axis=0)
        deviations[deviations < 1e-4] = 1.0  # release: a constant column stays as it is
        self.drawn = drawn + dim * self.dim
        stream = np.random.RandomState(SEED).standard_normal(self.drawn)  # frozen by NEP 19
        normal = stream[drawn:].reshape(dim, self.dim)
        self.projected = columns @ (normal / (deviations[:, None] * math.sqrt(dim)))  # (samples, self.dim)

    @cached_property
    def _widths(self) -> Floats:
        """ε of each projection at smoothness 1: (self.dim,)."""
        distances = [neighbour_distance(column, self.dim) for column in self.projected.T]
        return (np.array(distances) + 1e-4) * WIDTHS_PER_DIMENSION * self.dim

    def buckets(self, smoothness: float) -> list[Buckets]:
        """Each sample's bucket, at each width of the ensemble; the shifts b are spread evenly over a cell."""
        shifts = np.linspace(0.0, 1.0, len(SCALES), endpoint=False)
        cells = [
            np.floor(self.projected / (self._widths * smoothness * scale) + shift)
            for scale, shift in zip(SCALES, shifts, strict=True)
        ]
        return [np.unique(cell, axis=0, return_inverse=True)[1].reshape(-1) for cell in cells]


class DiscreteSide:
    """One side of the samples: discrete labels, each of which is a bucket at every width.

    Args:
        values: (samples,) labels of any kind.
    """

    dim = 0

    def __init__(self, values: NDArray[np.int64]) -> None:
        labels: Buckets = np.unique(values, return_inverse=True)[1].reshape(-1)
        self._labels = [labels] * len(SCALES)

    def buckets(self, smoothness: float) -> list[Buckets]:
        """Each sample's label, at each width; the smoothness is ignored."""
        return self._labels


SampleSide: TypeAlias = ContinuousSide | DiscreteSide


def information(left: SampleSide, right: SampleSide) -> Estimate:
    """The mutual information of prepared sides, so that many labellings can share one side of states.

    Two sides of vectors have separate projections, as in the release: shared ones would make the buckets more dependent
    than the vectors are.
    """
    if isinstance(left, ContinuousSide) and isinstance(right, ContinuousSide):
        right = ContinuousSide(right.values, left.drawn)
    first = ensemble(left.buckets(1.0), right.buckets(1.0))
    least = max(first, NOTHING_BITS)
    smoothness = SHRINK * 2.0 ** (-math.sqrt(2.0 * least) + 0.5 / least)
    second = ensemble(left.buckets(smoothness), right.buckets(smoothness))
    return Estimate(second, first)


def ensemble(left: Sequence[Buckets], right: Sequence[Buckets]) -> float:
    """The median of the estimates from the buckets at each width, in bits: the release's default.

    The weights of theorem 4.1, which cancel the bias of wide cells, need many samples and few dimensions: with a
    thousand samples in six projections they are in the hundreds, and so is the noise.
    """
    return float(np.median([graph_information(one, other) for one, other in zip(left, right, strict=True)]))


def graph_information(left: Buckets, right: Buckets, least_bits: float = NOTHING_BITS) -> float:
    """The information of one dependence graph in bits (equation 9; its `max` is a misprint for min).

    Args:
        left, right: (samples,) buckets, numbered from 0.
    """
    edges, shared = np.unique(left * (right.max() + 1) + right, return_counts=True)
    ones, others = np.divmod(edges, right.max() + 1)
    expected = np.bincount(left)[ones] * np.bincount(right)[others] / len(left)
    return float(np.clip(np.log2(shared / expected), least_bits, MOST_BITS) @ shared / len(left))


def neighbour_distance(column: Floats, dim: int) -> float:
    """The mean distance from a sample to its k-th neighbour, itself counted, over evenly spaced samples by rank.

    The release draws 500 samples at random; ranks give the same mean independently of the samples' order.

    Args:
        column: (samples,) of one projection.
        dim: the number of projections.
    """
    ordered = np.sort(column)
    count = len(ordered)
    share = count ** (EXPONENT + EXPONENT_STEP * dim / (dim + 1))
    k = max(1, math.floor(NEIGHBOURS * share * math.exp(-1.0 / max(10_000, dim**4))))
    ranks = np.linspace(0, count - 1, min(PROBES, count)).round().astype(int)
    return float(np.mean([np.partition(np.abs(ordered - ordered[rank]), k - 1)[k - 1] for rank in ranks]))


def entropy_bits(labels: NDArray[np.int64]) -> float:
    """The labels' entropy in bits, which bounds the mutual information of states and labels."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-shares @ np.log2(shares))
