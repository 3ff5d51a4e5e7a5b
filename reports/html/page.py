"""The rendered page: the template with its values, styles, scripts and data, and a policy that allows no others."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from meltpoint.reports.findings import GAIN_HEADS, NO_DEFAULTS, gain_rows
from meltpoint.reports.formats import marks
from meltpoint.reports.html.cell_sections import MOST_ROWS, cell_section
from meltpoint.reports.html.front import (
    cards,
    cost_charts,
    front_tables,
    history_charts,
)
from meltpoint.reports.notes import folded_warnings, notes, state_line
from meltpoint.reports.report_json import finite
from meltpoint.reports.results import SweepResults, ran_nowhere
from meltpoint.reports.sizes import size_lines
from meltpoint.reports.statistics.cost import cost_notes, cost_rows
from meltpoint.reports.statistics.finals_scores import CLASS_HEADS

DASHBOARD = "http://127.0.0.1:5000"
"""The address of `meltpoint ui`."""
MOST_WHOLE = 11
"""Most columns of a table that fits on A4 without breaking words."""


def html(results: SweepResults) -> str:
    """Render the page of a sweep, also while it is running."""
    summary = results.summary
    cells = [cell_section(cell, summary, MOST_ROWS // len(summary.cells)) for cell in summary.cells]
    charts = {"history": history_charts(summary), "cost": cost_charts(summary.cells)}
    data = {name: [chart.data for chart in each] for name, each in charts.items()}
    style, scripts = asset("page.css"), [asset("vendor/echarts.min.js"), *map(asset, SCRIPTS)]
    text = _environment().get_template("page.html.jinja").render(
        **charts, cards=cards(results), tables=front_tables(results), warnings=folded_warnings(summary), cells=cells,
        summary=summary, state=state_line(summary), gain_heads=GAIN_HEADS, gains=gain_rows(results.gains),
        no_gains=NO_DEFAULTS if ran_nowhere(results.gains) else "", cost_rows=cost_rows(summary, results.table.deltas),
        cost_notes=cost_notes(summary),
        sizes=size_lines(results), footnotes=list(enumerate(results.table.footnotes, 1)), legend=results.legend,
        notes=notes(summary),
        dashboard=DASHBOARD, policy=policy(style, scripts), style=Markup(style), class_heads=CLASS_HEADS,
        scripts=[Markup(script) for script in scripts],
        data=Markup(embedded({**data, "cells": [cell.data for cell in cells], "dashboard": DASHBOARD})),
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
