"""Values of tables: keys and titles of rows, scores of cells, and their differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meltpoint.adapters import modes
from meltpoint.reports.formats import interval_text, marks, symbol
from meltpoint.reports.statistics.comparison import Comparer, Comparison, adjusted
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.cost import NOTHING
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread, spread
from meltpoint.tasks.core.scoring import difference_text, score_text

Split = Literal["dev", "test"]


@dataclass(frozen=True)
class ModeVariant:
    """The key of a row of cells: a mode, and a variant if the mode has several."""

    mode: str
    variant: str = ""


@dataclass(frozen=True)
class EnsembleOf:
    """The key of the ensemble of exactly these rows' cells on one task."""

    members: frozenset[ModeVariant]


@dataclass(frozen=True)
class RowPair:
    """Two rows whose difference is shown, `upper` minus `lower`; `metric` is "" for each column's own metric."""

    upper: ModeVariant | EnsembleOf
    lower: ModeVariant
    metric: str = ""


@dataclass(frozen=True)
class Difference:
    """The difference between the scores of two cells.

    Attributes:
        mean: the difference of the means, as a fraction.
        error: its standard error, or None if a cell has fewer than two seeds.
        split: the split of both means.
    """

    mean: float
    error: float | None
    split: Split


def pair_title(pair: RowPair) -> str:
    """`Δ 🔥 − ❄`, with the variants if there are any (once if both are the same)."""
    upper, lower = pair.upper, pair.lower
    behind = f" ({pair.metric})" if pair.metric else ""
    if isinstance(upper, EnsembleOf):
        return f"Δ ensemble − {f'{symbol(lower.mode)} {lower.variant}'.strip()}{behind}"
    if upper.variant == lower.variant:
        variant = f" · {upper.variant}" if upper.variant else ""
        return f"Δ {symbol(upper.mode)} − {symbol(lower.mode)}{variant}{behind}"
    sides = (f"{symbol(side.mode)} {side.variant}".strip() for side in (upper, lower))
    return f"Δ {' − '.join(sides)}{behind}"


def difference(
    upper: CellSummary | Ensemble, lower: CellSummary, split: Split = "test", metric: str = ""
) -> Difference | None:
    """The score of `upper` minus that of `lower`: on test if both have test scores, else on dev; None without scores.

    Args:
        split: "dev" to compare on dev even if there are test scores.
        metric: a metric other than the task's own; "" for the task's own.
    """
    for chosen in ("test", "dev") if split == "test" else ("dev",):
        ahead, behind = over_seeds(upper, chosen, metric), over_seeds(lower, chosen, metric)
        if ahead and behind:
            return difference_of(ahead, behind, chosen)
    return None


def over_seeds(cell: CellSummary | Ensemble, split: Split, metric: str = "") -> Spread | None:
    """A cell's or an ensemble's scores over seeds on a split, by the task's metric or another one."""
    if isinstance(cell, Ensemble):
        return cell.spread(split, metric)
    if not metric or metric == cell.header.metric:
        return cell.test if split == "test" else cell.dev
    each = [(final.test or {}) if split == "test" else final.dev_metrics for final in cell.finals]
    return spread([scores[metric] for scores in each if metric in scores])


