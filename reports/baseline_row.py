"""The row of the ❄/🔥 table that shows each task's best baseline, on dev."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.reports.table_values import TableEntry, TableRow
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tasks.core.scoring import score_text


def baseline_rows(columns: Sequence[tuple[str, str]], summary: SweepSummary) -> list[TableRow]:
    """One row, or none where no task of the columns (task, metric) has a baseline (yet)."""
    entries = tuple(_entry(task, metric, summary) for task, metric in columns)
    return [TableRow("baseline", "", entries, None)] if any(entry.mean is not None for entry in entries) else []


def _entry(task: str, metric: str, summary: SweepSummary) -> TableEntry:
    known = summary.baselines.get(task)
    if known is None or known.metric != metric:
        return TableEntry()
    name, score = known.best
    return TableEntry(
        score_text(score, metric), "dev", score, (f"{name}: the best of the baselines; they are scored on dev alone",)
    )
