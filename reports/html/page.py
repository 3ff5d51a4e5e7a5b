"""The rendered page: the template with its values, styles, scripts and data, and a policy that allows no others."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from meltpoint.reports.findings import GAIN_HEADS, gain_rows, without_defaults
from meltpoint.reports.formats import duration, marks
from meltpoint.reports.html.cell_sections import MOST_ROWS, CellSection, cell_section
from meltpoint.reports.html.front import (
    Card,
    Chart,
    FrontTable,
    cards,
    cost_charts,
    front_tables,
    history_charts,
    warnings_by_kind,
)
from meltpoint.reports.notes import notes
from meltpoint.reports.report_json import finite
from meltpoint.reports.results import SweepResults, ran_nowhere
from meltpoint.reports.statistics.cost import cost_notes, cost_rows, pareto_rows
from meltpoint.reports.statistics.finals_scores import CLASS_HEADS
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tasks.core.wording import some

DASHBOARD = "http://127.0.0.1:5000"
"""The address of `meltpoint ui`."""
MOST_WHOLE = 11
"""Most columns of a table that fits on A4 without breaking words."""
WEB_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")


@dataclass(frozen=True)
class Page:
    """Everything that the page shows, before it is rendered.

    Attributes:
        warnings: (headline, lines) of each kind.
        history, cost: the charts of the front.
        data: the input of the scripts: the cells' trials and the charts' points.
    """

    results: SweepResults
    cards: list[Card]
    tables: list[FrontTable]
    warnings: list[tuple[str, list[str]]]
    history: list[Chart]
    cost: list[Chart]
    cells: list[CellSection]

    @property
    def data(self) -> dict[str, Any]:
        """The object that the page's scripts read."""
        return {
            "cost": [chart.data for chart in self.cost], "history": [chart.data for chart in self.history],
            "cells": [cell.data for cell in self.cells],
        }  # fmt: skip


def page_of(results: SweepResults) -> Page:
    """The contents of a sweep's page, also while it is running."""
    summary = results.summary
    shares = row_shares([len(cell.search) for cell in summary.cells])
    cells = [cell_section(cell, summary, share) for cell, share in zip(summary.cells, shares, strict=True)]
    return Page(
        results, cards(results), front_tables(results), warnings_by_kind(summary), history_charts(summary),
        cost_charts(summary.cells), cells,
    )  # fmt: skip


def row_shares(counts: list[int], most: int = MOST_ROWS) -> list[int]:
    """The maximum number of rows in each cell's table: all trials, or a proportional part of `most`, at least one."""
    total = sum(counts)
    return counts if total <= most else [max(1, count * most // total) for count in counts]


def html(results: SweepResults, dashboard: str = DASHBOARD) -> str:
    """Render the page.

    Args:
        dashboard: the address of MLflow's dashboard, for links to runs.

    Raises:
        ValueError: the dashboard's address is not a web address.
    """
    if not WEB_ADDRESS.fullmatch(dashboard):
        raise ValueError(f"--dashboard {dashboard}: write an address that begins with http:// or https://.")
    page = page_of(results)
    data = embedded(page.data | {"dashboard": dashboard.rstrip("/")})
    style, scripts = asset("page.css"), [asset("vendor/echarts.min.js"), *map(asset, SCRIPTS)]
    text = _environment().get_template("page.html.jinja").render(
        page=page, summary=results.summary, state=_state(results.summary),
        gains=_gains(results), cost_rows=cost_rows(results.summary), cost_notes=cost_notes(results.summary),
        pareto_rows=pareto_rows(results.summary), footnotes=list(enumerate(results.table.footnotes, 1)),
        legend=results.legend, notes=notes(results.summary), dashboard=dashboard.rstrip("/"),
        policy=policy(style, scripts), style=Markup(style),
        class_heads=CLASS_HEADS, scripts=[Markup(script) for script in scripts], data=Markup(data),
    )  # fmt: skip
    return text + "\n"


SCRIPTS = ("charts.js", "trial_table.js", "page.js")


@cache
def asset(name: str) -> str:
    """The text of a file in this module's folder."""
    return files("meltpoint.reports.html").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "prose": prose,
        "breakable": breakable,
        "many": many,
        "marks": lambda number: marks([number]),
    }
    return made


def prose(text: str) -> Markup:
    """Text with its `code` marked up; everything else is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(" ".join(text.split())))))


def breakable(text: object) -> Markup:
    """Text with line breaks allowed after `_` and `.` in names, but not in numbers."""
    return Markup(re.sub(r"([_.])(?=[^\W\d])", r"\1<wbr>", str(escape(text))))


def many(columns: int) -> Markup:
    """The class of a table that fits a page of A4 only if words may be broken anywhere."""
    return Markup(' class="many"') if columns > MOST_WHOLE else Markup("")


def embedded(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element; figures that are not finite are null."""
    text = json.dumps(finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def policy(style: str, scripts: list[str]) -> str:
    """The Content-Security-Policy: exactly these styles and scripts, no network, no form, no frame."""
    return (
        f"default-src 'none'; script-src {' '.join(map(_source, scripts))}; style-src {_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _state(summary: SweepSummary) -> str:
    done = sum(cell.is_done for cell in summary.cells)
    seconds = sum(cell.seconds for cell in summary.cells)
    trials = sum(len(cell.search) for cell in summary.cells)
    return (
        f"State: {summary.state}; {done} of {some(len(summary.cells), 'cell')} done; {some(trials, 'search trial')} "
        f"ended; {duration(seconds)} of training."
    )


def _gains(results: SweepResults) -> dict[str, Any]:
    """The table of gains from tuning, or the sentence in its place."""
    if not results.gains:
        return {"heads": (), "rows": [], "missing": "There are no finals yet."}
    if ran_nowhere(results.gains):
        return {"heads": (), "rows": [], "missing": without_defaults(results)}
    return {"heads": GAIN_HEADS, "rows": gain_rows(results.gains), "missing": ""}
