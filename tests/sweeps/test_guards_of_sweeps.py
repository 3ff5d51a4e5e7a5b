"""Guards on whole sweeps: each is tripped by the sweep that it is for, and ten sound sweeps on real data trip none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.guards import guards
from meltpoint.sweeps.results.summary import SweepSummary, summarise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TASK = """name: {name}
kind: sentence_classification
files: {{train: train.tsv, dev: dev.tsv}}
test_from: {{from: train, fraction: 0.2}}
format: tsv
columns: {{text: text, label: label}}
labels: [good, bad{more}]
"""


def task_of(folder: Path, dev: int = 400, shared: int = 0, more: str = "") -> Path:
    """A task whose labels a linear model on words tells perfectly; `shared` dev texts stand in train."""
    train = [(f"text {n} is {'fine' if n % 2 else 'poor'}", "good" if n % 2 else "bad") for n in range(400)]
    own = [(f"dev {n} seems {'fine' if n % 2 else 'poor'}", "good" if n % 2 else "bad") for n in range(dev - shared)]
    for name, rows in (("train", train), ("dev", own + train[:shared])):
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    path = folder / "task.yaml"
    path.write_text(TASK.format(name="made", more=more))
    return path


def swept(storage: Path, *words: str) -> tuple[SweepSummary, str]:
    """A sweep's results, and all that it printed."""
    command = [sys.executable, "-m", "meltpoint.launch", "sweep", "--name", "s", "--storage", str(storage)]
    asked = [*command, "--no-default-finals", *words]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return summarise(Ledger(storage / "s")), " ".join((done.stdout + done.stderr).split())


TRIPPED = {
    "a small dev split": ({"dev": 60}, (), "data", "dev has 60 examples"),
    "texts of dev in train": ({"shared": 40}, (), "data", "also occur in train"),
    "a class that is missing": ({"more": ", mixed"}, (), "data", "train has no example of mixed"),
    "not above a linear model": ({}, ("--set", "epochs=1"), "baseline", "is not above"),
    "few steps": (
        {}, ("--mode", "fine_tuning", "--set", "epochs=1", "--set", "batch_size=32"), "few_steps",
        "raise epochs or trials",
    ),
    "the edge of a range": (
        {}, ("--set", "learning_rate={log_uniform: [1e-4, 1e-2], first: 1e-2}", "--set", "epochs=2"), "edge",
        "is at the top of its range (0.01)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRIPPED)
def test_a_guard_is_tripped_by_a_sweep_and_said_on_the_terminal_and_in_the_table(
    case: str, tiny_encoder: str, tmp_path: Path
) -> None:
    data, words, kind, part = TRIPPED[case]
    task = task_of(tmp_path, **data)  # type: ignore[arg-type]
    mode = () if "--mode" in words else ("--mode", "feature_extraction")
    common = ("--encoder", tiny_encoder, "--task", str(task), "--head", "linear", "--trials", "1", "--seeds", "1")
    summary, said = swept(tmp_path / "runs", *common, *mode, *words)
    assert [one.text for one in guards(summary) if one.kind == kind and part in one.text]
    assert part in said
    assert part in " ".join((tmp_path / "runs" / "s" / "report.md").read_text(encoding="utf-8").split())


SOUND = {
    "sst2, its makers' head": ("sst2",), "sst2, another seed": ("sst2", "--seed", "1"),
    "sst2, a third seed": ("sst2", "--seed", "2"), "sst2, 4 000 examples": ("sst2", "--max-train-examples", "4000"),
    "stsb, its makers' head": ("stsb",), "stsb, another seed": ("stsb", "--seed", "1"),
    "stsb, 3 000 examples": ("stsb", "--max-train-examples", "3000"),
    "qqp, its makers' head": ("qqp",), "qqp, 4 000 examples": ("qqp", "--max-train-examples", "4000"),
    "mnli, 6 000 examples": ("mnli", "--max-train-examples", "6000"),
}  # fmt: skip


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of hidden states that the sweeps share, so that a task's texts are encoded once."""
    return tmp_path_factory.mktemp("features")


def test_a_head_that_misses_what_the_encoder_was_made_for_is_below_words_alone(
    minilm: Path, shared: Path, features: Path, tmp_path: Path
) -> None:
    """all-MiniLM's mean is trained, and its [CLS] is not: `linear` on it is below TF-IDF on sst2."""
    summary, said = swept(
        tmp_path / "runs", "--encoder", "minilm", "--mode", "feature_extraction", "--task", "sst2", "--head", "linear",
        "--data-dir", str(shared / "data"), "--cache-dir", str(features), "--trials", "4", "--seeds", "2",
    )  # fmt: skip
    assert [one.kind for one in guards(summary)] == ["baseline"]
    assert "is not above a linear model on TF-IDF" in said


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_sweep_trips_no_guard(case: str, minilm: Path, shared: Path, features: Path, tmp_path: Path) -> None:
    task, *words = SOUND[case]
    summary, _ = swept(
        tmp_path / "runs", "--encoder", "minilm", "--mode", "feature_extraction", "--task", task, "--data-dir",
        str(shared / "data"), "--cache-dir", str(features), "--trials", "4", "--seeds", "2", *words,
    )  # fmt: skip
    assert [one.line for one in guards(summary)] == []
