"""The ❄/🔥 table as values: which mode does better on which task, and by how much. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from meltpoint.reports.differences import Pair, Side, Split, difference, pair_title, side_title
from meltpoint.reports.ensembles import heading, reservations
from meltpoint.reports.formats import NOTHING, difference_text, spread_text
from meltpoint.sweeps.results.code_versions import mixture_in_words
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.closing import Closing
from meltpoint.tasks.core.counts import some

FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"
DIFFERENCES = ((TUNED, FROZEN), (STACKED, TUNED))
"""(minuend, subtrahend): Peters, Ruder & Smith 2019, table 2, and what arXiv 1907.05338 adds to it."""

SPREAD_NOTE = (
    "Figures are ×100 (correlations too): the mean ± the sample standard deviation over seeds, on test unless marked "
    "`dev`. One seed has no deviation."
)
DIFFERENCE_NOTE = (
    "Δ is the difference of two means on the same split; its ± is the standard error of that difference, "
    "sqrt(s1²/n1 + s2²/n2), shown where both have two seeds or more. It covers the seeds, not the choice of examples."
)
BOLD_NOTE = (
    "Bold is the highest mean of a task among one encoder's modes, where at least two modes are scored and all on the "
    "same split. Whether a lead is more than chance, Δ and its ± say."
)
HIDDEN = "the test labels are hidden; dev is shown"
NO_TEST = "there is no labelled test; dev is shown"
UNSCORED = "not scored on test yet; dev is shown"


@dataclass(frozen=True)
class Shown:
    """One entry of the table.

    Attributes:
        text: the figure, without marks.
        split: what it is of; None where there is no figure.
        mean: the figure as a fraction; None where there is none.
        reasons: why it is not a plain test score over every seed.
        notes: the numbers of the footnotes that say so.
        is_best: whether it leads its column.
    """

    text: str = NOTHING
    split: Split | None = None
    mean: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[int, ...] = ()
    is_best: bool = False

    @property
    def label(self) -> str:
        """The figure, and `dev` before it where it is not of test."""
        return f"dev {self.text}" if self.split == "dev" else self.text


@dataclass(frozen=True)
class Row:
    """One mode (and variant), an ensemble, the difference of two modes, or what a paper says of any of them.

    Attributes:
        title: the symbol and the name, `ensemble`, or `Δ 🔥 − ❄`.
        head: the head of its cells; empty for an ensemble and for a difference.
        of: the side or the pair that it is of; None for an ensemble.
        is_paper: whether its figures are a paper's.
    """

    title: str
    head: str
    shown: tuple[Shown, ...]
    of: Side | Pair | None
    is_paper: bool = False


@dataclass(frozen=True)
class Block:
    """One encoder's table: rows of modes, ensembles, differences; a column for each of `tasks`, (name, metric)."""

    encoder: str
    tasks: tuple[tuple[str, str], ...]
    modes: tuple[Row, ...]
    differences: tuple[Row, ...]
    ensembles: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """The whole table and its footnotes, the first of which has the number 1."""

    blocks: tuple[Block, ...]
    footnotes: tuple[str, ...] = field(default=())


def matrix(summary: SweepSummary, split: Split = "test", pairs: Sequence[Pair] = ()) -> Matrix:
    """The ❄/🔥 table of a sweep, whatever has finished so far.

    Args:
        split: "dev" shows dev also where there are test scores.
        pairs: differences to show beside the usual ones, where the sweep has both sides.
    """
    footnotes: dict[str, int] = {}
    encoders = dict.fromkeys(cell.header.encoder for cell in summary.cells)
    blocks = [_with_ensembles(_block(summary, encoder, split, pairs), summary, split) for encoder in encoders]
    for name in dict.fromkeys(heading(made) for made in summary.ensembles):
        if name not in encoders:
            tasks = dict.fromkeys((made.task, made.metric) for made in summary.ensembles if heading(made) == name)
            blocks.append(_with_ensembles(Block(name, tuple(tasks), (), ()), summary, split))
    return Matrix(tuple(_numbered(block, footnotes) for block in blocks), tuple(footnotes))


Cells = Mapping[tuple[Side, str], CellSummary]
"""(side, task) → an encoder's cell."""


def _block(summary: SweepSummary, encoder: str, split: Split, pairs: Sequence[Pair]) -> Block:
    own = [cell for cell in summary.cells if cell.header.encoder == encoder]
    cells = {(Side(cell.header.mode, cell.header.variant), cell.header.task): cell for cell in own}
    tasks = tuple(dict.fromkeys((cell.header.task, cell.header.metric) for cell in own))
    sides = list(dict.fromkeys(side for side, _ in cells))
    rows = []
    for side in sides:
        here = [cells.get((side, task)) for task, _ in tasks]
        head = " or ".join(dict.fromkeys(cell.header.head for cell in here if cell))
        rows.append(Row(side_title(side), head, tuple(_show(cell, summary, split) for cell in here), side))
    variants = list(dict.fromkeys(side.variant for side in sides))
    usual = [Pair(Side(upper, word), Side(lower, word)) for upper, lower in DIFFERENCES for word in variants]
    chosen = [pair for pair in dict.fromkeys([*usual, *pairs]) if {pair.upper, pair.lower} <= set(sides)]
    gaps = [_difference_row(cells, pair, [task for task, _ in tasks], split) for pair in chosen]
    return Block(encoder, tasks, _with_best(rows), tuple(gaps))


