"""A comparer whose intervals are fixed beforehand, for tests of what reports make of comparisons."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.reports.statistics.comparison import Comparer, Comparison
from meltpoint.reports.table_values import Split, difference
from meltpoint.sweeps.results.summary import CellSummary


class FixedComparer(Comparer):
    """Comparisons whose interval reaches `half` to each side of the difference of the means; p is 0.001 or 0.5.

    Attributes:
        asked: (mode, mode, metric) of every comparison, in order.
    """

    def __init__(self, half: float = 0.01) -> None:
        super().__init__(None)
        self.half = half
        self.asked: list[tuple[str, str, str]] = []

    def compare(
        self, upper: CellSummary, lower: CellSummary, split: Split = "test", metric: str = ""
    ) -> Comparison | None:
        """The difference of the means of two cells with its interval."""
        self.asked.append((upper.header.mode, lower.header.mode, metric))
        return self._compared_means(upper, lower, split, metric)

    def tuning(self, cell: CellSummary, split: Split = "test", metric: str = "") -> Comparison | None:
        """The winner of a cell minus its published setting."""
        default = replace(cell, finals=cell.default_finals, dev=cell.default_dev, test=cell.default_test)
        return self._compared_means(cell, default, split, metric)

    def _compared_means(self, upper: CellSummary, lower: CellSummary, split: Split, metric: str) -> Comparison | None:
        found = difference(upper, lower, split, metric)
        if found is None:
            return None
        low, high = found.mean - self.half, found.mean + self.half
        is_wide = low <= 0 <= high
        return Comparison(
            upper.header.key, lower.header.key, found.split, metric or upper.header.metric, found.mean, low, high,
            p=0.5 if is_wide else 0.001, probability_better=0.6 if is_wide else 0.98, seeds=5,
            examples=400, seeds_error=self.half / 3, examples_error=self.half / 3, seeds_freedom=8,
        )  # fmt: skip
