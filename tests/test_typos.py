"""Typos: one line before torch, Ray or MLflow is imported, in little more time than the command line's libraries take.

That is 0.2 to 0.3 s of processor time on a server of 2025, and 0.5 to 0.8 on one that does much else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TIMES = 8
"""Most that an answer may take, in times of importing what the command line is made of."""
LIBRARIES = "import os, pydantic, rich.console, typer, yaml; print(sum(os.times()[:2]))"
HEAVY = (
    "torch", "ray", "mlflow", "optuna", "transformers", "datasets", "pandas", "pyarrow", "sklearn", "scipy",
    "matplotlib", "huggingface_hub", "numpy",
)  # fmt: skip

COMMAND = f"""
import json, os, sys
from meltpoint.launch import main
try:
    main()
finally:
    print(json.dumps([sum(os.times()[:2]), [name for name in {HEAVY!r} if name in sys.modules]]))
"""

GOOD = {"name": "n", "encoder": "minilm", "mode": "fine_tuning", "task": "demo_sentiment"}


def sweep(**changes: str) -> list[str]:
    """The words of a sound `plan`, with changes."""
    options = {name.replace("_", "-"): value for name, value in (GOOD | changes).items()}
    return ["plan", *(word for name, value in options.items() for word in (f"--{name}", value))]


def answer(words: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float, list[str]]:
    """What a process of its own says, the processor time that it took, and the heavy parts that it imported."""
    said = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, encoding="utf-8", timeout=60, check=False,
        cwd=folder, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    seconds, heavy = json.loads(said.stdout.splitlines()[-1])
    return said, seconds, heavy


TYPOS = {
    "encoder": (sweep(encoder="roberta-base"), "Did you mean hf:roberta-base?"),
    "encoder folder": (sweep(encoder="hf:/nowhere/at/all"), "There is no folder /nowhere/at/all"),
    "mode": (sweep(mode="finetuning"), "Did you mean fine_tuning?"),
    "task": (sweep(task="demo_sentimnt"), "Did you mean demo_sentiment"),
    "head": (sweep(head="bilstmcrf"), "Did you mean bilstm_crf"),
    "searcher": (sweep(searcher="tpee"), "tpee"),
    "spec": (["plan", "--spec", "to_tune"], "Did you mean to_tune_or_not"),
    "key": (sweep(set="dropuot=0.1"), "--set dropuot=0.1: Unknown key of a space 'dropuot'. Did you mean dropout?"),
    "key of a head": (sweep(set="bilstm.hiden_size=9"), "Did you mean bilstm.hidden_size"),
    "value": (sweep(set="dropout=1.5"), "dropout is 1.5; it takes a number from 0 to 0.95"),
    "value of a head": (sweep(set="mlp.hidden_size=0"), "mlp.hidden_size is 0; it takes a whole number from 1"),
    "value of a spec": (["plan", "--spec", "table_4", "--set", "epochs=0"], "epochs is 0"),
    "space": (sweep(space="absent.yaml"), "absent.yaml"),
    "trials": (sweep(trials="0"), "--trials 0"),
    "name": (sweep(name="a/b"), "--name 'a/b'"),
    "data": (sweep(task="sst2", data_dir="absent"), "absent"),
    "budget": (sweep(time_budget="soon"), "--time-budget 'soon'"),
    "sweep": (["sweep", *sweep(encoder="minilmm")[1:]], "Did you mean minilm?"),
    "status": (["status", "absent"], "No sweep 'absent'"),
    "report": (["report", "absent"], "No sweep 'absent'"),
    "export": (["export", "absent"], "No sweep 'absent'"),
    "format": (["export", "absent", "--format", "yml"], "yml"),
    "ensemble": (["ensemble", "absent", "--task", "sst2"], "No sweep 'absent'"),
    "analyse": (["analyse", "absent", "genres"], "No sweep 'absent'"),
    "analysis": (["analyse", "-", "genre"], "Did you mean genres?"),
    "encoder of an analysis": (
        ["analyse", "-", "genres", "--encoder", "minlm", "--task", "sst2"],
        "Did you mean minilm?",
    ),
    "cell": (["export", "there", "--cell", "minilm.fine.sst2"], "No cell 'minilm.fine.sst2' in sweep 'there'"),
    "task of an ensemble": (["ensemble", "there", "--task", "sst22"], "Unknown task 'sst22'. Did you mean sst2"),
    "table": (["report", "there", "--beside", "table_7"], "'table_7'"),
    "exported file": (["train", "absent.yaml"], "absent.yaml: cannot be read"),
    "encoder of features": (["features", "--encoder", "minlm", "--input", "a", "--out", "b"], "Did you mean minilm?"),
    "text": (["features", "--encoder", "minilm", "--input", "absent.txt", "--out", "b"], "absent.txt is not a file"),
    "submit": (["submit", *sweep(encoder="minilmm")[1:], "--storage", "/runs"], "Did you mean minilm?"),
    "storage of submit": (["submit", *sweep()[1:]], "--storage runs"),
    "environment": (["submit", *sweep()[1:], "--storage", "/runs", "--environment", "tre"], "'tre' is not one of"),
    "address": (["submit", *sweep()[1:], "--storage", "/runs", "--address", "ray://h:1"], "--address ray://h:1"),
    "address of logs": (["logs", "absent", "--address", "http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
    "cache": (["cache", "rm", "abc"], "'abc' matches no entries"),
}


@pytest.fixture(scope="module")
def imports() -> float:
    """The processor time of importing the command line's libraries, in seconds."""
    command = [sys.executable, "-c", LIBRARIES]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a sweep in its `runs`: `there`, which has no cells."""
    made = tmp_path / "runs" / "there"
    made.mkdir(parents=True)
    spec = {"name": "there", "encoders": ["minilm"], "modes": ["fine_tuning"], "tasks": ["demo_sentiment"]}
    (made / "sweep.json").write_text(json.dumps({"spec": spec, "code": "0", "cells": []}), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("typo", TYPOS)
def test_a_typo_is_answered_before_anything_slow_is_imported(typo: str, folder: Path, imports: float):
    words, said = TYPOS[typo]
    answered, seconds, heavy = answer(words, folder)
    assert answered.returncode == 2, answered.stderr
    assert said in answered.stderr
    is_one_line = answered.stderr.startswith("meltpoint: ") and answered.stderr.count("\n") == 1
    assert is_one_line or "Usage: " in answered.stderr, "a word that the parser itself refuses is shown with the usage"
    assert answered.stdout.count("\n") == 1, "nothing but what this test's process prints"
    computes = words[0] in {"report", "ensemble"}  # these need NumPy to say what there is
    assert heavy in ([], ["numpy"]) if computes else heavy == []
    if seconds >= TIMES * imports:  # another process may have slowed this one's processor: the least of three counts
        seconds = min(seconds, *(answer(words, folder)[1] for _ in range(2)))
    assert seconds < TIMES * imports
