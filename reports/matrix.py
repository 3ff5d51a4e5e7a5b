"""The ❄/🔥 table as values: which mode is better on which task, and by how much; it is rendered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from meltpoint.adapters.settings import CONSTANT, SCHEDULE
from meltpoint.reports.differences import (
    EnsembleOf,
    ModeVariant,
    RowPair,
    Split,
    difference,
    over_seeds,
    pair_title,
    side_title,
)
from meltpoint.reports.ensembles import heading, is_current, reservations
from meltpoint.reports.formats import NOTHING, difference_text, spread_text
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.code_versions import mixture_in_words
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.closing import Closing
from meltpoint.tasks.core.counts import some

FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"
DIFFERENCES = ((TUNED, FROZEN), (STACKED, TUNED))
"""(minuend, subtrahend): those of Peters, Ruder & Smith 2019, table 2, and of arXiv 1907.05338."""

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
AT_CAP = "the best epoch of a seed is the last that `epochs` allows: more may score higher"


@dataclass(frozen=True)
class TableEntry:
    """One entry of the table.

    Attributes:
        text: the score, without footnote marks.
        split: the split of the score; None without a score.
        mean: the score as a fraction; None without a score.
        reasons: the reasons why it is not a test score over all seeds.
        notes: the numbers of the footnotes with these reasons.
        is_best: True if it is the best of its column.
    """

    text: str = NOTHING
    split: Split | None = None
    mean: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[int, ...] = ()
    is_best: bool = False

    @property
    def label(self) -> str:
        """The score, prefixed with `dev` if it is not a test score."""
        return f"dev {self.text}" if self.split == "dev" else self.text


@dataclass(frozen=True)
class TableRow:
    """A row of the table: a mode (and variant), an ensemble, the difference of two modes, or a paper's numbers.

    Attributes:
        title: the mode's symbol and name, `ensemble`, or `Δ 🔥 − ❄`.
        head: the head of its cells; empty for an ensemble and for a difference.
        of: the key of the row: a mode and variant, or a pair of them; None for an ensemble.
        is_paper: True if its numbers are a paper's.
    """

    title: str
    head: str
    entries: tuple[TableEntry, ...]
    of: ModeVariant | RowPair | None
    is_paper: bool = False


@dataclass(frozen=True)
class EncoderBlock:
    """The table of one encoder: rows of modes, ensembles and differences; one column per (task, metric).

    A task's own metric comes first; the metrics beside it (`Task.beside`) follow.
    """

    encoder: str
    tasks: tuple[tuple[str, str], ...]
    modes: tuple[TableRow, ...]
    differences: tuple[TableRow, ...]
    ensembles: tuple[TableRow, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """The tables of all encoders, and the footnotes, numbered from 1."""

    blocks: tuple[EncoderBlock, ...]
    footnotes: tuple[str, ...] = field(default=())


def matrix(summary: SweepSummary, split: Split = "test", pairs: Sequence[RowPair] = ()) -> Matrix:
    """The ❄/🔥 table of a sweep, also while it is running.

    Args:
        split: "dev" to show dev even if there are test scores.
        pairs: further differences to show, if the sweep has both rows.
    """
    footnotes: dict[str, int] = {}
    encoders = dict.fromkeys(cell.header.encoder for cell in summary.cells)
    blocks = [_with_ensembles(_block(summary, encoder, split, pairs), summary, split) for encoder in encoders]
    for name in dict.fromkeys(heading(made) for made in summary.ensembles):
        if name not in encoders:
            tasks = dict.fromkeys((made.task, made.metric) for made in summary.ensembles if heading(made) == name)
            blocks.append(_with_ensembles(EncoderBlock(name, tuple(tasks), (), ()), summary, split))
    return Matrix(tuple(_numbered(block, footnotes) for block in blocks), tuple(footnotes))


Comparable = Mapping[tuple[ModeVariant | EnsembleOf, str], CellSummary | Ensemble]
"""(row key, task) → a cell, or an ensemble of cells, of one encoder."""


def _block(summary: SweepSummary, encoder: str, split: Split, pairs: Sequence[RowPair]) -> EncoderBlock:
    encoder_cells = [cell for cell in summary.cells if cell.header.encoder == encoder]
    cells = {(ModeVariant(cell.header.mode, cell.header.variant), cell.header.task): cell for cell in encoder_cells}
    columns = _columns(encoder_cells)
    sides = list(dict.fromkeys(side for side, _ in cells))
    rows = []
    for side in sides:
        row_cells = [cells.get((side, task)) for task, _ in columns]
        head = " or ".join(dict.fromkeys(cell.header.head for cell in row_cells if cell))
        shown = [_show(cell, metric, summary, split) for cell, (_, metric) in zip(row_cells, columns, strict=True)]
        rows.append(TableRow(side_title(side), head, tuple(shown), side))
    variants = list(dict.fromkeys(side.variant for side in sides))
    usual = [
        RowPair(ModeVariant(upper, name), ModeVariant(lower, name)) for upper, lower in DIFFERENCES for name in variants
    ]
    comparable: dict[tuple[ModeVariant | EnsembleOf, str], CellSummary | Ensemble] = {}
    comparable.update(cells.items())
    comparable.update(_ensembles_by_members(summary, encoder).items())
    keys = {key for key, _ in comparable}
    chosen = [pair for pair in dict.fromkeys([*usual, *pairs]) if {pair.upper, pair.lower} <= keys]
    differences = [_difference_row(comparable, pair, columns, split) for pair in chosen]
    return EncoderBlock(encoder, columns, _with_best(rows), tuple(differences))


def _columns(cells: Sequence[CellSummary]) -> tuple[tuple[str, str], ...]:
    """(task, metric) per column: each task's own metric, then the others that its table shows."""
    heads = [cell.header for cell in cells]
    own = dict.fromkeys((head.task, head.metric) for head in heads)
    beside = [(head.task, name) for head in heads for name in head.beside if name != head.metric]
    each = (((task, metric), *(other for other in beside if other[0] == task)) for task, metric in own)
    return tuple(dict.fromkeys(column for columns in each for column in columns))


