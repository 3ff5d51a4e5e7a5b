"""The rendered page: the template with its values, styles, scripts and data, and the section of each cell."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from meltpoint.adapters import modes
from meltpoint.reports.findings import GAIN_HEADS, NO_DEFAULTS, gain_rows, overtuning_line, size_lines
from meltpoint.reports.formats import duration, finite, marks, searched_names, setting_text, title, trials_text
from meltpoint.reports.html.front import cards, cost_charts, front_table, history_charts, size_charts
from meltpoint.reports.notes import folded_warnings, notes, state_line
from meltpoint.reports.results import SweepResults, ran_nowhere
from meltpoint.reports.statistics.cost import cost_notes, cost_rows
from meltpoint.reports.statistics.finals_scores import CLASS_HEADS, cell_class_scores, class_rows, confusion_rows
from meltpoint.reports.trial_view import dev_gain
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.export import best_space
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core.scoring import scale, score_text
from meltpoint.tasks.core.wording import counted, some

DASHBOARD = "http://127.0.0.1:5000"
"""The address of `meltpoint ui`."""
MOST_WHOLE = 11
"""Most columns of a table that fits on A4 without breaking words."""


def html(results: SweepResults) -> str:
    """Render the page of a sweep, also while it is running."""
    summary = results.summary
    cells = [cell_section(cell, summary, MOST_ROWS // len(summary.cells)) for cell in summary.cells]
    charts = {
        "history": history_charts(summary), "sizes": size_charts(results), "cost": cost_charts(summary.cells),
    }  # fmt: skip
    tables = [front_table(block, results.table.deltas) for block in results.table.blocks]
    data = {name: [chart["data"] for chart in each] for name, each in charts.items()}
    colours = {name: modes.get(name).colour for name in modes.names()}
    rules = "\n".join(f".bars .{name} {{ fill: {colour}; }}" for name, colour in colours.items())
    style, scripts = f"{asset('page.css')}{rules}", [asset("vendor/echarts.min.js"), *map(asset, SCRIPTS)]
    text = _environment().get_template("page.html.jinja").render(
        **charts, cards=cards(results), tables=tables, warnings=folded_warnings(summary), cells=cells,
        summary=summary, state=state_line(summary), gain_heads=GAIN_HEADS, gains=gain_rows(results.gains),
        overtuning=overtuning_line(results.gains),
        no_gains=NO_DEFAULTS if ran_nowhere(results.gains) else "", cost_notes=cost_notes(summary),
        cost_rows=cost_rows(summary, results.table.deltas, results.intervals),
        size_lines=size_lines(results), footnotes=list(enumerate(results.table.footnotes, 1)), legend=results.legend,
        notes=notes(summary),
        dashboard=DASHBOARD, policy=policy(style, scripts), style=Markup(style), class_heads=CLASS_HEADS,
        scripts=[Markup(script) for script in scripts],
        data=Markup(embedded({
            **data, "cells": [cell["data"] for cell in cells], "dashboard": DASHBOARD, "colours": colours,
        })),
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
    made.filters |= {"prose": prose, "breakable": breakable, "many": many, "marks": lambda number: marks([number])}
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


MOST_ROWS = 12_000
"""Most trials in the tables of a page; at about 350 bytes each, the page stays below 5 MB."""


def cell_section(cell: CellSummary, summary: SweepSummary, most_rows: int) -> dict[str, Any]:
    """Everything that the page shows of a cell; `data` is for its scripts.

    Args:
        most_rows: the maximum number of trials in the page's table.
    """
    head = cell.header
    name = " · ".join(part for part in (head.task, title(head.mode), head.encoder, head.variant) if part)
    scores = cell_class_scores(cell, summary.folder)
    ranked = sorted(cell.search, key=lambda one: (-dev_gain(one), one.number))
    shown = ranked[:most_rows]
    left_out = f"the best {counted(len(shown))} of {some(len(ranked), 'trial')}; `meltpoint.load_sweep` has all"
    rows = _columns(shown, searched_names(head))
    return {
        "title": name, "headline": _headline(cell), "facts": _facts(cell, summary), "seeds": _seeds(cell),
        "warnings": [one.text for one in cell_guards(cell, summary.baseline_of(cell))],
        "yaml": best_setting(cell, summary), "classes": [] if scores is None else class_rows(scores),
        "confusion": [] if scores is None else confusion_rows(scores),
        "note": "" if len(shown) == len(ranked) else f"The table has {left_out}.",
        "data": {"title": name, "task": head.task, "scale": scale(head.metric), "rows": rows},
    }  # fmt: skip


def _headline(cell: CellSummary) -> str:
    """`test 89.0 ± 2.1, 3 of 3 trials`: the text of a closed section."""
    split, score = ("test", cell.test) if cell.test else ("dev", cell.dev)
    scored = [f"{split} {spread_text(score, cell.header.metric)}"] if score else []
    return ", ".join([*scored, f"trials {trials_text(cell.counts)}"])


def _facts(cell: CellSummary, summary: SweepSummary) -> list[tuple[str, str]]:
    head = cell.header
    default = cell.default_test or cell.default_dev
    on_dev = " (dev)" if default is not None and cell.default_test is None else ""
    return [
        ("metric", head.metric), ("head", head.head), ("trials finished", trials_text(cell.counts)),
        ("best dev", best_dev_text(cell.best)),
        ("dev over seeds", spread_text(cell.dev, head.metric)),
        ("test over seeds", spread_text(cell.test, head.metric)),
        (f"published setting{on_dev}", spread_text(default, head.metric)),
        ("seeds", f"{len(cell.finals)} of {summary.seeds_of(cell)}"),
        ("training", duration(cell.seconds)), ("GPU-hours", f"{cell.cost.gpu_hours:.3g}"),
    ]  # fmt: skip


def _seeds(cell: CellSummary) -> list[dict[str, Any]]:
    same = bool(cell.finals and cell.default_finals) and cell.default_finals[0].setting == cell.finals[0].setting
    finals = [_seed(final, "best", cell.header.metric) for final in cell.finals]
    return finals + ([] if same else [_seed(one, "published", cell.header.metric) for one in cell.default_finals])


def _seed(final: TrialRecord, setting: str, metric: str) -> dict[str, Any]:
    scores = {"dev": final.dev, "test": (final.test or {}).get(metric)}
    shown = {split: NOTHING if score is None else score_text(score, metric) for split, score in scores.items()}
    about = {"setting": setting, "seed": final.seed, "seconds": duration(final.seconds), "run": final.mlflow_run_id}
    return {**about, **shown}


def best_setting(cell: CellSummary, summary: SweepSummary) -> str:
    """The best setting of a cell as YAML, or a comment with the reason if there is none."""
    if cell.best is None:
        return "# No trial has finished yet."
    try:
        return replace(best_space(summary, cell, cell.best), provenance={}).dump()
    except ValueError as error:
        return f"# This version cannot write it as a space ({error}): {cell.best.setting}"


def _columns(records: Sequence[TrialRecord], searched: Sequence[str]) -> dict[str, list[Any]]:
    """Name → a value for each trial."""
    return {
        "number": [record.number + 1 for record in records], "id": [record.id for record in records],
        "status": [record.status for record in records], "from": [record.suggested_by or "" for record in records],
        "dev": [record.dev if record.dev is None else round(record.dev, 8) for record in records],
        "epoch": [record.best_epoch for record in records], "epochs": [record.epoch_count for record in records],
        "seconds": [round(record.seconds, 1) for record in records],
        "run": [record.mlflow_run_id or "" for record in records],
        "error": [" ".join((record.error or "").split())[:200] for record in records],
        "setting": [setting_text(record.setting, searched) for record in records],
    }  # fmt: skip
