"""The scripts of `examples/`, each run on a finished sweep."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import meltpoint
from meltpoint.tests.reports.stored_sweeps import store_sweep


def cell_of(sweep: Path) -> str:
    """The name of the sweep's one cell, in which the encoder's folder stands."""
    (name,) = meltpoint.load_sweep(sweep).cells.index
    return str(name)


def run(checkout: Path, script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "examples" / f"{script}.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=280, check=False)


def git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with an author and no commit."""
    place = tmp_path / "configs"
    place.mkdir()
    git(place, "init", "--quiet")
    git(place, "config", "user.name", "A Tester")
    git(place, "config", "user.email", "tester@example.org")
    return place


def test_the_training_job_prints_a_command_that_trains_the_setting(checkout: Path, trained: Path, tmp_path: Path):
    done = run(checkout, "training_job", trained, "--out", tmp_path / "jobs", "--transformers", "--run")
    assert done.returncode in (0, 1), done.stderr  # 1: the recorded score is of another code version's arithmetic
    comment, command, *_ = done.stdout.splitlines()
    assert comment.startswith(f"# {cell_of(trained)}: dev accuracy 0.")
    words = shlex.split(command)
    assert words[:3] == ["meltpoint", "train", str(tmp_path / "jobs" / f"{cell_of(trained)}.yaml")]
    assert (tmp_path / "jobs" / f"{cell_of(trained)}.trained" / "model.safetensors").is_file()


def test_a_sweep_that_is_not_there_is_one_line_and_status_2(checkout: Path, tmp_path: Path):
    for script, more in (("training_job", ()), ("config_repository", (checkout,)), ("score_gate", (tmp_path / "b",))):
        done = run(checkout, script, tmp_path / "none", *more)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{script}: No sweep 'none'"), done.stderr
        assert done.stderr.count("\n") == 1


def test_the_settings_are_committed_once_and_again_only_where_they_change(
    checkout: Path, trained: Path, repository: Path
):
    (repository / "notes.txt").write_text("not the script's", encoding="utf-8")
    done = run(checkout, "config_repository", trained, repository)
    assert done.returncode == 0, done.stderr
    assert "Best settings of the sweep small" in done.stdout
    assert git(repository, "ls-files").split() == [f"settings/{cell_of(trained)}.yaml"]
    assert f"{cell_of(trained)}: dev accuracy 0." in git(repository, "log", "-1", "--format=%B")
    assert "; over 2 seeds dev 0." in git(repository, "log", "-1", "--format=%B")
    again = run(checkout, "config_repository", trained, repository)
    assert (again.returncode, again.stdout) == (0, "Nothing changed; no commit.\n")
    assert git(repository, "rev-list", "--count", "HEAD").strip() == "1"
    none = repository.parent / "none"
    none.mkdir()
    refused = run(checkout, "config_repository", trained, none)
    assert (refused.returncode, "not a git repository" in refused.stderr, list(none.iterdir())) == (2, True, [])


# --- the gate ---


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps of one cell: two of the same level, one far below, one of a single seed, and one of another task too."""
    place = tmp_path_factory.mktemp("gate")
    for name, level, seeds in (("before", 0.85, 5), ("same", 0.85, 5), ("worse", 0.6, 5), ("one", 0.6, 1)):
        store_sweep(place, name, ["accuracy"], [level], seeds=seeds)
    store_sweep(place, "two_tasks", ["accuracy", "pearson"], [0.85], seeds=5)
    return place


def test_a_drop_beyond_chance_fails_with_one_clear_line(checkout: Path, storage: Path, tmp_path: Path):
    baseline = tmp_path / "report.json"
    baseline.write_text(report_of(checkout, storage / "before"), encoding="utf-8")
    done = run(checkout, "score_gate", storage / "worse", baseline)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("score_gate: minilm.feature_extraction.mrpc test accuracy 0.")
    assert line.endswith("over 5 and 5 seeds")


def report_of(checkout: Path, sweep: Path) -> str:
    words = [sys.executable, "-m", "meltpoint.launch", "report", sweep.name, "--storage", str(sweep.parent)]
    done = subprocess.run([*words, "--format", "json"], capture_output=True, encoding="utf-8", check=True)
    assert json.loads(done.stdout)["cells"]
    return done.stdout


@pytest.mark.parametrize(
    ("new", "old", "more", "status", "said"),
    [
        ("same", "before", (), 0, ""),
        ("one", "before", (), 1, "one seed: chance is not ruled out"), ("one", "before", ("--tolerance", "0.9"), 0, ""),
        ("same", "two_tasks", (), 1, "sick_r has no score in the new sweep"),
    ],
)  # fmt: skip
def test_a_score_falls_beyond_chance_or_the_tolerance_or_where_it_is_gone(
    checkout: Path, storage: Path, new: str, old: str, more: tuple[str, ...], status: int, said: str
):
    done = run(checkout, "score_gate", storage / new, storage / old, *more)
    assert done.returncode == status
    assert said in done.stderr
    assert status or done.stdout == "Cells compared: 1. No score fell.\n"
