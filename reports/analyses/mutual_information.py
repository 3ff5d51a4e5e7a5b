"""P1, figure 2: how much each layer's mean states tell of the labels, by EDGE, as pretrained and as fine-tuned.

On the dev split, as in the paper (CoLA, SST-2, MRPC), with its sanity checks: the states against shuffled labels, and
random states against the labels. Tasks whose labels are scores are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.analyses.core.analysis import Analysis, Options, write_figure, write_table
from meltpoint.reports.analyses.core.edge import Edge, Estimate, Hashed, Named, entropy_bits, information
from meltpoint.reports.analyses.core.figures import Line, Panel, in_rows
from meltpoint.reports.analyses.core.states import States, opened, split_states, stages
from meltpoint.reports.analyses.core.tables import Column, Table, Value, figures
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.task import TrainingData

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
    f"`shuffled labels`: the most that {SHUFFLES} shuffles of the labels give. The rows `{RANDOM}` are normal noise of "
    "the states' shape, a second check. Both should be 0 (0.001 is the estimator's own 0).",
    "EDGE's second pass answers 0 to whatever its first pass finds small. `first pass` is what that found, `first "
    "pass, shuffled` and `first pass, std` its mean and standard deviation over the shuffles, and `excess` the "
    "difference: above about two standard deviations, a layer tells something of the labels even where `bits` is 0.",
    "`label entropy` is the most that there is to tell.",
)


@dataclass(frozen=True)
class Measured:
    """One layer's information about the labels, in bits.

    Attributes:
        found: the estimate.
        shuffled: the same for each shuffle of the labels.
    """

    found: Estimate
    shuffled: tuple[Estimate, ...]

    @property
    def chance(self) -> tuple[float, float]:
        """The first pass's mean and standard deviation over the shuffles."""
        first = [one.first_pass for one in self.shuffled]
        return float(np.mean(first)), float(np.std(first, ddof=1))

    @property
    def excess(self) -> float:
        """How far the first pass is above its mean over the shuffles."""
        return self.found.first_pass - self.chance[0]


def run(options: Options) -> list[Path]:
    """Measure every layer of every encoder, task and stage; write the table and the figure.

    Raises:
        ValueError: no task has labels to count, or see `states.opened`.
    """
    rows: list[tuple[Value, ...]] = []
    above: list[Panel] = []
    below: list[Panel] = []
    found, notes = opened(options)
    for word, data in found:
        if data.task.kind == "pair_regression":
            notes.append(f"{data.task.name} is left out: its labels are scores.")
            continue
        upper, lower, own, said = _curves(options, word, data)
        above.append(upper)
        below.append(lower)
        rows += own
        notes += said
    if not rows:
        raise ValueError(f"{NAME} needs a task with classes; {' '.join(notes)}")
    grid = [row for pair in zip(in_rows(above), in_rows(below), strict=True) for row in pair]
    table = Table(
        NAME, "Mutual information of states and labels by layer", COLUMNS, tuple(rows),
        (*METHOD, *dict.fromkeys(notes)),
    )  # fmt: skip
    return [*write_table(table, options), *write_figure(NAME, grid, options)]


def _curves(
    options: Options, word: str, data: TrainingData
) -> tuple[Panel, Panel, list[tuple[Value, ...]], list[str]]:  # fmt: skip
    """One encoder on one task: its panels (the estimate, the first pass's excess), its rows and notes."""
    task, edge = data.task, Edge()
    labels = np.array([example.label for example in data.dev], dtype=np.int64)
    most, rows, notes = entropy_bits(labels), [], []
    upper: list[Line] = []
    lower: list[Line] = []
    shape: tuple[int, ...] = ()
    for stage in stages(options, word, data):
        options.tell(f"{task.name}, {word}: reading {stage.name} states")
        states = split_states(stage.encoder, task.kind, data.dev)
        measured = [measure(layer, labels, edge) for layer in states]
        rows += [_row(word, task.name, stage.name, n, own, most) for n, own in enumerate(measured)]
        upper.append(Line(stage.name, tuple(own.found.bits for own in measured)))
        errors = tuple(2 * own.chance[1] for own in measured)
        lower.append(Line(stage.name, tuple(own.excess for own in measured), errors))
        notes.append(f"{task.name}, {stage.note}.")
        shape = states.shape
    noise = np.random.default_rng(0).standard_normal(shape[1:]).astype(np.float32)
    checked = measure(noise, labels, edge)
    rows.append(_row(word, task.name, RANDOM, None, checked, most))
    upper.append(Line(RANDOM, (checked.found.bits,) * shape[0], is_reference=True))
    lower.append(Line(RANDOM, (checked.excess,) * shape[0], is_reference=True))
    title = f"{task.name}, {word}"
    notes.append(f"{task.name}: {some(len(labels), 'dev example')}.")
    return (
        Panel(title, "bits", tuple(upper), (0.0, 1.05 * most)),
        Panel(title, "excess of pass 1", tuple(lower)),
        rows,
        notes,
    )


def measure(states: States, labels: NDArray[np.int64], edge: Edge) -> Measured:
    """The information of one layer's states about labels, and about shuffles of them.

    Args:
        states: (examples, dim).
        labels: (examples,).
    """
    hashed = Hashed(states.astype(np.float64), edge)
    shuffle = np.random.default_rng(0)
    orders = [shuffle.permutation(len(labels)) for _ in range(SHUFFLES)]
    others = tuple(information(hashed, Named(labels[order], edge), edge) for order in orders)
    return Measured(information(hashed, Named(labels, edge), edge), others)


def _row(word: str, task: str, stage: str, layer: int | None, own: Measured, most: float) -> tuple[Value, ...]:
    mean, deviation = own.chance
    worst = max(one.bits for one in own.shuffled)
    found = own.found
    return word, task, stage, layer, found.bits, worst, found.first_pass, mean, deviation, own.excess, most


ANALYSIS = Analysis(NAME, "figure 2: what each layer's states tell of the labels (EDGE), with its sanity checks", run)
