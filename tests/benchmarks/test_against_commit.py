"""Comparison with an older commit: exported trees, and figures of the trials that ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.benchmarks.against_commit import export, measurement


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of one file."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for text in ("old", "new"):
        (folder / "launch.py").write_text(f"print({text!r})\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", text], check=True)
        subprocess.run([*git, "tag", text], check=True)
    (folder / "launch.py").write_text("print('not committed')\n")
    return folder


def test_each_side_runs_its_own_commit(repository: Path, tmp_path: Path):
    for commit, expected in (("HEAD", "new"), ("old", "old")):
        tree = export(repository, commit, tmp_path / "trees")
        done = subprocess.run(
            [sys.executable, "-m", "meltpoint.launch"], env={"PYTHONPATH": str(tree)}, capture_output=True,
            encoding="utf-8", check=True,
        )  # fmt: skip
        assert done.stdout.strip() == expected


def test_a_word_that_is_no_commit_is_named(repository: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="nonsense is no commit of"):
        export(repository, "nonsense", tmp_path / "trees")


def write(folder: Path, **changes: object) -> None:
    record = {"started_at": 10.0, "seconds": 5.0, "status": "finished", "epochs": [1, 2], "error": None}
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps(record | changes))


def test_only_trials_that_ran_count(tmp_path: Path):
    write(tmp_path / "trials")
    write(tmp_path / "trials", started_at=12.0, seconds=8.0, status="stopped", epochs=[1])
    write(tmp_path / "trials", started_at=1000.0, answered_by="0")
    measured = measurement(60.0, 90.0, tmp_path / "trials")
    assert measured.seconds == 60.0
    assert measured.details == {"first to last trial, s": 10.0, "epochs": 3, "processor seconds": 90.0}


def test_a_failed_trial_ends_the_comparison_with_its_error(tmp_path: Path):
    write(tmp_path / "trials", status="failed", error="out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        measurement(60.0, 90.0, tmp_path / "trials")
    with pytest.raises(RuntimeError, match="no trial ended"):
        measurement(60.0, 90.0, tmp_path / "nothing")
