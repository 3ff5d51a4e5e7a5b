"""Each mode's score over sizes of train (`--train-sizes`): a table, a figure, and where the lead changes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Line, Panel, Score, Value, figures, points
from meltpoint.reports.findings import SizeCurve, curves_of, size_lines
from meltpoint.reports.formats import title
from meltpoint.reports.results import results_of
from meltpoint.tasks.core.scoring import axis_name, scale

NAME = "sizes"
COLUMNS = (
    Column("encoder"), Column("task"), figures("train", "d"), Column("mode"), Column("split"), points("score"),
    points("std"), figures("seeds", "d"),
)  # fmt: skip
METHOD = (
    "Each sample of train contains the smaller ones and keeps the classes' shares; every size is searched by itself.",
    "The lead changes between two sizes if one mode is surely better at the smaller and the other at the larger one "
    "(adjusted p < 0.05). Bands are one standard deviation over seeds.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table and the figure.

    Raises:
        ValueError: the sweep has no task with scores at several sizes.
    """
    sweep = options.needed_sweep(NAME)
    curves = curves_of(options.chosen_cells(NAME))
    if not curves:
        raise ValueError(f"Sweep '{sweep.name}' has scores at one size only; sweep with --train-sizes 64,256,1024,all.")
    table = AnalysisTable(
        NAME, f"Scores over sizes of train, sweep {sweep.name}", COLUMNS,
        tuple(row for curve in curves for row in _rows(curve)), (*size_lines(results_of(sweep)), *METHOD),
    )  # fmt: skip
    return [*write_table(table, options), *write_figure(NAME, options, [*map(_panel, curves)])]


def _rows(curve: SizeCurve) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    scores = {(size, mode): over for mode in curve.cells for size, over in curve.scores(mode)}
    for size, mode in product(curve.sizes, curve.cells):
        if over := scores.get((size, mode)):
            split = "test" if curve.cells[mode][size].test else "dev"
            shown = Score.each((over.mean, over.std), curve.metric)
            rows.append((curve.encoder, curve.task, size, title(mode), split, *shown, over.count))
    return rows


def _panel(curve: SizeCurve) -> Panel:
    factor, lines = scale(curve.metric), []
    for mode in curve.cells:
        x, scores = zip(*curve.scores(mode), strict=True)
        error = tuple(factor * (over.std or 0.0) for over in scores)
        lines.append(Line(mode, tuple(factor * over.mean for over in scores), error, x=x))
    return Panel(f"{curve.task}, {curve.encoder}", axis_name(curve.metric), tuple(lines), x_name="training examples")
