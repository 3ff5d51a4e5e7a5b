"""P1, figure 2: mutual information (EDGE) of each layer's mean states and the labels, pretrained and fine-tuned.

On the dev split, as in the paper (CoLA, SST-2, MRPC), with its sanity checks: the states against shuffled labels, and
random states against the labels. Tasks whose labels are scores are left out.

EDGE: mutual information by hashing (Noshad, Zeng & Hero 2018, arXiv 1801.09125v2), the estimator of P1's figure 2.

Both are hashed into buckets; a bucket is a node of a bipartite graph, and an edge joins two buckets that samples
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
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Line, Panel, Value, figures
from meltpoint.reports.analyses.core.states import States, load_inputs, split_states, stages
from meltpoint.tasks.core.task import TrainingData
from meltpoint.tasks.core.wording import some

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


class HashedStates:
    """The states of the samples, randomly projected, to be divided into cells of any width.

    Args:
        values: (samples, dim) real numbers.

    Raises:
        ValueError: fewer than 20 samples, which one projection needs.
    """

    def __init__(self, values: Floats) -> None:
        samples, dim = values.shape
        if samples < 2 * SAMPLES_PER_CELL:
            raise ValueError(f"mutual information of {samples} examples cannot be estimated; it takes 20 or more.")
        self.dim = min(dim, math.floor(math.log2(samples / SAMPLES_PER_CELL)))
        deviations = values.std(axis=0)
        deviations[deviations < 1e-4] = 1.0  # release: a constant column stays as it is
        normal = np.random.RandomState(SEED).standard_normal((dim, self.dim))  # frozen by NEP 19
        self.projected = values @ (normal / (deviations[:, None] * math.sqrt(dim)))  # (samples, self.dim)

    @cached_property
    def _widths(self) -> Floats:
        """ε of each projection at smoothness 1: (self.dim,)."""
        distances = [neighbour_distance(column, self.dim) for column in self.projected.T]
        widths: Floats = (np.array(distances) + 1e-4) * WIDTHS_PER_DIMENSION * self.dim
        return widths

    def buckets(self, smoothness: float) -> list[Buckets]:
        """Each sample's bucket, at each width of the ensemble; the shifts b are spread evenly over a cell."""
        shifts = np.linspace(0.0, 1.0, len(SCALES), endpoint=False)
        cells = [
            np.floor(self.projected / (self._widths * smoothness * scale) + shift)
            for scale, shift in zip(SCALES, shifts, strict=True)
        ]
        return [np.unique(cell, axis=0, return_inverse=True)[1].reshape(-1) for cell in cells]


def information(states: HashedStates, labels: NDArray[np.int64]) -> Estimate:
    """The mutual information of states and labels, each of which is a bucket at every width."""
    buckets: Buckets = np.unique(labels, return_inverse=True)[1].reshape(-1)
    first = ensemble(states.buckets(1.0), buckets)
    least = max(first, NOTHING_BITS)
    smoothness = SHRINK * 2.0 ** (-math.sqrt(2.0 * least) + 0.5 / least)
    return Estimate(ensemble(states.buckets(smoothness), buckets), first)


def ensemble(states: Sequence[Buckets], labels: Buckets) -> float:
    """The median of the estimates from the buckets at each width, in bits: the release's default.

    The weights of theorem 4.1, which cancel the bias of wide cells, need many samples and few dimensions: with a
    thousand samples in six projections they are in the hundreds, and so is the noise.
    """
    return float(np.median([graph_information(one, labels) for one in states]))


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


NAME = "mutual_information"
SHUFFLES = 10
RANDOM = "random states"

COLUMNS = (
    Column("encoder"), Column("task"), Column("stage"), figures("layer", "d"), figures("bits", ".3f"),
    figures("shuffled labels", ".3f"), figures("first pass", ".3f"), figures("first pass, shuffled", ".3f"),
    figures("first pass, std", ".3f"), figures("excess", ".3f"), figures("label entropy", ".3f"),
)  # fmt: skip
METHOD = (
    "Mutual information in bits between the mean dev states of each layer (0 is the embeddings) and the labels, by "
    "EDGE with the defaults of its authors' release 4.3.1: the column `bits`.",
    f"`shuffled labels`: the maximum over {SHUFFLES} shuffles of the labels. The rows `{RANDOM}` are normal noise of "
    "the states' shape, a second check. Both should be 0 (the estimator's 0 is 0.001).",
    "EDGE's second pass gives 0 if the first pass gives a small estimate. `first pass` is that estimate, `first pass, "
    "shuffled` and `first pass, std` its mean and standard deviation over the shuffles, and `excess` the difference: "
    "above about two standard deviations, a layer has information about the labels even if `bits` is 0.",
    "`label entropy` is the upper bound of the information.",
)