def own_columns(columns: Sequence[tuple[str, str]]) -> list[bool]:
    """For each column, whether it is the first of its task: that of the task's own metric."""
    tasks = [task for task, _ in columns]
    return [task not in tasks[:place] for place, task in enumerate(tasks)]


def _ensembles_by_members(summary: SweepSummary, encoder: str) -> Mapping[tuple[EnsembleOf, str], Ensemble]:
    """(members, task) → the ensemble of these cells of an encoder in this sweep, if their finalists are the same."""
    return {
        (EnsembleOf(frozenset(ModeVariant(member.mode, member.variant) for member in made.members)), made.task): made
        for made in summary.ensembles
        if made.encoders == (encoder,) and is_current(made, summary)
        and all(member.sweep == summary.name for member in made.members)
    }  # fmt: skip


def _difference_row(cells: Comparable, pair: RowPair, columns: Sequence[tuple[str, str]], split: Split) -> TableRow:
    shown = []
    for (task, metric), is_own in zip(columns, own_columns(columns), strict=True):
        upper, lower = cells.get((pair.upper, task)), cells.get((pair.lower, task))
        result = None
        if upper and isinstance(lower, CellSummary) and (is_own or not pair.metric):
            result = difference(upper, lower, split, pair.metric or metric)
        text = difference_text(result.mean, result.error) if result else NOTHING
        shown.append(TableEntry(text, result.split, result.mean) if result else TableEntry())
    return TableRow(pair_title(pair), "", tuple(shown), pair)


def _show(cell: CellSummary | None, metric: str, summary: SweepSummary, wanted: Split) -> TableEntry:
    """A cell's score; the reasons stand at its own metric's, which is the column before."""
    is_own = cell is None or cell.header.metric == metric
    if cell is None or cell.dev is None:
        reason = "not part of the sweep" if cell is None else missing(cell, summary)
        return TableEntry(reasons=(reason,) if is_own else ())
    split: Split = "test" if cell.test and wanted == "test" else "dev"
    over = over_seeds(cell, split, metric)
    reasons = tuple(_reservations(cell, summary, wanted)) if is_own else ()
    return TableEntry(spread_text(over), split, over.mean, reasons) if over else TableEntry(reasons=reasons)


def missing(cell: CellSummary, summary: SweepSummary) -> str:
    """The reason why a cell has no score."""
    counts, is_running = cell.counts, summary.state == "running"
    if cell.best is None:
        if counts["failed"] and counts["failed"] >= counts["planned"]:
            return "every trial failed"
        ended = counts["running"] + counts["missing"] == 0
        return "running: no trial has finished yet" if is_running and not ended else "no trial finished"
    return "running: no seed of the best setting has finished yet" if is_running else "cut off before its finals"


