"""The types of the ❄/🔥 table: entries, rows, an encoder's block, and the comparisons behind them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from meltpoint.reports.differences import ModeVariant, RowPair, Split
from meltpoint.reports.statistics.comparison import Comparison
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.score_words import NOTHING

STAR = "★"
"""Marks the score of a task's recommended mode; a pipe keeps it."""


@dataclass(frozen=True)
class TableEntry:
    """One entry of the table.

    Attributes:
        text: the score, without footnote marks.
        split: the split of the score; None without a score.
        mean: the score as a fraction; None without a score.
        reasons: the reasons why it is not a test score over all seeds, or why a difference has no interval.
        notes: the numbers of the footnotes with these reasons.
        is_recommended: True of the task's recommended cell.
    """

    text: str = NOTHING
    split: Split | None = None
    mean: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[int, ...] = ()
    is_recommended: bool = False

    @property
    def label(self) -> str:
        """The score, prefixed with `dev` if it is not a test score, and with a star if it is recommended."""
        text = f"dev {self.text}" if self.split == "dev" else self.text
        return f"{STAR} {text}" if self.is_recommended else text


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
class Delta:
    """A comparison of two rows of an encoder's table, in one column.

    Attributes:
        title: `Δ 🔥 − ❄`.
        comparison: of the two rows' cells.
        in_family: True if its p-value is adjusted: it is by the task's own metric, and not another's repetition.
    """

    title: str
    comparison: Comparison
    in_family: bool = False

    @property
    def encoder(self) -> str:
        """The encoder of both cells."""
        return self.comparison.upper[0]

    @property
    def task(self) -> str:
        """The task of both cells."""
        return self.comparison.upper[2]


@dataclass(frozen=True)
class EncoderBlock:
    """The table of one encoder: rows of modes, ensembles and differences; one column per (task, metric).

    The row of baselines stands among the ensembles, which it is like: without a mode.

    A task's own metric comes first; the metrics beside it (`Task.beside`) follow. `deltas` are not adjusted yet.
    """

    encoder: str
    tasks: tuple[tuple[str, str], ...]
    modes: tuple[TableRow, ...]
    differences: tuple[TableRow, ...]
    ensembles: tuple[TableRow, ...] = ()
    deltas: tuple[Delta, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """The tables of all encoders.

    Attributes:
        footnotes: numbered from 1.
        deltas: the comparisons behind the tables, those of the Holm family with adjusted p-values.
    """

    blocks: tuple[EncoderBlock, ...]
    footnotes: tuple[str, ...] = ()
    deltas: tuple[Delta, ...] = ()


def own_columns(columns: Sequence[tuple[str, str]]) -> list[bool]:
    """For each column, whether it is the first of its task: that of the task's own metric."""
    tasks = [task for task, _ in columns]
    return [task not in tasks[:place] for place, task in enumerate(tasks)]


def starred(table: Matrix, winners: Collection[CellKey]) -> Matrix:
    """A table whose recommended cells are marked, in the columns of their tasks' own metrics."""

    def marked(row: TableRow, block: EncoderBlock) -> TableRow:
        if not isinstance(row.of, ModeVariant) or row.is_paper:
            return row
        places = zip(row.entries, block.tasks, own_columns(block.tasks), strict=True)
        rest = [row.of.variant] if row.of.variant else []
        keys = [(block.encoder, row.of.mode, task, *rest) if is_own else () for _, (task, _), is_own in places]
        entries = (replace(shown, is_recommended=key in winners) for shown, key in zip(row.entries, keys, strict=True))
        return replace(row, entries=tuple(entries))

    blocks = (replace(one, modes=tuple(marked(row, one) for row in one.modes)) for one in table.blocks)
    return replace(table, blocks=tuple(blocks))


def numbered(row: TableRow, footnotes: dict[str, int]) -> TableRow:
    """A row with its reasons as footnotes; new ones are added to `footnotes`."""

    def marked(shown: TableEntry) -> TableEntry:
        return replace(shown, notes=tuple(footnotes.setdefault(reason, len(footnotes) + 1) for reason in shown.reasons))

    return replace(row, entries=tuple(map(marked, row.entries)))
