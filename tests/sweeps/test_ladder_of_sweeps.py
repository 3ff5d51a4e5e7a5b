"""A whole sweep of all modes: search, table, exported models, and a training of each setting again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import peft
import pytest
import transformers

from meltpoint.adapters import modes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tests.sweeps.whole_sweeps import run

MELTPOINT = [sys.executable, "-m", "meltpoint.launch"]


@pytest.mark.slow
def test_the_ladder_runs_from_its_files_to_models_and_every_setting_trains_again(
    tiny_encoder, tiny_task: Path, tmp_path: Path
):
    storage = ["--storage", str(tmp_path / "runs")]
    short = {"epochs": 2, "batch_size": 8, "learning_rate": {"choice": [0.001, 0.003]}}
    sections = {name: {"parameters": short} for name in modes.names()}
    sections["probe"] = {"parameters": {"probe.c": {"choice": [0.1, 1.0]}}}
    space = tmp_path / "space.yaml"
    space.write_text(json.dumps({"modes": sections}), encoding="utf-8")
    done = run([
        *MELTPOINT, "sweep", "--name", "rungs", "--encoder", tiny_encoder, "--mode", "ladder", "--task", str(tiny_task),
        "--trials", "2", "--seeds", "2", "--space", str(space), *storage,
    ])  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(tmp_path / "runs" / "rungs"))
    assert [cell.header.mode for cell in summary.cells] == list(modes.expanded(["ladder"]))
    trained = {cell.header.mode: cell.cost.trained_parameters or 0 for cell in summary.cells}
    whole = {cell.header.mode: cell.cost.model_parameters or 0 for cell in summary.cells}
    assert all(cell.test is not None for cell in summary.cells)
    assert {cell.header.mode: len(cell.finals) for cell in summary.cells} == {
        name: 1 if name == "probe" else 2 for name in modes.names()
    }
    assert trained["norm_bias"] < trained["lora"] < trained["fine_tuning"] == whole["fine_tuning"]
    assert run([*MELTPOINT, "export", "rungs", "--model", *storage]).returncode == 0
    exports = tmp_path / "runs" / "rungs" / "exports"
    (adapter,) = exports.glob("*lora*.model/adapter")
    base = transformers.AutoModel.from_pretrained(tiny_encoder.removeprefix("hf:"))
    assert peft.PeftModel.from_pretrained(base, adapter).peft_config["default"].r in (8, 16, 32)
    for setting in sorted(exports.glob("*.yaml")):
        again = run([*MELTPOINT, "train", str(setting), "--json"])
        assert again.returncode == 0, f"{setting.name}: {again.stderr}"
        assert json.loads(again.stdout)["same"] is True