@dataclass(frozen=True)
class LayerInformation:
    """One layer's mutual information with the labels, in bits.

    Attributes:
        estimate: the estimate for the labels.
        shuffled: the estimate for each shuffle of the labels.
    """

    estimate: Estimate
    shuffled: tuple[Estimate, ...]

    @property
    def chance(self) -> tuple[float, float]:
        """The first pass's mean and standard deviation over the shuffles."""
        first = [one.first_pass for one in self.shuffled]
        return float(np.mean(first)), float(np.std(first, ddof=1))

    @property
    def excess(self) -> float:
        """The first pass's estimate minus its mean over the shuffles."""
        return self.estimate.first_pass - self.chance[0]


def run(options: AnalysisOptions) -> list[Path]:
    """Measure every layer of every encoder, task and stage; write the table and the figure.

    Raises:
        ValueError: no task has classes, or see `states.load_inputs`.
    """
    inputs, notes = load_inputs(options, with_finalists=True)
    classes = [(name, data) for name, data in inputs if not data.task.of_kind.is_regression]
    scores = (data.task.name for _, data in inputs if data.task.of_kind.is_regression)
    notes += [f"{task} is left out: its labels are scores." for task in scores]
    if not classes:
        raise ValueError(f"{NAME} needs a task with classes; {' '.join(notes)}")
    found = [_curves(options, name, data) for name, data in classes]
    rows = tuple(row for *_, own, _ in found for row in own)
    notes += [note for *_, own in found for note in own]
    title = "Mutual information of states and labels by layer"
    table = AnalysisTable(NAME, title, COLUMNS, rows, (*METHOD, *dict.fromkeys(notes)))
    panels = [upper for upper, *_ in found], [lower for _, lower, *_ in found]
    return [*write_table(table, options), *write_figure(NAME, options, *panels)]


def _curves(
    options: AnalysisOptions, encoder_name: str, data: TrainingData
) -> tuple[Panel, Panel, list[tuple[Value, ...]], list[str]]:  # fmt: skip
    """The panels (estimate, excess of the first pass), rows and notes of one encoder on one task."""
    task = data.task
    labels = np.array([example.label for example in data.dev], dtype=np.int64)
    most, rows, notes = entropy_bits(labels), [], []
    upper: list[Line] = []
    lower: list[Line] = []
    shape: tuple[int, ...] = ()
    for stage in stages(options, encoder_name, data):
        options.tell(f"{task.name}, {encoder_name}: reading {stage.name} states")
        states = split_states(stage.encoder, task, data.dev)
        measured = [measure(layer, labels) for layer in states]
        rows += [_row(encoder_name, task.name, stage.name, n, layer, most) for n, layer in enumerate(measured)]
        upper.append(Line(stage.name, tuple(layer.estimate.bits for layer in measured)))
        errors = tuple(2 * layer.chance[1] for layer in measured)
        lower.append(Line(stage.name, tuple(layer.excess for layer in measured), errors))
        notes.append(f"{task.name}, {stage.note}.")
        shape = states.shape
    noise = np.random.default_rng(0).standard_normal(shape[1:]).astype(np.float32)
    checked = measure(noise, labels)
    rows.append(_row(encoder_name, task.name, RANDOM, None, checked, most))
    upper.append(Line(RANDOM, (checked.estimate.bits,) * shape[0], is_reference=True))
    lower.append(Line(RANDOM, (checked.excess,) * shape[0], is_reference=True))
    title = f"{task.name}, {encoder_name}"
    notes.append(f"{task.name}: {some(len(labels), 'dev example')}.")
    above = Panel(title, "bits", tuple(upper), (0.0, 1.05 * most))
    return above, Panel(title, "excess of pass 1", tuple(lower)), rows, notes


def measure(states: States, labels: NDArray[np.int64]) -> LayerInformation:
    """The information of one layer's states about the labels, and about shuffles of the labels.

    Args:
        states: (examples, dim).
        labels: (examples,).
    """
    hashed = HashedStates(states.astype(np.float64))
    shuffle = np.random.default_rng(0)
    orders = [shuffle.permutation(len(labels)) for _ in range(SHUFFLES)]
    others = tuple(information(hashed, labels[order]) for order in orders)
    return LayerInformation(information(hashed, labels), others)


def _row(
    encoder_name: str, task: str, stage: str, layer: int | None, measured: LayerInformation, most: float
) -> tuple[Value, ...]:  # fmt: skip
    mean, deviation = measured.chance
    worst = max(one.bits for one in measured.shuffled)
    bits, first_pass = measured.estimate.bits, measured.estimate.first_pass
    return encoder_name, task, stage, layer, bits, worst, first_pass, mean, deviation, measured.excess, most
