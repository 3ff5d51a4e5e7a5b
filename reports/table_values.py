"""Values of tables: scores of cells, and rows of their differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from meltpoint.reports.differences import EnsembleOf, ModeVariant, RowPair, Split, difference, pair_title
from meltpoint.reports.formats import difference_over_seeds, interval_text
from meltpoint.reports.statistics.comparison import Comparer, Comparison, adjusted
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.cost import NOTHING
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary

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


FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"
ORDER = (FROZEN, TUNED, STACKED)
"""Of the rows of modes; a difference subtracts the earlier mode."""

Comparable = Mapping[tuple[ModeVariant | EnsembleOf, str], CellSummary | Ensemble]
"""(row key, task) → a cell, or an ensemble of cells, of one encoder."""
Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Contrasts:
    """Compares the rows of one encoder's table, on the split that the table shows.

    Attributes:
        cells: the rows' cells.
        columns: (task, metric) of each.
        split: "dev" where the table shows dev even if there are test scores.
        comparer: of the sweep.
    """

    cells: Comparable
    columns: Columns
    split: Split
    comparer: Comparer

    def row(self, pair: RowPair) -> tuple[TableRow, list[Delta]]:
        """The row of a difference, and the comparisons behind it; an ensemble has none."""
        entries, deltas = [], []
        for (task, metric), is_own in zip(self.columns, own_columns(self.columns), strict=True):
            if pair.metric and not is_own:  # a difference by one metric stands in the task's first column
                entries.append(TableEntry())
                continue
            by = pair.metric or metric
            delta = self._delta(pair, task, by)
            entries.append(_with_interval(delta) or self._over_seeds(pair, task, by, delta))
            deltas += [delta] if delta else []
        return TableRow(pair_title(pair), "", tuple(entries), pair), deltas

    def _delta(self, pair: RowPair, task: str, metric: str) -> Delta | None:
        upper, lower = self.cells.get((pair.upper, task)), self.cells.get((pair.lower, task))
        if not isinstance(upper, CellSummary) or not isinstance(lower, CellSummary):
            return None
        is_own = metric == upper.header.metric
        comparison = self.comparer.compare(upper, lower, self.split, "" if is_own else metric)
        if comparison is None:
            return None
        return Delta(pair_title(replace(pair, metric="")), comparison, in_family=is_own)

    def _over_seeds(self, pair: RowPair, task: str, metric: str, delta: Delta | None) -> TableEntry:
        """Δ ± its standard error over seeds, and the reason why it has no interval."""
        upper, lower = self.cells.get((pair.upper, task)), self.cells.get((pair.lower, task))
        plain = difference(upper, lower, self.split, metric) if upper and isinstance(lower, CellSummary) else None
        if plain is None:
            return TableEntry()
        reason = delta.comparison.reason if delta else ""
        reasons = (no_interval(reason),) if reason else ()
        return TableEntry(difference_over_seeds(plain.mean, plain.error, metric), plain.split, plain.mean, reasons)


def _with_interval(delta: Delta | None) -> TableEntry | None:
    """Δ with its interval; None if it has none."""
    known = delta.comparison if delta is not None else None
    if known is None or known.low is None or known.high is None:
        return None
    return TableEntry(interval_text(known.delta, known.low, known.high, known.metric), known.split, known.delta)


def no_interval(reason: str) -> str:
    """The footnote of a difference without an interval."""
    return f"no interval: {reason}; a ± is the standard error over seeds"


def place_of(mode: str) -> int:
    """A mode's place in `ORDER`; others come after all of them."""
    return ORDER.index(mode) if mode in ORDER else len(ORDER)


def in_one_table(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """All deltas of a sweep, each once, those of the family adjusted by Holm for all of them together."""
    unique: dict[tuple[object, ...], Delta] = {}
    for delta in deltas:
        known = delta.comparison
        unique.setdefault((known.upper, known.lower, known.metric, known.split), delta)
    family = [delta for delta in unique.values() if delta.in_family]
    others = [delta for delta in unique.values() if not delta.in_family]
    new = adjusted([delta.comparison for delta in family])
    return (*(replace(delta, comparison=one) for delta, one in zip(family, new, strict=True)), *others)