def difference_of(upper: Spread, lower: Spread, split: Split) -> Difference:
    """The difference of two means over seeds."""
    error = None
    if upper.std is not None and lower.std is not None:
        error = math.sqrt(upper.std**2 / upper.count + lower.std**2 / lower.count)
    return Difference(upper.mean - lower.mean, error, split)


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
        is_recommended: True for the task's recommended cell.
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

    @property
    def text_with_marks(self) -> str:
        """The label with the marks of its footnotes."""
        return self.label + marks(self.notes)


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
        in_family: True if its p-value is adjusted: it is by the task's own metric, and repeats no other comparison.
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

    The row of baselines is among the ensembles, since it also has no mode.

    A task's own metric comes first; its further metrics (`Task.beside`) follow. `deltas` are not adjusted yet.
    """

    encoder: str
    tasks: tuple[tuple[str, str], ...]
    modes: tuple[TableRow, ...]
    differences: tuple[TableRow, ...]
    ensembles: tuple[TableRow, ...] = ()
    deltas: tuple[Delta, ...] = ()

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """All rows in the order of the table."""
        return (*self.modes, *self.ensembles, *self.differences)

    @property
    def columns(self) -> list[str]:
        """The heads of the columns of tasks: `sst2 (accuracy)`."""
        return [f"{task} ({metric})" if metric else task for task, metric in self.tasks]

    def texts(self) -> tuple[list[str], list[list[list[str]]]]:
        """The heads, and the cells of the rows of modes, of ensembles and of differences."""
        groups = (self.modes, self.ensembles, self.differences)
        parts = [[[row.title, row.head, *(one.text_with_marks for one in row.entries)] for row in rows]
                 for rows in groups]  # fmt: skip
        return ["mode", "head", *self.columns], parts


@dataclass(frozen=True)
class Matrix:
    """The tables of all encoders.

    Attributes:
        footnotes: numbered from 1.
        deltas: the comparisons behind the tables; the Holm family has adjusted p-values.
    """

    blocks: tuple[EncoderBlock, ...]
    footnotes: tuple[str, ...] = ()
    deltas: tuple[Delta, ...] = ()

    @classmethod
    def of(cls, blocks: Sequence[EncoderBlock], deltas: Sequence[Delta]) -> Matrix:
        """The tables of these blocks; the reasons of their entries become footnotes, and equal ones share one."""
        numbers: dict[str, int] = {}

        def marked(shown: TableEntry) -> TableEntry:
            return replace(shown, notes=tuple(numbers.setdefault(one, len(numbers) + 1) for one in shown.reasons))

        def rows(each: Sequence[TableRow]) -> tuple[TableRow, ...]:
            return tuple(replace(row, entries=tuple(map(marked, row.entries))) for row in each)

        made = tuple(
            replace(one, modes=rows(one.modes), ensembles=rows(one.ensembles), differences=rows(one.differences))
            for one in blocks
        )
        return cls(made, tuple(numbers), tuple(deltas))


def own_columns(columns: Sequence[tuple[str, str]]) -> list[bool]:
    """For each column, True if it is the first of its task, which has the task's own metric."""
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


FROZEN, TUNED = "feature_extraction", "fine_tuning"

Comparable = Mapping[tuple[ModeVariant | EnsembleOf, str], CellSummary | Ensemble]
"""(row key, task) → a cell, or an ensemble of cells, of one encoder."""
Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Contrasts:
    """Compares the rows of one encoder's table, on the split that the table shows.

    Attributes:
        cells: the rows' cells.
        columns: (task, metric) of each.
        split: "dev" if the table shows dev even if there are test scores.
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
            if pair.metric and not is_own:  # a difference by one metric is in the task's first column
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
        reasons = (f"no interval: {reason}; a ± is the standard error over seeds",) if reason else ()
        error = "" if plain.error is None else f" ± {score_text(plain.error, metric)}"
        return TableEntry(difference_text(plain.mean, metric) + error, plain.split, plain.mean, reasons)


def _with_interval(delta: Delta | None) -> TableEntry | None:
    """Δ with its interval; None if it has none."""
    known = delta.comparison if delta is not None else None
    if known is None or known.low is None or known.high is None:
        return None
    return TableEntry(interval_text(known.delta, known.low, known.high, known.metric), known.split, known.delta)


def place_of(mode: str) -> int:
    """A mode's place among the rows, the cheapest first; a difference subtracts the earlier mode."""
    return modes.get(mode).rung if mode in modes.names() else len(modes.names())


def in_one_table(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """All deltas of a sweep, each once; Holm's procedure adjusts the family together."""
    unique: dict[tuple[object, ...], Delta] = {}
    for delta in deltas:
        known = delta.comparison
        unique.setdefault((known.upper, known.lower, known.metric, known.split), delta)
    family = [delta for delta in unique.values() if delta.in_family]
    others = [delta for delta in unique.values() if not delta.in_family]
    new = adjusted([delta.comparison for delta in family])
    return (*(replace(delta, comparison=one) for delta, one in zip(family, new, strict=True)), *others)
