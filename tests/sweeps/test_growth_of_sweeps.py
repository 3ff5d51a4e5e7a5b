"""Whole sweeps that grow, and a page that is written again while its sweep runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import command, mlflow_runs, records, roles, run

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
    assert {trial: after[trial]["dev"] for trial in before} == {trial: one["dev"] for trial, one in before.items()}
    assert roles(tmp_path)["search"] == len(spec.modes) * spec.trials
    for mode in spec.modes:
        assert len(finals_of_the_best(after.values(), mode)) == spec.seeds
    runs = mlflow_runs(tmp_path, spec.name)
    assert Counter(filter(None, (run.data.tags.get("meltpoint.trial") for run in runs))) == dict.fromkeys(after, 1)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {one["status"] for one in after.values()} == {"finished"}
    assert not list((tmp_path / spec.name / "started").iterdir())
    report = (tmp_path / spec.name / "report.md").read_text(encoding="utf-8")
    assert "The sweep grew on" in report
    assert "test round 2" in report


def finals_of_the_best(found: Iterable[dict], mode: str) -> list[dict]:
    """The finals of a cell's best setting; those of an earlier best one stay in the ledger beside them."""
    own = [one for one in found if one["mode"] == mode]
    search = [one for one in own if one["role"] == "search"]
    best = max(search, key=lambda one: (one["dev"], -len(one["epochs"]), -one["number"]))
    return [one for one in own if one["role"] == "final" and one["setting"] == best["setting"]]
