"""A sweep's report as Markdown, CSV, JSON, LaTeX or one HTML page, also while the sweep is running."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from meltpoint.reports import findings
from meltpoint.reports.formats import (
    booktabs,
    bullets,
    duration,
    finite,
    markdown_table,
    markdown_text,
    marks,
    name_of,
    searched_names,
    setting_text,
    trials_text,
)
from meltpoint.reports.matrix import members_text
from meltpoint.reports.notes import cell_notes, notes, state_line
from meltpoint.reports.results import SweepResults, TuningGain, ran_nowhere, results_of
from meltpoint.reports.statistics.cost import cost_notes, cost_rows
from meltpoint.reports.statistics.finals_scores import CLASS_HEADS, cell_class_scores, class_rows, confusion_rows
from meltpoint.reports.table_values import Delta, EncoderBlock
from meltpoint.reports.trial_view import cell_figures
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, spreads_json
from meltpoint.tasks.core.metrics import is_lower_better


def latex(results: SweepResults) -> str:
    """The ❄/🔥 table, also while the sweep is running; footnotes and conclusions are comments below each table."""
    footnotes = [f"{number}: {text}" for number, text in enumerate(results.table.footnotes, 1)]
    notes = [*findings.advice_lines(results.recommendations), *footnotes, *findings.delta_lines(results)]
    notes += [*findings.gain_lines(results), *results.legend]
    head = "% \\usepackage{booktabs}\n"
    return head + "\n".join(_table(block, results.summary, notes) for block in results.table.blocks)


def _table(block: EncoderBlock, summary: SweepSummary, notes: list[str]) -> str:
    heads, parts = block.texts()
    state = "" if summary.state == "done" else f" ({summary.state})"
    caption = f"Sweep {summary.name}{state}: {block.encoder}."
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{summary.name}-{block.encoder}").strip("-")
    return booktabs("ll" + "r" * len(block.tasks), heads, parts, caption, label, notes)


COLUMNS = (
    "sweep", "encoder", "mode", "task", "head", "kind", "metric",
    "trials_planned", "trials_finished", "trials_stopped", "trials_failed", "trials_running", "trials_missing",
    "best_dev", "best_trial", "best_epoch", "seeds", "dev_mean", "dev_std", "test_mean", "test_std",
    "train_examples", "dev_examples", "train_seconds", "setting", "notes", "data_fingerprint", "code_version",
    "variant", "task_parameters",
    "default_dev_mean", "default_dev_std", "default_test_mean", "default_test_std",
    "gpu_hours", "peak_memory_bytes", "trained_parameters", "seconds_of_a_final",
    "tuning_delta", "tuning_low", "tuning_high", "recommended",
    "test_low", "test_high",
)  # fmt: skip
"""The columns of `report.csv`, described in docs/tables.md."""


def files_of(results: SweepResults) -> dict[str, str]:
    """The report files: file name → text."""
    return {f"report.{form}": make(results) for form, make in MAKERS.items()}


def markdown(results: SweepResults) -> str:
    """The Markdown report: the ❄/🔥 table, its findings, the cells with their best settings, and the notes."""
    summary, table = results.summary, results.table
    advice = bullets(findings.advice_lines(results.recommendations))
    parts = [f"# Sweep {markdown_text(summary.name)}", advice, state_line(summary)]
    for block in table.blocks:
        heads, rows = block.texts()
        sides = "ll" + "r" * len(block.tasks)
        parts += [f"## {markdown_text(block.encoder)}", markdown_table(heads, chain(*rows), sides)]
    marked = (f"{marks([number])} {markdown_text(text)}." for number, text in enumerate(table.footnotes, 1))
    parts += ["  \n".join(marked), *_findings(results)]
    parts += ["## How to read it", bullets(results.legend), "## Cells", CELLS_NOTE, _cells(summary)]
    heads, *costs = cost_rows(summary, table.deltas, results.intervals)
    names = len(_names(summary))
    parts += ["## Score and cost", markdown_table(heads, costs, "l" * names + "r" * (len(heads) - names))]
    parts += [bullets(cost_notes(summary)), *_classes(summary), "## Notes", bullets(notes(summary))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _findings(results: SweepResults) -> list[str]:
    """The sections on the table's differences and on gains from tuning; none if there are no scores yet."""
    parts = []
    if results.family:
        parts += [
            "## What the table shows",
            markdown_table(findings.DELTA_HEADS, map(findings.delta_row, results.family), findings.DELTA_SIDES),
        ]
    if lines := findings.size_lines(results):
        parts += ["## Over sizes of train", bullets(lines)]
    if results.gains:
        table = markdown_table(findings.GAIN_HEADS, findings.gain_rows(results.gains), findings.GAIN_SIDES)
        parts += ["## What tuning bought", findings.NO_DEFAULTS if ran_nowhere(results.gains) else table]
        parts += [findings.overtuning_line(results.gains)]
    return parts


