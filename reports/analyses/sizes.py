"""Each mode's score over sizes of train (`--train-sizes`): a table, a figure, and where the lead changes."""

from __future__ import annotations

from pathlib import Path

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.output import (
    AnalysisTable,
    Column,
    Line,
    Panel,
    Score,
    Value,
    figures,
    in_rows,
    points,
)
from meltpoint.reports.findings import SizeCurve, curves_of, size_lines
from meltpoint.reports.formats import title
from meltpoint.reports.results import results_of
from meltpoint.reports.table_values import Split
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
    split: Split = "dev" if sweep.spec.split == "dev" else "test"
    rows = [row for curve in curves for row in _rows(curve, split)]
    table = AnalysisTable(
        NAME, f"Scores over sizes of train, sweep {sweep.name}", COLUMNS, tuple(rows),
        (*size_lines(results_of(sweep)), *METHOD),
    )  # fmt: skip
    panels = [_panel(curve, split) for curve in curves]
    return [*write_table(table, options), *write_figure(NAME, in_rows(panels), options)]


def _rows(curve: SizeCurve, split: Split) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for size in curve.sizes:
        for mode, cells in curve.cells.items():
            if size in cells:
                cell = cells[size]
                shown: Split = "test" if split == "test" and cell.test is not None else "dev"
                over = cell.test if shown == "test" else cell.dev
                assert over is not None, "a curve has cells with scores"
                score, std = Score.each((over.mean, over.std), cell.header.metric)
                rows.append((curve.encoder, curve.task, size, title(mode), shown, score, std, over.count))
    return rows


def _panel(curve: SizeCurve, split: Split) -> Panel:
    metric = next(iter(next(iter(curve.cells.values())).values())).header.metric
    factor, lines = scale(metric), []
    for mode, cells in curve.cells.items():
        x = tuple(size for size in curve.sizes if size in cells)
        shown = [
            cells[size].test if split == "test" and cells[size].test is not None else cells[size].dev for size in x
        ]
        spreads = [over for over in shown if over is not None]
        error = tuple(factor * (over.std or 0.0) for over in spreads)
        lines.append(Line(mode, tuple(factor * over.mean for over in spreads), error, x=x))
    return Panel(f"{curve.task}, {curve.encoder}", axis_name(metric), tuple(lines), x_name="training examples")


ANALYSIS = Analysis(NAME, "each mode's score over --train-sizes, and where the lead changes", run)
