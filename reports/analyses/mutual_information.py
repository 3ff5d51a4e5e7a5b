"""P1, figure 2: mutual information (EDGE) of each layer's mean states and the labels, pretrained and fine-tuned.

On the dev split, as in the paper (CoLA, SST-2, MRPC), with its sanity checks: the states against shuffled labels, and
random states against the labels. Tasks whose labels are scores are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.edge import ContinuousSide, DiscreteSide, Estimate, entropy_bits, information
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Line, Panel, Value, figures, in_rows
from meltpoint.reports.analyses.core.states import States, load_inputs, split_states, stages
from meltpoint.tasks.core.task import TrainingData
from meltpoint.tasks.core.wording import some

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
    rows: list[tuple[Value, ...]] = []
    above: list[Panel] = []
    below: list[Panel] = []
    inputs, notes = load_inputs(options)
    for encoder_name, data in inputs:
        if data.task.of_kind.is_regression:
            notes.append(f"{data.task.name} is left out: its labels are scores.")
            continue
        upper, lower, task_rows, task_notes = _curves(options, encoder_name, data)
        above.append(upper)
        below.append(lower)
        rows += task_rows
        notes += task_notes
    if not rows:
        raise ValueError(f"{NAME} needs a task with classes; {' '.join(notes)}")
    grid = [row for pair in zip(in_rows(above), in_rows(below), strict=True) for row in pair]
    table = AnalysisTable(
        NAME, "Mutual information of states and labels by layer", COLUMNS, tuple(rows),
        (*METHOD, *dict.fromkeys(notes)),
    )  # fmt: skip
    return [*write_table(table, options), *write_figure(NAME, grid, options)]


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
        states = split_states(stage.encoder, task.kind, data.dev)
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
    return (
        Panel(title, "bits", tuple(upper), (0.0, 1.05 * most)),
        Panel(title, "excess of pass 1", tuple(lower)),
        rows,
        notes,
    )


def measure(states: States, labels: NDArray[np.int64]) -> LayerInformation:
    """The information of one layer's states about the labels, and about shuffles of the labels.

    Args:
        states: (examples, dim).
        labels: (examples,).
    """
    hashed = ContinuousSide(states.astype(np.float64))
    shuffle = np.random.default_rng(0)
    orders = [shuffle.permutation(len(labels)) for _ in range(SHUFFLES)]
    others = tuple(information(hashed, DiscreteSide(labels[order])) for order in orders)
    return LayerInformation(information(hashed, DiscreteSide(labels)), others)


def _row(
    encoder_name: str, task: str, stage: str, layer: int | None, measured: LayerInformation, most: float
) -> tuple[Value, ...]:  # fmt: skip
    mean, deviation = measured.chance
    worst = max(one.bits for one in measured.shuffled)
    bits, first_pass = measured.estimate.bits, measured.estimate.first_pass
    return encoder_name, task, stage, layer, bits, worst, first_pass, mean, deviation, measured.excess, most


ANALYSIS = Analysis(NAME, "figure 2: mutual information of each layer's states and the labels (EDGE), with checks", run)