def _reservations(cell: CellSummary, summary: SweepSummary, wanted: Split) -> list[str]:
    """The reasons why a cell's score is not a test score over all seeds of a complete search."""
    reasons, finals = [], cell.finals
    if wanted == "dev":
        pass
    elif cell.test is None:
        unscored = any(final.test is None for final in finals)
        hidden = any("test labels hidden" in note for note in cell.header.notes)
        reasons.append(HIDDEN if hidden else UNSCORED if unscored else NO_TEST)
    elif cell.test.count < len(finals):
        reasons.append(f"{cell.test.count} of {some(len(finals), 'seed')} scored on test")
    if len(finals) < summary.seeds_of(cell):
        reasons.append(f"{len(finals)} of {some(summary.seeds_of(cell), 'seed')} finished")
    if cell.closed_early:
        reasons.append(searched_less(cell.closed_early))
    if len(summary.code_versions) > 1:
        reasons.append(codes_of(cell))
    if any(map(ends_at_best, finals)):
        reasons.append(AT_CAP)
    return reasons


def ends_at_best(record: TrialRecord) -> bool:
    """True where a constant rate's best epoch is the last that `epochs` allows.

    A schedule that ends with the last epoch is expected to be best there, so that it says nothing.
    """
    is_constant = record.setting.get(SCHEDULE, CONSTANT) == CONSTANT
    return is_constant and bool(record.epochs) and record.best_epoch == record.epochs[-1].epoch


def codes_of(cell: CellSummary) -> str:
    """The versions of Meltpoint's code that ran a cell's trials, in a sweep that has trials of several."""
    if cell.mixes_code:
        return mixture_in_words(cell.code_uses, cell.best)
    return f"all its trials are of Meltpoint's code {cell.code_uses[0].version}, other cells are of others"


def searched_less(closing: Closing) -> str:
    """The note that a cell's search ended before all its trials were run."""
    return f"its search ended after {closing}"


def _with_best(rows: list[TableRow]) -> tuple[TableRow, ...]:
    """The rows, with the best entry of each column marked."""
    columns = [_column_with_best(column) for column in zip(*(row.entries for row in rows), strict=True)]
    return tuple(replace(row, entries=tuple(column[place] for column in columns)) for place, row in enumerate(rows))


def _column_with_best(column: Sequence[TableEntry]) -> list[TableEntry]:
    means = [shown.mean for shown in column if shown.mean is not None]
    if len(means) < 2 or len({shown.split for shown in column if shown.split}) > 1:
        return list(column)
    return [replace(shown, is_best=shown.mean == max(means)) for shown in column]


def _numbered(block: EncoderBlock, footnotes: dict[str, int]) -> EncoderBlock:
    """The block with its reasons as footnotes; equal reasons share a footnote."""
    modes, ensembles = (tuple(numbered(row, footnotes) for row in rows) for rows in (block.modes, block.ensembles))
    return replace(block, modes=modes, ensembles=ensembles)


def numbered(row: TableRow, footnotes: dict[str, int]) -> TableRow:
    """A row with its reasons as footnotes; new ones are added to `footnotes`."""

    def marked(shown: TableEntry) -> TableEntry:
        return replace(shown, notes=tuple(footnotes.setdefault(reason, len(footnotes) + 1) for reason in shown.reasons))

    return replace(row, entries=tuple(map(marked, row.entries)))


def _with_ensembles(block: EncoderBlock, summary: SweepSummary, wanted: Split) -> EncoderBlock:
    """The block with a row for the first ensemble of each of its tasks, one for the second, and so on."""
    ensembles = [made for made in summary.ensembles if heading(made) == block.encoder]
    columns = [
        [_show_ensemble(made, metric, summary, wanted) for made in ensembles if made.task == task]
        for task, metric in block.tasks
    ]
    rows = [
        TableRow("ensemble" if place == 0 else f"ensemble {place + 1}", "", shown, None)
        for place, shown in enumerate(zip_longest(*columns, fillvalue=TableEntry()))
    ]
    return replace(block, ensembles=tuple(rows))


def _show_ensemble(made: Ensemble, metric: str, summary: SweepSummary, wanted: Split) -> TableEntry:
    split: Split = "test" if made.test and wanted == "test" else "dev"
    over = made.spread(split, metric)
    reasons = tuple(reservations(made, summary)) if metric == made.metric else ()
    return TableEntry(spread_text(over), split, over.mean, reasons) if over else TableEntry(reasons=reasons)