CELLS_NOTE = (
    "Best settings have the searched parameters only, rounded to three digits; the exported files hold every value "
    "exactly."
)


CLASSES_NOTE = (
    "Means over the finals, ×100. Rows of a confusion matrix are gold classes, columns predicted classes: examples, "
    "the mean over the finals."
)


def _classes(summary: SweepSummary) -> list[str]:
    """The section on the classes of each cell; none if no predictions of classes are stored."""
    parts = []
    for cell in summary.cells:
        if (scores := cell_class_scores(cell, summary.folder)) is None:
            continue
        name = f"{' '.join(filter(None, name_of(cell)))}, {scores['split']}"
        parts += [f"### {markdown_text(name)}", markdown_table(CLASS_HEADS, class_rows(scores), "lrrrr")]
        if matrix := confusion_rows(scores):
            parts.append(markdown_table(matrix[0], matrix[1:], "l" + "r" * (len(matrix[0]) - 1)))
    return ["## Classes", CLASSES_NOTE, *parts] if parts else []


def _names(summary: SweepSummary) -> list[str]:
    """The columns that identify a cell."""
    return ["encoder", "mode", "task", *(["variant"] if summary.has_variants else [])]


def _cells(summary: SweepSummary) -> str:
    names = _names(summary)
    heads = [*names, "head", "trials finished", "best dev", "best epoch", "dev", "test", "training", "best setting"]
    rows = [_cell_row(cell, len(names)) for cell in summary.cells]
    return markdown_table(heads, rows, "l" * len(names) + "lrrrrrrl")


def _cell_row(cell: CellSummary, names: int) -> list[str]:
    head, best = cell.header, cell.best
    setting = setting_text(best.setting, searched_names(head)) or "nothing is searched" if best else NOTHING
    return [
        *name_of(cell)[:names], head.head, trials_text(cell.counts), best_dev_text(best),
        NOTHING if best is None or best.best_epoch is None else f"{best.best_epoch} of {len(best.epochs)}",
        spread_text(cell.dev, head.metric), spread_text(cell.test, head.metric), duration(cell.seconds), setting,
    ]  # fmt: skip


def comma_separated(results: SweepResults) -> str:
    """The CSV report: one line per cell, then one per ensemble; scores are fractions, absent values are empty."""
    text, summary = io.StringIO(), results.summary
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    bought = {gain.cell.header.key: gain.comparison for gain in results.gains}
    winners = {one.winner.cell.header.key: one.certainty for one in results.recommendations}
    for cell in summary.cells:
        key = cell.header.key
        tuning = {f"tuning_{name}": getattr(bought.get(key), name, None) for name in ("delta", "low", "high")}
        writer.writerow(_line(cell, summary) | tuning | {"recommended": winners.get(key, "")} | _bounds(cell, results))
    for made in summary.ensembles:
        writer.writerow(_ensemble_line(made, summary))
    return text.getvalue()


def _bounds(cell: CellSummary, results: SweepResults) -> dict[str, float | None]:
    """The 95 % interval of a cell's mean test score."""
    low, high = (results.intervals.get(cell.header.key) if cell.test else None) or (None, None)
    return {"test_low": low, "test_high": high}


def _line(cell: CellSummary, summary: SweepSummary) -> dict[str, object]:
    best = cell.best
    return {
        "sweep": summary.name, **cell_figures(cell),
        **{f"trials_{state}": number for state, number in cell.counts.items()},
        "seeds": " ".join(str(final.seed) for final in cell.finals),
        "setting": best and json.dumps(best.setting, sort_keys=True), "notes": "; ".join(cell_notes(cell)),
        "code_version": "; ".join([use.version for use in cell.code_uses] or [summary.code]),
    }  # fmt: skip


def _ensemble_line(made: Ensemble, summary: SweepSummary) -> dict[str, object]:
    return {
        "sweep": summary.name, "encoder": "+".join(made.encoders), "mode": "ensemble", "task": made.task,
        "head": "+".join(dict.fromkeys(member.head for member in made.members)), "kind": made.kind,
        "metric": made.metric, "seeds": " ".join(str(seed) for seed in made.members[0].seeds),
        **spreads_json(made.spread("dev"), made.spread("test")),
        "notes": "; ".join([members_text(made, summary.name), *made.notes]),
        "data_fingerprint": made.data_fingerprint, "code_version": "; ".join(made.code_versions) or summary.code,
    }  # fmt: skip


VERSION = 1
"""Of the JSON document: raised if a field changes its meaning or is removed, not for a new field."""


