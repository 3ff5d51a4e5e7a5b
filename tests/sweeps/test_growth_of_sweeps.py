"""Whole sweeps that grow, and a page that is written again while its sweep runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import assert_whole, command, records, roles, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def done(words: list[str]) -> str:
    """The standard error of a command that succeeds."""
    ended = run(words)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_a_sweep_grows_by_trials_seeds_and_a_mode_and_mlflow_has_each_trial_once(spec: SweepSpec, tmp_path: Path):
    small = spec.model_copy(update={"modes": ("fine_tuning",), "trials": 2, "seeds": 1})
    done(command(small, tmp_path))
    before = {one["id"]: one for one in records(tmp_path)}
    assert roles(tmp_path) == {"search": 2, "final": 1}
    refused = run(command(spec, tmp_path))
    assert (refused.returncode, "Add --grow" in refused.stderr) == (2, True), refused.stderr
    done(command(spec, tmp_path, "--grow", "--new-test-round"))
    after = {one["id"]: one for one in records(tmp_path)}
    assert after.items() >= before.items() or all(after[one]["dev"] == before[one]["dev"] for one in before)
    assert_whole_but_for_old_finals(tmp_path, spec, before)
    report = (tmp_path / spec.name / "report.md").read_text(encoding="utf-8")
    assert "The sweep grew on" in report
    assert "test round 2" in report


def assert_whole_but_for_old_finals(storage: Path, spec: SweepSpec, before: dict[str, dict]) -> None:
    """Every trial once in ledger and MLflow; the finals of a setting that is no longer the best stay beside the new."""
    found = {one["id"]: one for one in records(storage)}
    best = {
        mode: max(
            (one for one in found.values() if one["mode"] == mode and one["role"] == "search"),
            key=lambda one: (one["dev"], -len(one["epochs"]), -one["number"]),
        )
        for mode in spec.modes
    }
    finals = [one for one in found.values() if one["role"] == "final"]
    current = [one for one in finals if one["setting"] == best[one["mode"]]["setting"]]
    assert len(current) == len(spec.modes) * spec.seeds
    old = [one["id"] for one in finals if one not in current]
    assert set(old) <= before.keys()
    for trial in old:
        (storage / spec.name / "trials" / f"{trial}.json").unlink()
    if not old:
        assert_whole(storage, len(spec.modes), spec.trials, spec.seeds)


def test_a_page_is_written_again_while_its_sweep_runs_and_ends_as_the_sweeps_own(spec: SweepSpec, tmp_path: Path):
    page = tmp_path / "live.html"
    driver = subprocess.Popen(command(spec, tmp_path, "--set", "epochs=30"), stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / spec.name / "sweep.json").exists():
            assert driver.poll() is None, driver.stderr.read() if driver.stderr else ""
        words = ["report", spec.name, "--storage", str(tmp_path), "--format", "html", "--out", str(page), "--watch"]
        watcher = subprocess.Popen(
            [sys.executable, "-m", "meltpoint.launch", *words], stderr=subprocess.PIPE, text=True
        )
        versions: set[str] = set()
        while watcher.poll() is None:
            if page.exists():
                versions.add(page.read_text(encoding="utf-8"))
        assert watcher.returncode == 0, watcher.stderr.read() if watcher.stderr else ""
    finally:
        driver.wait(timeout=600)
    assert driver.returncode == 0
    assert len(versions) >= 3, "before the first trial, in between, and at the end"
    assert all(text.rstrip().endswith("</html>") for text in versions), "none was seen half written"
    assert any('"state": "running"' in text or "running" in text for text in versions)
    assert "done" in page.read_text(encoding="utf-8")
