"""A sweep's report in one format, whatever has finished so far."""

from __future__ import annotations

from meltpoint.reports.tables import MAKERS
from meltpoint.sweeps.results.summary import SweepSummary


def report(summary: SweepSummary, form: str, beside: str | None = None) -> str:
    """The text of `meltpoint report`.

    Args:
        form: `md`, `html`, `csv` or `tex`.
        beside: the paper's table to set beside ours; None for the one of the sweep's specification file, if any.

    Raises:
        ValueError: nobody knows that table.
    """
    if form == "html":
        from meltpoint.reports.report_html import html  # plots take a second to import

        return html(summary, beside)
    return MAKERS[form](summary, beside)
