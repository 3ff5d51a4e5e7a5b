"""P1, figure 1: the dev score of a linear model on each layer's states, of the pretrained and fine-tuned encoder.

For each encoder, task and layer, a linear model is fitted to the mean states of train and scored on dev. The paper used
CoLA, SST-2, MRPC and STS-B.
"""

from __future__ import annotations

from pathlib import Path

from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Line, Panel, Score, Value, figures, points
from meltpoint.reports.analyses.core.states import MAX_PIECES, constant, load_inputs, probe, split_states, stages
from meltpoint.tasks.core.scoring import axis_name, scale
from meltpoint.tasks.core.task import TrainingData
from meltpoint.tasks.core.wording import counted, some

NAME = "diagnostic_classifiers"
COLUMNS = (
    Column("encoder"), Column("task"), Column("metric"), Column("stage"), figures("layer", "d"), points("dev"),
    points("constant"),
)  # fmt: skip
METHOD = (
    "A linear model on the mean state of each example at each layer (0 is the embeddings), fitted to train, scored on "
    "dev with the task's metric, ×100 unless it is an error. Logistic regression (L2, C = 1) on states scaled on "
    "train; linear regression for scores.",
    "`constant` is the score of always predicting train's most frequent label (the mean label for regression).",
    f"Inputs of at most {MAX_PIECES} word pieces; means over all real positions, special tokens too; pairs "
    "read jointly if the encoder can.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Fit every layer of every encoder, task and stage; write the table and the figure.

    Raises:
        ValueError: see `states.load_inputs`.
    """
    inputs, notes = load_inputs(options, with_finalists=True)
    found = [_curves(options, encoder_name, data) for encoder_name, data in inputs]
    rows = tuple(row for _, own, _ in found for row in own)
    notes += [note for *_, own in found for note in own]
    title = "Diagnostic classifiers by layer"
    table = AnalysisTable(NAME, title, COLUMNS, rows, (*METHOD, *dict.fromkeys(notes)))
    return [*write_table(table, options), *write_figure(NAME, options, [panel for panel, *_ in found])]


def _curves(
    options: AnalysisOptions, encoder_name: str, data: TrainingData
) -> tuple[Panel, list[tuple[Value, ...]], list[str]]:
    """The panel, rows and notes of one encoder on one task."""
    task, notes = data.task, [_data_note(data)]
    lines: list[Line] = []
    rows: list[tuple[Value, ...]] = []
    train_labels, dev_labels = ([example.label for example in split] for split in (data.train, data.dev))
    floor = constant(task, train_labels, dev_labels)
    for stage in stages(options, encoder_name, data):
        options.tell(f"{task.name}, {encoder_name}: reading {stage.name} states")
        train = split_states(stage.encoder, task, data.train)
        dev = split_states(stage.encoder, task, data.dev)
        scores = tuple(probe(task, train[n], train_labels, dev[n], dev_labels) for n in range(len(train)))
        rows += [
            (encoder_name, task.name, task.metric, stage.name, n, *Score.each((value, floor), task.metric))
            for n, value in enumerate(scores)
        ]
        lines.append(Line(stage.name, tuple(scale(task.metric) * value for value in scores)))
        notes.append(f"{task.name}, {stage.note}.")
    lines.append(Line("constant", (scale(task.metric) * floor,) * len(lines[0].y), is_reference=True))
    return Panel(f"{task.name}, {encoder_name}", axis_name(task.metric), tuple(lines)), rows, notes


def _data_note(data: TrainingData) -> str:
    sizes = f"{counted(len(data.train))} training and {some(len(data.dev), 'dev example')}"
    return f"Data of {data.task.name}: {'; '.join([sizes, *data.notes])} (fingerprint {data.fingerprint})."
