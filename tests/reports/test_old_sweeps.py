"""A finished sweep of an older version is reported in every format, and what it lacks is named.

Its folder has no stored predictions, no finals of the published setting, and no fields that came later.
"""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any, get_args

import pytest

from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.guidelines import run
from meltpoint.reports.report import report
from meltpoint.sweeps.command_line.typer_options import TableFormat
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.tests.reports.stored_sweeps import read_csv

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
SCORES = {"feature_extraction": (0.70, 0.71), "fine_tuning": (0.79, 0.80), "stack_and_finetune": (0.78, 0.80)}
SETTING = {"learning_rate": 5e-5, "epochs": 2}
NO_PREDICTIONS = "no stored predictions of seed 0"


def header(mode: str) -> dict[str, Any]:
    return {
        "encoder": "minilm", "mode": mode, "task": "sst2", "head": "linear", "kind": "sentence_classification",
        "metric": "accuracy", "planned": 1, "space": "parameters:\n  learning_rate: {choice: [5.0e-5]}\n",
        "data_fingerprint": "d" * 16, "train_examples": 6920, "dev_examples": 872, "notes": [],
    }  # fmt: skip


def record(mode: str, role: str, seed: int, test: float | None) -> dict[str, Any]:
    epoch = {
        "epoch": 1, "phase": "train", "step": 10, "train_loss": 0.5, "dev": {"accuracy": 0.8}, "train_seconds": 1.0,
        "dev_seconds": 0.5, "learning_rate": 5e-5, "finished_at": 1.0,
    }  # fmt: skip
    return {
        "id": f"{mode}-{role}-{seed}", "number": seed, "encoder": "minilm", "mode": mode, "task": "sst2",
        "head": "linear", "role": role, "seed": seed, "setting": SETTING, "status": "finished", "metric": "accuracy",
        "dev": 0.8, "best_epoch": 1, "epochs": [epoch], "data_fingerprint": "d" * 16, "code_version": "0.1.0",
        "started_at": 1.0, "seconds": 2.0, **({} if test is None else {"test": {"accuracy": test}}),
    }  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> SweepSummary:
    """Three modes on a task, two seeds each."""
    folder = tmp_path / "old"
    (folder / "trials").mkdir(parents=True)
    spec = {"name": "old", "encoders": ["minilm"], "modes": MODES, "tasks": ["sst2"], "trials": 1, "seeds": 2}
    document = {"spec": spec, "code": "0.1.0", "cells": [header(mode) for mode in MODES]}
    (folder / "sweep.json").write_text(json.dumps(document))
    for mode, scores in SCORES.items():
        records = [record(mode, "search", 0, None)]
        records += [record(mode, "final", seed, test) for seed, test in enumerate(scores)]
        for one in records:
            (folder / "trials" / f"{one['id']}.json").write_text(json.dumps(one))
    return summarise(Ledger(folder))


@pytest.mark.parametrize("form", get_args(TableFormat))
def test_every_format_has_the_scores_and_names_what_is_missing(form: str, old: SweepSummary) -> None:
    text = unescape(report(old, form))
    assert old.state == "done"
    if form == "csv":
        (ice, *_) = read_csv(text)
        assert float(ice["test_mean"]) == pytest.approx(0.705)
        assert ice["default_test_mean"] == ice["tuning_delta"] == ""
        return
    assert NO_PREDICTIONS in text
    assert "setting's finals have not run" in text
    if form != "json":
        assert "9.0" in text, "Δ 🔥 − ❄"
        assert "standard error over seeds" in text


def test_its_guidelines_say_why_nothing_can_be_told(old: SweepSummary, tmp_path: Path) -> None:
    run(AnalysisOptions(sweep=old, ledger=None, out=tmp_path, formats=("csv",)))
    (row,) = read_csv(tmp_path / "guidelines.csv")
    assert (row["advice"], row["in words"]) == ("undecided", f"undecided: {NO_PREDICTIONS}")
    assert float(row["Δ"]) == pytest.approx(0.09)
