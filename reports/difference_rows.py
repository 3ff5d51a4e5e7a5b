"""Rows of differences in the ❄/🔥 table, and which score of a column is bold; both from comparisons of two cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meltpoint.reports.differences import EnsembleOf, ModeVariant, RowPair, Split, difference, pair_title
from meltpoint.reports.formats import difference_over_seeds, interval_text
from meltpoint.reports.statistics.comparison import Comparer, adjusted
from meltpoint.reports.table_values import Delta, TableEntry, TableRow, own_columns
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core.metrics import gain

FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"
ORDER = (FROZEN, TUNED, STACKED)
"""A comparison that is no row of the table subtracts the earlier mode, so that it is the same one where it is a row."""

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
        return Delta(pair_title(replace(pair, metric="")), comparison, is_shown=True, in_family=is_own)

    def _over_seeds(self, pair: RowPair, task: str, metric: str, delta: Delta | None) -> TableEntry:
        """Δ ± its standard error over seeds, and the reason why it has no interval."""
        upper, lower = self.cells.get((pair.upper, task)), self.cells.get((pair.lower, task))
        plain = difference(upper, lower, self.split, metric) if upper and isinstance(lower, CellSummary) else None
        if plain is None:
            return TableEntry()
        reason = delta.comparison.reason if delta else ""
        reasons = (no_interval(reason),) if reason else ()
        return TableEntry(difference_over_seeds(plain.mean, plain.error, metric), plain.split, plain.mean, reasons)

    def with_best(self, rows: Sequence[TableRow]) -> tuple[tuple[TableRow, ...], list[Delta]]:
        """The rows of modes with the best of each column marked, and the comparisons that decide it.

        The best is marked where at least two modes are scored, all on the same split, and the interval of its lead
        over every other one excludes 0.
        """
        places: dict[int, int] = {}  # column → row
        deltas: list[Delta] = []
        for column, (task, metric) in enumerate(self.columns):
            leader, leads = self._leads([(row.of, row.entries[column]) for row in rows], task, metric)
            deltas += leads.values()
            if leads and all(_leads(leader, pair, delta) for pair, delta in leads.items()):
                places[column] = next(place for place, row in enumerate(rows) if row.of == leader)
        return tuple(_marked(row, place, places) for place, row in enumerate(rows)), deltas

    def _leads(
        self, column: Sequence[tuple[ModeVariant | RowPair | None, TableEntry]], task: str, metric: str
    ) -> tuple[ModeVariant | None, dict[RowPair, Delta]]:
        """The row with the best mean, and its comparison with each other one; none where they do not compete."""
        scored = [(row, entry) for row, entry in column if isinstance(row, ModeVariant) and entry.mean is not None]
        means = [gain(metric, entry.mean) for _, entry in scored if entry.mean is not None]
        if len(scored) < 2 or len({entry.split for _, entry in scored}) > 1 or means.count(max(means)) > 1:
            return None, {}
        rows = [row for row, _ in scored]
        leader = rows[means.index(max(means))]
        pairs = [_in_order(leader, other, rows) for other in rows if other != leader]
        compared = {pair: self._delta(pair, task, metric) for pair in pairs}
        leads = {pair: replace(d, is_shown=False, in_family=False) for pair, d in compared.items() if d is not None}
        return leader, leads if len(leads) == len(pairs) else {}


def _with_interval(delta: Delta | None) -> TableEntry | None:
    """Δ with its interval; None if it has none."""
    known = delta.comparison if delta is not None else None
    if known is None or known.low is None or known.high is None:
        return None
    return TableEntry(interval_text(known.delta, known.low, known.high, known.metric), known.split, known.delta)


def _marked(row: TableRow, place: int, best: Mapping[int, int]) -> TableRow:
    """The row with its best entries marked; `best` is column → place of the row."""
    entries = [replace(entry, is_best=best.get(column) == place) for column, entry in enumerate(row.entries)]
    return replace(row, entries=tuple(entries))


def no_interval(reason: str) -> str:
    """The footnote of a difference without an interval."""
    return f"no interval: {reason}; a ± is the standard error over seeds"


def place_of(mode: str) -> int:
    """A mode's place in `ORDER`; others come after all of them."""
    return ORDER.index(mode) if mode in ORDER else len(ORDER)


def _in_order(one: ModeVariant, other: ModeVariant, rows: Sequence[ModeVariant]) -> RowPair:
    lower, upper = sorted((one, other), key=lambda row: (place_of(row.mode), rows.index(row)))
    return RowPair(upper, lower)


def _leads(leader: ModeVariant | None, pair: RowPair, delta: Delta) -> bool:
    """True if the leader's score is better, and 0 lies outside the interval of the difference."""
    known = delta.comparison.gain
    ahead = known > 0 if pair.upper == leader else known < 0
    return ahead and delta.comparison.excludes_zero


def in_one_table(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """All deltas of a sweep, each once, those of the family adjusted by Holm for all of them together."""
    unique: dict[tuple[object, ...], Delta] = {}
    for delta in sorted(deltas, key=lambda one: not one.is_shown):  # a row of the table counts first
        known = delta.comparison
        unique.setdefault((known.upper, known.lower, known.metric, known.split), delta)
    family = [delta for delta in unique.values() if delta.in_family]
    others = [delta for delta in unique.values() if not delta.in_family]
    new = adjusted([delta.comparison for delta in family])
    return (*(replace(delta, comparison=one) for delta, one in zip(family, new, strict=True)), *others)
