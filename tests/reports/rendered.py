"""The report files of a sweep, for tests."""

from __future__ import annotations

from meltpoint.reports.report import files_of
from meltpoint.reports.results import results_of
from meltpoint.sweeps.results.summary import SweepSummary


def render(summary: SweepSummary, beside: str | None = None) -> dict[str, str]:
    """File name → text.

    Args:
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
    """
    return files_of(results_of(summary, beside))
