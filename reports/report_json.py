"""`report --format json`: every figure of a sweep's tables for programs; its schema is docs/report.schema.json."""

from __future__ import annotations

import json
import math
from typing import Any

from meltpoint.reports.findings import NO_DEFAULTS
from meltpoint.reports.notes import cell_notes, notes
from meltpoint.reports.results import SweepResults, TuningGain, ran_nowhere
from meltpoint.reports.statistics.finals_scores import cell_class_scores
from meltpoint.reports.table_values import Delta
from meltpoint.reports.trial_view import cell_figures, spread_figures
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core.metrics import is_lower_better

VERSION = 1
"""Of the document: raised if a field changes its meaning or is removed, not for a new field."""


def document_text(results: SweepResults) -> str:
    """The document as strict JSON (RFC 8259); a figure that is not finite is null."""
    return json.dumps(finite(document(results)), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def document(results: SweepResults) -> dict[str, Any]:
    """The document: cells, ensembles, comparisons and notes. Scores and differences are fractions."""
    summary = results.summary
    gains = {gain.cell.header.key: gain for gain in results.gains}
    missing = [NO_DEFAULTS] if results.gains and ran_nowhere(results.gains) else []
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
        **cell_figures(cell), "trials": cell.counts,
        "seeds": [final.seed for final in cell.finals], "planned_seeds": results.summary.seeds_of(cell),
        "dev_scores": [final.dev for final in cell.finals],
        "test_scores": [(final.test or {}).get(metric) for final in cell.finals],
        "default_seeds": [final.seed for final in cell.default_finals],
        "tuning": gain
        and {**_fields(gain.comparison, "split", "delta", "low", "high", "p", "seeds"), "words": gain.words},
        "setting": cell.best and cell.best.setting, "notes": cell_notes(cell),
        "classes": cell_class_scores(cell, results.summary.folder),
        "lower_is_better": is_lower_better(metric),
        "warnings": [guard.text for guard in cell_guards(cell, results.summary.baselines.get(cell.header.task))],
    }  # fmt: skip


def _fields(one: object, *names: str) -> dict[str, Any]:
    """These attributes; None for each if there is no object."""
    return {name: getattr(one, name, None) for name in names}


def _ensemble(made: Ensemble) -> dict[str, Any]:
    return {
        "task": made.task, "metric": made.metric, "kind": made.kind,
        "members": [
            _fields(one, "sweep", "encoder", "mode", "variant", "head") for one in made.members
        ],
        **spread_figures("dev", made.spread("dev")), **spread_figures("test", made.spread("test")), "notes": made.notes,
    }  # fmt: skip


def _delta(delta: Delta) -> dict[str, Any]:
    known = delta.comparison
    return {
        "encoder": delta.encoder, "task": delta.task, "a": known.upper[1], "b": known.lower[1],
        "a_variant": _variant(known.upper), "b_variant": _variant(known.lower),
        "in_table": True, "in_family": delta.in_family,
        **_fields(known, "metric", "split", "delta", "low", "high", "p", "p_holm", "p_sign_flip", "probability_better",
                  "seeds", "examples", "needed_seeds", "needed_examples", "reason", "words"),
    }  # fmt: skip


def _variant(key: CellKey) -> str:
    return key[3] if len(key) > 3 else ""


def finite(value: Any) -> Any:
    """The value with null in place of every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
