"""The independent recomputation of reports: it agrees with what is right, and finds what is not."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from meltpoint.reports.statistics.comparison import Comparer, Comparison, adjusted
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import CellSummary, summarise
from meltpoint.tests.reports import recompute
from meltpoint.tests.reports.stored_sweeps import store_sweep

SPREADS = ("dev", "test")


def document(ledger: Ledger, resamples: int) -> dict[str, Any]:
    """The part of `report --format json` that is computed again, from the comparisons."""
    summary = summarise(ledger)
    comparer = Comparer(ledger.folder, resamples, cells=summarise(ledger).cells)
    pairs = [
        (upper, lower)
        for lower in summary.cells
        for upper in summary.cells
        if upper.header.task == lower.header.task and upper.header.mode > lower.header.mode
    ]
    found = adjusted([one for upper, lower in pairs if (one := comparer.compare(upper, lower)) is not None])
    return {"cells": [cell(one) for one in summary.cells], "deltas": [delta(one) for one in found]}


def cell(one: CellSummary) -> dict[str, Any]:
    head = one.header
    spreads = {"dev": one.dev, "test": one.test}
    figures = {f"{split}_{name}": getattr(spreads[split], name) for split in SPREADS for name in ("mean", "std")}
    return {"encoder": head.encoder, "mode": head.mode, "task": head.task, "variant": head.variant} | figures


def delta(one: Comparison) -> dict[str, Any]:
    figures = ("split", "metric", "delta", "low", "high", "p", "p_holm", "probability_better")
    names = {"encoder": one.upper[0], "task": one.upper[2], "a": one.upper[1], "b": one.lower[1]}
    return names | {name: getattr(one, name) for name in figures}


def test_the_recomputation_knows_nothing_of_meltpoint():
    tree = ast.parse(Path(recompute.__file__).read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in modules if name.startswith("meltpoint")]


@pytest.mark.parametrize("metrics", [("accuracy", "span_f1"), ("pearson",), ("matthews",)])
def test_every_figure_of_a_simulated_sweep_is_computed_again_from_its_files(tmp_path, metrics):
    ledger = store_sweep(tmp_path, "known", metrics, (0.7, 0.85))
    found = recompute.checks(tmp_path / "known", document(ledger, 2000), 1000)
    assert [check for check in found if not check.is_equal] == []
    assert len(found) == len(metrics) * (2 * 2 * (4 + 2) + 6), "finals and spreads of two cells, and a difference"


@pytest.mark.parametrize(
    ("place", "field", "change", "name"),
    [
        ("cells", "test_mean", 1e-4, "test_mean"),
        ("cells", "dev_std", 1e-4, "dev_std"),
        ("deltas", "delta", 1e-4, "delta"),
        ("deltas", "low", 0.05, "low"),
        ("deltas", "high", 0.05, "high"),
        ("deltas", "p_holm", 1e-4, "p_holm"),
    ],
)
def test_a_changed_figure_is_found(tmp_path, place, field, change, name):
    ledger = store_sweep(tmp_path, "known", ("accuracy",), (0.7, 0.72))
    report = document(ledger, 1000)
    report[place][0][field] += change
    different = [check for check in recompute.checks(tmp_path / "known", report, 300) if not check.is_equal]
    assert [check.name.rpartition(" ")[2] for check in different] == [name]


def test_changed_predictions_are_found(tmp_path):
    ledger = store_sweep(tmp_path, "known", ("accuracy",), (0.7, 0.72))
    report = document(ledger, 100)
    path = tmp_path / "known" / "predictions" / "minilm.fine_tuning.mrpc.seed2.test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0])
    first["prediction"] = next(label for label in first["probabilities"] if label != first["prediction"])
    path.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n", encoding="utf-8")
    different = [check.name for check in recompute.checks(tmp_path / "known", report, 100) if not check.is_equal]
    assert "minilm.fine_tuning.mrpc seed 2 test" in different


def test_holm_in_loops_is_holm():
    assert recompute.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
