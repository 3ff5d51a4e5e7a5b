"""Scores over sizes of train: which mode leads at each size, and between which sizes the lead changes.

Sizes come from `--train-sizes`, or from any variants of a cell that train on different numbers of examples. Two modes
change places between two sizes only if one is surely better at the smaller and the other at the larger one (adjusted
p < 0.05). Nothing is said about sizes that were not trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
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
from meltpoint.reports.formats import listed, symbol, title
from meltpoint.reports.results import SweepResults, results_of
from meltpoint.reports.table_values import Delta, Split, place_of
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.scoring import axis_name, scale
from meltpoint.tasks.core.wording import counted


@dataclass(frozen=True)
class SizeCurve:
    """One encoder's cells of a task, by size of train.

    Attributes:
        sizes: the sizes, ascending.
        cells: mode → its cell at each size that it was trained on.
    """

    encoder: str
    task: str
    sizes: tuple[int, ...]
    cells: dict[str, dict[int, CellSummary]]

    def scores(self, mode: str) -> list[tuple[int, Spread]]:
        """A mode's score at each of its sizes: on test where the cell has been scored on it, else on dev."""
        found = ((size, self.cells[mode][size]) for size in self.sizes if size in self.cells[mode])
        known = ((size, cell.test or cell.dev) for size, cell in found)
        return [(size, score) for size, score in known if score is not None]


def curves_of(cells: Sequence[CellSummary]) -> list[SizeCurve]:
    """The curves of a sweep: encoder × task with scores at several sizes of train."""
    groups: dict[tuple[str, str], dict[str, dict[int, CellSummary]]] = {}
    for cell in cells:
        head = cell.header
        if cell.dev is not None:
            modes = groups.setdefault((head.encoder, head.task), {})
            modes.setdefault(head.mode, {})[head.train_examples] = cell
    found = []
    for (encoder, task), modes in groups.items():
        sizes = tuple(sorted({size for of_mode in modes.values() for size in of_mode}))
        if len(sizes) > 1:
            found.append(
                SizeCurve(encoder, task, sizes, dict(sorted(modes.items(), key=lambda item: place_of(item[0]))))
            )
    return found


LEVEL = "cannot be told apart at any size"


def size_lines(results: SweepResults) -> list[str]:
    """For each curve, where the lead changes between two modes: one sentence a pair, and one for all level pairs."""
    lines = []
    for curve in curves_of(results.summary.cells):
        said = [crossing(curve, *pair, results.table.deltas) for pair in combinations(curve.cells, 2)]
        level = sum(LEVEL in sentence for sentence in said)
        if level > 1:
            said = [sentence for sentence in said if LEVEL not in sentence]
            rest = f"{counted(level)} other pairs of modes {LEVEL}."
            said = [*said, rest] if said else ["no two modes can be told apart at any size."]
        lines += [f"{curve.task}, {curve.encoder}: {sentence}" for sentence in said]
    return lines


def crossing(curve: SizeCurve, lower: str, upper: str, deltas: Sequence[Delta]) -> str:
    """The mode of two that is surely better at each size, as a sentence."""
    ahead = {mode: [size for size in curve.sizes if surely_ahead(curve, size, deltas, lower, upper) == mode]
             for mode in (lower, upper)}  # fmt: skip
    names = {mode: symbol(mode) for mode in (lower, upper)}
    for first, second in ((lower, upper), (upper, lower)):
        if ahead[first] and ahead[second] and max(ahead[first]) < min(ahead[second]):
            between = f"{counted(max(ahead[first]))} and {counted(min(ahead[second]))} examples"
            return f"{names[second]} overtakes {names[first]} between {between}."
    if ahead[lower] and ahead[upper]:
        return f"{names[lower]} and {names[upper]} change places more than once; see the table."
    for mode, other in ((lower, upper), (upper, lower)):
        if ahead[mode]:
            at = (
                "each size" if len(ahead[mode]) == len(curve.sizes) else f"{listed(map(counted, ahead[mode]))} examples"
            )
            rest = "" if len(ahead[mode]) == len(curve.sizes) else "; elsewhere they cannot be told apart"
            return f"{names[mode]} is better than {names[other]} at {at}{rest}."
    return f"{names[lower]} and {names[upper]} {LEVEL}."


def surely_ahead(curve: SizeCurve, size: int, deltas: Sequence[Delta], lower: str, upper: str) -> str | None:
    """The mode that is surely better at a size; None if neither is, or if they were not compared there."""
    cells = [curve.cells[mode].get(size) for mode in (lower, upper)]
    keys = [cell.header.key for cell in cells if cell is not None]
    for delta in deltas:
        known = delta.comparison
        if len(keys) == 2 and delta.in_family and {known.upper, known.lower} == set(keys):
            better = known.upper if known.gain > 0 else known.lower
            return better[1] if known.is_claimed else None
    return None


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
