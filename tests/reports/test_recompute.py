"""The independent recomputation of reports: it agrees with what is right, and finds what is not."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from meltpoint.reports.report import document_text
from meltpoint.reports.results import results_of
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tests.reports import recompute
from meltpoint.tests.reports.stored_sweeps import store_sweep


def document(ledger: Ledger, resamples: int) -> dict[str, Any]:
    """`report --format json`, with fewer resamples."""
    summary = summarise(ledger)
    comparer = Comparer(ledger.folder, resamples, cells=summary.cells)
    found: dict[str, Any] = json.loads(document_text(results_of(summary, comparer=comparer)))
    return found


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
    ("place", "field", "change"),
    [
        ("cells", "test_mean", 1e-4), ("cells", "dev_std", 1e-4), ("deltas", "delta", 1e-4), ("deltas", "low", 0.05),
        ("deltas", "high", 0.05), ("deltas", "p_holm", 1e-4),
    ],
)  # fmt: skip
def test_a_changed_figure_is_found(tmp_path, place, field, change):
    ledger = store_sweep(tmp_path, "known", ("accuracy",), (0.7, 0.72))
    report = document(ledger, 1000)
    report[place][0][field] += change
    different = [check for check in recompute.checks(tmp_path / "known", report, 300) if not check.is_equal]
    assert [check.name.rpartition(" ")[2] for check in different] == [field]


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