def document_text(results: SweepResults) -> str:
    """The document as strict JSON (RFC 8259) by docs/report.schema.json; a figure that is not finite is null."""
    return json.dumps(finite(document(results)), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def document(results: SweepResults) -> dict[str, Any]:
    """The document: cells, ensembles, comparisons and notes. Scores and differences are fractions."""
    summary = results.summary
    gains = {gain.cell.header.key: gain for gain in results.gains}
    missing = [findings.NO_DEFAULTS] if results.gains and ran_nowhere(results.gains) else []
    return {
        "version": VERSION, "sweep": summary.name, "state": summary.state, "code_versions": summary.code_versions,
        "recommendations": [one.as_json() for one in results.recommendations],
        "cells": [_cell(cell, results, gains.get(cell.header.key)) for cell in summary.cells],
        "ensembles": [_ensemble(made) for made in summary.ensembles],
        "baselines": [
            {"task": known.task, "metric": known.metric, "split": "dev", "scores": known.scores}
            for known in summary.baselines.values()
        ],
        "deltas": [_delta(delta) for delta in results.table.deltas],
        "footnotes": results.table.footnotes,
        "notes": [*missing, *results.legend, *notes(summary)],
    }  # fmt: skip


def _cell(cell: CellSummary, results: SweepResults, gain: TuningGain | None) -> dict[str, Any]:
    metric = cell.header.metric
    return {
        **cell_figures(cell), **_bounds(cell, results), "trials": cell.counts,
        "seeds": [final.seed for final in cell.finals], "planned_seeds": results.summary.seeds_of(cell),
        "dev_scores": [final.dev for final in cell.finals],
        "test_scores": [(final.test or {}).get(metric) for final in cell.finals],
        "default_seeds": [final.seed for final in cell.default_finals],
        "tuning": gain and {
            **_fields(gain.comparison, "split", "delta", "low", "high", "p", "seeds"), "words": gain.words,
        },
        "setting": cell.best and cell.best.setting, "notes": cell_notes(cell),
        "classes": cell_class_scores(cell, results.summary.folder),
        "lower_is_better": is_lower_better(metric),
        "warnings": [guard.text for guard in cell_guards(cell, results.summary.baseline_of(cell))],
    }  # fmt: skip


def _fields(one: object, *names: str) -> dict[str, Any]:
    """These attributes; None for each if there is no object."""
    return {name: getattr(one, name, None) for name in names}


def _ensemble(made: Ensemble) -> dict[str, Any]:
    return {
        "task": made.task, "metric": made.metric, "kind": made.kind,
        "members": [_fields(one, "sweep", "encoder", "mode", "variant", "head") for one in made.members],
        **spreads_json(made.spread("dev"), made.spread("test")), "notes": made.notes,
    }  # fmt: skip


def _delta(delta: Delta) -> dict[str, Any]:
    known = delta.comparison
    return {
        "encoder": delta.encoder, "task": delta.task, "a": known.upper[1], "b": known.lower[1],
        "a_variant": "".join(known.upper[3:]), "b_variant": "".join(known.lower[3:]),  # a key may have no variant
        "in_family": delta.in_family,
        **_fields(known, "metric", "split", "delta", "low", "high", "p", "p_holm", "probability_better",
                  "seeds", "examples", "needed_seeds", "needed_examples", "reason", "words"),
    }  # fmt: skip


MAKERS: Mapping[str, Callable[[SweepResults], str]] = {
    "md": markdown, "csv": comma_separated, "json": document_text, "tex": latex,
}  # fmt: skip
"""Format → the function that renders it."""


def report(summary: SweepSummary, form: str, beside: str | None = None, margin: float | None = None) -> str:
    """The text of `meltpoint report`.

    Args:
        form: `md`, `html`, `csv`, `json` or `tex`.
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
        margin: of the recommendation, as a fraction; None for the sweep's own.

    Raises:
        ValueError: the table is unknown.
    """
    results = results_of(summary, beside, margin=margin)
    if form == "html":
        from meltpoint.reports.html.page import html  # SciPy and Jinja take a second to import

        return html(results)
    return MAKERS[form](results)


def kept_files(results: SweepResults) -> dict[str, str]:
    """The report files in a sweep's folder: file name → text; they include the page once every cell is done.

    A stopped sweep may have only seconds to exit, too few for the page.
    """
    files = files_of(results)
    if all(cell.is_done for cell in results.summary.cells):
        try:
            from meltpoint.reports.html.page import html

            files["report.html"] = html(results)
        except Exception as error:  # noqa: BLE001 - no error here may lose the tables and the exports
            again = f"`meltpoint report {results.summary.name} --format html` tries again"
            tell(f"report.html was not written ({type(error).__name__}: {error}); {again}.", err=True)
    return files