def _difference_row(cells: Cells, pair: Pair, tasks: Sequence[str], split: Split) -> Row:
    shown = []
    for task in tasks:
        upper, lower = (cells.get((side, task)) for side in (pair.upper, pair.lower))
        found = difference(upper, lower, split, pair.metric) if upper and lower else None
        text = difference_text(found.mean, found.error) if found else NOTHING
        shown.append(Shown(text, found.split, found.mean) if found else Shown())
    return Row(pair_title(pair), "", tuple(shown), pair)


def _show(cell: CellSummary | None, summary: SweepSummary, wanted: Split) -> Shown:
    if cell is None:
        return Shown(reasons=("not part of the sweep",))
    if cell.dev is None:
        return Shown(reasons=(missing(cell, summary),))
    over = cell.test if cell.test and wanted == "test" else cell.dev
    split: Split = "test" if over is cell.test else "dev"
    return Shown(spread_text(over), split, over.mean, tuple(_reservations(cell, summary, wanted)))


def missing(cell: CellSummary, summary: SweepSummary) -> str:
    """Why a cell has no figure."""
    counts, runs = cell.counts, summary.state == "running"
    if cell.best is None:
        if counts["failed"] and counts["failed"] >= counts["planned"]:
            return "every trial failed"
        ended = counts["running"] + counts["missing"] == 0
        return "running: no trial has finished yet" if runs and not ended else "no trial finished"
    return "running: no seed of the best setting has finished yet" if runs else "cut off before its finals"


def _reservations(cell: CellSummary, summary: SweepSummary, wanted: Split) -> list[str]:
    """What has to be said of a cell's figure."""
    found, finals = [], cell.finals
    if wanted == "dev":
        pass
    elif cell.test is None:
        unscored = any(final.test is None for final in finals)
        hidden = any("test labels hidden" in note for note in cell.header.notes)
        found.append(HIDDEN if hidden else UNSCORED if unscored else NO_TEST)
    elif cell.test.count < len(finals):
        found.append(f"{cell.test.count} of {some(len(finals), 'seed')} scored on test")
    if len(finals) < summary.seeds_of(cell):
        found.append(f"{len(finals)} of {some(summary.seeds_of(cell), 'seed')} finished")
    if cell.closed_early:
        found.append(searched_less(cell.closed_early))
    if len(summary.code_versions) > 1:
        found.append(codes_of(cell))
    return found


def codes_of(cell: CellSummary) -> str:
    """Which versions of Meltpoint's code ran a cell's trials, in a sweep that has trials of several."""
    if cell.mixes_code:
        return mixture_in_words(cell.code_uses, cell.best)
    return f"all its trials are of Meltpoint's code {cell.code_uses[0].version}, other cells are of others"


def searched_less(closing: Closing) -> str:
    """That a cell's search ended before all its trials were run."""
    return f"its search ended after {closing}"


def _with_best(rows: list[Row]) -> tuple[Row, ...]:
    """The rows with each column's leader marked."""
    columns = [_column_with_best(column) for column in zip(*(row.shown for row in rows), strict=True)]
    return tuple(replace(row, shown=tuple(column[place] for column in columns)) for place, row in enumerate(rows))


def _column_with_best(column: Sequence[Shown]) -> list[Shown]:
    means = [shown.mean for shown in column if shown.mean is not None]
    if len(means) < 2 or len({shown.split for shown in column if shown.split}) > 1:
        return list(column)
    return [replace(shown, is_best=shown.mean == max(means)) for shown in column]


def _numbered(block: Block, footnotes: dict[str, int]) -> Block:
    """The block with its reasons as footnotes; equal reasons share one."""
    modes, ensembles = (tuple(numbered(row, footnotes) for row in rows) for rows in (block.modes, block.ensembles))
    return replace(block, modes=modes, ensembles=ensembles)


def numbered(row: Row, footnotes: dict[str, int]) -> Row:
    """A row with its reasons as footnotes; new ones are added to `footnotes`."""

    def marked(shown: Shown) -> Shown:
        return replace(shown, notes=tuple(footnotes.setdefault(why, len(footnotes) + 1) for why in shown.reasons))

    return replace(row, shown=tuple(map(marked, row.shown)))


def _with_ensembles(block: Block, summary: SweepSummary, wanted: Split) -> Block:
    """The block with a row for the first ensemble of each of its tasks, one for the second, and so on."""
    here = [made for made in summary.ensembles if heading(made) == block.encoder]
    columns = [[_show_ensemble(made, summary, wanted) for made in here if made.task == task] for task, _ in block.tasks]
    rows = [
        Row("ensemble" if place == 0 else f"ensemble {place + 1}", "", shown, None)
        for place, shown in enumerate(zip_longest(*columns, fillvalue=Shown()))
    ]
    return replace(block, ensembles=tuple(rows))


def _show_ensemble(made: Ensemble, summary: SweepSummary, wanted: Split) -> Shown:
    split: Split = "test" if made.test and wanted == "test" else "dev"
    over = made.spread(split)
    reasons = tuple(reservations(made, summary))
    return Shown(spread_text(over), split, over.mean, reasons) if over else Shown(reasons=reasons)
