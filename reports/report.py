"""A sweep's report in one format, also while the sweep is running."""

from __future__ import annotations

from meltpoint.reports.results import SweepResults, results_of
from meltpoint.reports.tables import MAKERS, files_of
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.results.summary import SweepSummary


def report(
    summary: SweepSummary, form: str, beside: str | None = None, dashboard: str | None = None,
    margin: float | None = None,
) -> str:  # fmt: skip
    """The text of `meltpoint report`.

    Args:
        form: `md`, `html`, `csv`, `json` or `tex`.
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
        dashboard: the address of MLflow's dashboard for the links of a page; None for that of `meltpoint ui`.
        margin: of the recommendation, as a fraction; None for the sweep's own.

    Raises:
        ValueError: the table is unknown, or the dashboard's address is none.
    """
    results = results_of(summary, beside, margin=margin)
    if form == "html":
        from meltpoint.reports.html.page import DASHBOARD, html  # SciPy and Jinja take a second to import

        return html(results, dashboard or DASHBOARD)
    return MAKERS[form](results)


def kept_files(results: SweepResults) -> dict[str, str]:
    """The report files in a sweep's folder: file name → text; the page is one of them once every cell is done.

    A sweep that is stopped may have seconds to end, which the page is not worth.
    """
    files = files_of(results)
    if all(cell.is_done for cell in results.summary.cells):
        try:
            from meltpoint.reports.html.page import html

            files["report.html"] = html(results)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tables and the exports must not be lost by it
            tell(
                f"report.html was not written ({type(error).__name__}: {error}); `meltpoint report "
                f"{results.summary.name} --format html` tries again.",
                err=True,
            )
    return files
