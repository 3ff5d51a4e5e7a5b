"""P1, figure 1: what a linear model reads off each layer, of the encoder as pretrained and as fine-tuned.

For each encoder and task: the mean states of train and dev at every layer, a linear model fitted to train, its score on
dev. The paper took CoLA, SST-2, MRPC and STS-B.
"""

from __future__ import annotations

from pathlib import Path

from meltpoint.reports.analyses.core.analysis import Analysis, Options, write_figure, write_table
from meltpoint.reports.analyses.core.figures import Line, Panel, in_rows
from meltpoint.reports.analyses.core.probes import constant, probe
from meltpoint.reports.analyses.core.states import MAX_PIECES, opened, split_states, stages
from meltpoint.reports.analyses.core.tables import Column, Table, Value, figures, points
from meltpoint.tasks.core.counts import counted, some
from meltpoint.tasks.core.task import TrainingData

NAME = "diagnostic_classifiers"
COLUMNS = (
    Column("encoder"), Column("task"), Column("metric"), Column("stage"), figures("layer", "d"), points("dev"),
    points("constant"),
)  # fmt: skip
METHOD = (
    "A linear model on the mean state of each example at each layer (0 is the embeddings), fitted to train, scored on "
    "dev with the task's metric, ×100. Logistic regression (L2, C = 1) on states scaled on train; linear regression "
    "for scores.",
    "`constant` is the score of always saying train's most frequent label (its mean, for scores).",
    f"Inputs of at most {MAX_PIECES} word pieces; means over all real positions, special tokens too; pairs "
    "read jointly where the encoder can.",
)


def run(options: Options) -> list[Path]:
    """Fit every layer of every encoder, task and stage; write the table and the figure.

    Raises:
        ValueError: see `states.opened`.
    """
    rows: list[tuple[Value, ...]] = []
    panels: list[Panel] = []
    found, notes = opened(options)
    for word, data in found:
        panel, own, said = _curves(options, word, data)
        panels.append(panel)
        rows += own
        notes += said
    table = Table(NAME, "Diagnostic classifiers by layer", COLUMNS, tuple(rows), (*METHOD, *dict.fromkeys(notes)))
    return [*write_table(table, options), *write_figure(NAME, in_rows(panels), options)]


def _curves(options: Options, word: str, data: TrainingData) -> tuple[Panel, list[tuple[Value, ...]], list[str]]:
    """One encoder on one task: its panel, its rows, and what must be said of them."""
    task, notes = data.task, [_data_note(data)]
    lines: list[Line] = []
    rows: list[tuple[Value, ...]] = []
    gold, wanted = [example.label for example in data.train], [example.label for example in data.dev]
    floor = constant(task, gold, wanted)
    for stage in stages(options, word, data):
        options.tell(f"{task.name}, {word}: reading {stage.name} states")
        train = split_states(stage.encoder, task.kind, data.train)
        dev = split_states(stage.encoder, task.kind, data.dev)
        scores = tuple(probe(task, train[n], gold, dev[n], wanted) for n in range(len(train)))
        rows += [(word, task.name, task.metric, stage.name, n, own, floor) for n, own in enumerate(scores)]
        lines.append(Line(stage.name, tuple(100 * own for own in scores)))
        notes.append(f"{task.name}, {stage.note}.")
    lines.append(Line("constant", (100 * floor,) * len(lines[0].y), is_reference=True))
    return Panel(f"{task.name}, {word}", f"{task.metric} × 100", tuple(lines)), rows, notes


def _data_note(data: TrainingData) -> str:
    sizes = f"{counted(len(data.train))} training and {some(len(data.dev), 'dev example')}"
    return f"Data of {data.task.name}: {'; '.join([sizes, *data.notes])} (fingerprint {data.fingerprint})."


ANALYSIS = Analysis(NAME, "figure 1: linear models on each layer's states, pretrained against fine-tuned", run)
