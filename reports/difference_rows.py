"""Rows of differences in the ❄/🔥 table, from comparisons of two cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meltpoint.reports.differences import EnsembleOf, ModeVariant, RowPair, Split, difference, pair_title
from meltpoint.reports.formats import difference_over_seeds, interval_text
from meltpoint.reports.statistics.comparison import Comparer, adjusted
from meltpoint.reports.table_values import Delta, TableEntry, TableRow, own_columns
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import CellSummary

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
