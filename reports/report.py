"""A sweep's report in one format, also while the sweep is running."""

from __future__ import annotations

from meltpoint.reports.results import results_of
from meltpoint.reports.tables import MAKERS
from meltpoint.sweeps.results.summary import SweepSummary


def report(summary: SweepSummary, form: str, beside: str | None = None) -> str:
    """The text of `meltpoint report`.

    Args:
        form: `md`, `html`, `csv`, `json` or `tex`.
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.

    Raises:
        ValueError: the table is unknown.
    """
    results = results_of(summary, beside)
    if form == "html":
        from meltpoint.reports.html.page import html  # NumPy, pandas and Jinja take a second to import

        return html(results)
    return MAKERS[form](results)
