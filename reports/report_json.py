"""`report --format json`: every figure of a sweep's tables for programs; its schema is docs/report.schema.json."""

from __future__ import annotations

import json
import math
from typing import Any

from meltpoint.reports.findings import without_defaults
from meltpoint.reports.notes import notes, searched_again, searched_less
from meltpoint.reports.results import SweepResults, TuningGain, ran_nowhere
from meltpoint.reports.statistics.finals_scores import cell_class_scores, class_document
from meltpoint.reports.table_values import Delta
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.kept_results import Baseline, Ensemble
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import mixture_in_words
from meltpoint.sweeps.search.selection import Spread
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
    missing = [without_defaults(results)] if results.gains and ran_nowhere(results.gains) else []
    return {
        "version": VERSION, "sweep": summary.name, "state": summary.state, "code_versions": summary.code_versions,
        "recommendations": [one.as_json() for one in results.recommendations],
        "cells": [_cell(cell, results, gains.get(cell.header.key)) for cell in summary.cells],
        "ensembles": [_ensemble(made) for made in summary.ensembles],
        "baselines": [_baseline(known) for known in summary.baselines.values()],
        "deltas": [_delta(delta) for delta in results.table.deltas],
        "footnotes": results.table.footnotes,
        "notes": [*missing, *results.legend, *notes(summary)],
    }  # fmt: skip


def _cell(cell: CellSummary, results: SweepResults, gain: TuningGain | None) -> dict[str, Any]:
    head, best = cell.header, cell.best
    return {
        "encoder": head.encoder, "mode": head.mode, "task": head.task, "variant": head.variant, "head": head.head,
        "kind": head.kind, "metric": head.metric, "trials": cell.counts,
        **_spread("dev", cell.dev), **_spread("test", cell.test),
        "seeds": [final.seed for final in cell.finals], "planned_seeds": results.summary.seeds_of(cell),
        "dev_scores": [final.dev for final in cell.finals],
        "test_scores": [(final.test or {}).get(head.metric) for final in cell.finals],
        **_spread("default_dev", cell.default_dev), **_spread("default_test", cell.default_test),
        "default_seeds": [final.seed for final in cell.default_finals], "tuning": _tuning(gain),
        "best_dev": best and best.dev, "best_trial": best and best.id, "best_epoch": best and best.best_epoch,
        "setting": best and best.setting, "train_seconds": cell.seconds,
        "task_parameters": best and best.task_parameters, "train_examples": head.train_examples,
        "dev_examples": head.dev_examples, "data_fingerprint": head.data_fingerprint,
        "gpu_hours": cell.cost.gpu_hours, "peak_memory_bytes": cell.cost.peak_memory_bytes,
        "trained_parameters": cell.cost.trained_parameters,
        "seconds_of_a_final": cell.cost.seconds_of_a_final, "notes": _notes(cell),
        "classes": class_document(cell_class_scores(cell, results.summary.folder)),
        "lower_is_better": is_lower_better(head.metric),
        "warnings": [guard.text for guard in cell_guards(cell, results.summary.baselines.get(head.task))],
    }  # fmt: skip


def _baseline(known: Baseline) -> dict[str, Any]:
    return {"task": known.task, "metric": known.metric, "split": "dev", "scores": known.scores}


def _spread(name: str, over: Spread | None) -> dict[str, float | None]:
    return {f"{name}_mean": over.mean if over else None, f"{name}_std": over.std if over else None}


def _notes(cell: CellSummary) -> list[str]:
    """Changes to the cell's data and inputs, and differences of its search from others."""
    lines = [*cell.header.notes, *(note for record in [cell.best] if record for note in record.input_notes)]
    lines += [searched_less(cell.closed_early)] if cell.closed_early else []
    lines += [searched_again(cell.test_round)] if cell.test_round > 1 else []
    return lines + ([mixture_in_words(cell.code_uses, cell.best)] if cell.mixes_code else [])


def _tuning(gain: TuningGain | None) -> dict[str, Any] | None:
    """The gain from tuning; null if the cell has no finals, with null figures if nothing was compared."""
    if gain is None:
        return None
    known = gain.comparison
    return {
        "split": known and known.split, "delta": known and known.delta, "low": known and known.low,
        "high": known and known.high, "p": known and known.p, "seeds": known and known.seeds, "words": gain.words,
    }  # fmt: skip


def _ensemble(made: Ensemble) -> dict[str, Any]:
    return {
        "task": made.task, "metric": made.metric, "kind": made.kind,
        "members": [
            {"sweep": one.sweep, "encoder": one.encoder, "mode": one.mode, "variant": one.variant, "head": one.head}
            for one in made.members
        ],
        **_spread("dev", made.spread("dev")), **_spread("test", made.spread("test")), "notes": made.notes,
    }  # fmt: skip


def _delta(delta: Delta) -> dict[str, Any]:
    known = delta.comparison
    return {
        "encoder": delta.encoder, "task": delta.task, "a": known.upper[1], "b": known.lower[1],
        "a_variant": _variant(known.upper), "b_variant": _variant(known.lower), "metric": known.metric,
        "split": known.split, "in_table": True, "in_family": delta.in_family,
        "delta": known.delta, "low": known.low, "high": known.high, "p": known.p, "p_holm": known.p_holm,
        "p_sign_flip": known.p_sign_flip, "probability_better": known.probability_better, "seeds": known.seeds,
        "examples": known.examples, "needed_seeds": known.needed_seeds, "needed_examples": known.needed_examples,
        "reason": known.reason, "words": known.words,
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
