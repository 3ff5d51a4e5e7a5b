"""The published setting's finals in whole sweeps on a real Ray: through the door, and cut off in their midst."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import CellSummary, summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, command, mlflow_runs, records, run, started

BAD_FIRST = ("--set", "learning_rate={choice: [0.0000001, 0.01], first: 0.0000001}", "--set", "dropout=0.1")
"""A space of two settings, of which the published one learns nothing where the encoder trains."""
LONG_FIRST = ("--set", "epochs={choice: [2, 1], first: 2}", "--set", "learning_rate=0.001", "--set", "dropout=0.1")
"""A space of two settings that score alike on a frozen encoder, so that the one with fewer epochs wins."""


def of_role(storage: Path, role: str) -> list[dict]:
    return sorted((one for one in records(storage) if one["role"] == role), key=lambda one: one["seed"])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def openings(storage: Path) -> Counter:
    return Counter(line["trial"] for line in lines(storage / "tiny" / "test_openings.jsonl"))


def assert_whole_with_defaults(storage: Path, seeds: int) -> CellSummary:
    """Every final of both settings once in the ledger and in MLflow, scored, with its opening; returns the cell."""
    summary = summarise(Ledger(storage / "tiny"))
    (cell,) = summary.cells
    assert summary.state == "done"
    expected = {"search": 2, "final": seeds, "default": seeds}
    assert Counter(record["role"] for record in records(storage)) == expected
    runs = mlflow_runs(storage)
    assert Counter(run.data.tags["meltpoint.role"] for run in runs) == {"cell": 1, **expected}
    assert {run.info.status for run in runs} == {"FINISHED"}
    defaults, by_id = of_role(storage, "default"), {one["id"]: one for one in records(storage)}
    assert [one["seed"] for one in defaults] == list(range(seeds))
    assert {json.dumps(one["setting"], sort_keys=True) for one in defaults} == {
        json.dumps(cell.header.published, sort_keys=True)
    }
    assert [one["answered_by"] is not None for one in defaults] == [True, *[False] * (seeds - 1)]
    first = by_id[defaults[0]["answered_by"]]
    assert (first["suggested_by"], first["dev"], first["epochs"]) == (
        "first",
        defaults[0]["dev"],
        defaults[0]["epochs"],
    )
    scored = {one["id"] for role in ("final", "default") for one in of_role(storage, role)}
    assert set(openings(storage)) == scored
    assert {path.name for path in (storage / "tiny" / "checkpoints").iterdir()} == {cell.kept and cell.kept.id}
    assert not list((storage / "tiny" / "started").iterdir())
    return cell


def assert_predictions_give_their_scores(storage: Path) -> None:
    for role, mark in (("final", ""), ("default", ".default")):
        for record in of_role(storage, role):
            for split, score in (("dev", record["dev"]), ("test", record["test"]["accuracy"])):
                name = f"*tiny_reviews{mark}.seed{record['seed']}.{split}.jsonl"
                (path,) = (storage / "tiny" / "predictions").glob(name)
                said = lines(path)
                assert sum(line["gold"] == line["prediction"] for line in said) / len(said) == score


def test_a_sweep_runs_and_scores_the_published_setting_beside_the_best_one(spec: SweepSpec, tmp_path: Path) -> None:
    frozen = spec.model_copy(update={"modes": ("feature_extraction",), "default_finals": True, "seeds": 3, "trials": 2})
    done = run(command(frozen, tmp_path, *LONG_FIRST))
    assert done.returncode == 0, done.stderr
    assert "1 cell: 2 search trials + 3 finals + up to 3 default finals, 1 of each answered by its" in done.stderr
    cell = assert_whole_with_defaults(tmp_path, seeds=3)
    assert cell.best is not None
    assert cell.best.suggested_by in ("random", "grid")
    assert set(openings(tmp_path).values()) == {1}, "only a killed driver's are opened again"
    assert_predictions_give_their_scores(tmp_path)
    runs = {run.data.tags.get("meltpoint.trial"): run for run in mlflow_runs(tmp_path)}
    (whole,) = (run for run in runs.values() if run.data.tags["meltpoint.role"] == "cell")
    assert cell.default_test is not None
    assert whole.data.metrics["default_test_mean"] == cell.default_test.mean
    for record in records(tmp_path):
        tags = runs[record["id"]].data.tags
        assert tags.get("meltpoint.suggested_by") == record["suggested_by"]
        assert (record["suggested_by"] is None) == (record["role"] != "search")
    named = {runs[one["id"]].info.run_name.rpartition("tiny_reviews · ")[2] for one in of_role(tmp_path, "default")}
    assert named == {f"default, seed {seed}" for seed in range(3)}
    again = run(command(frozen, tmp_path, *LONG_FIRST, "--address", "127.0.0.1:1"))  # nobody is asked
    assert again.returncode == 0, again.stderr
    assert "Nothing is left to train" in again.stderr
    words = [sys.executable, "-m", "meltpoint.launch", "status", "tiny", "--json", "--storage", str(tmp_path)]
    (document,) = json.loads(run(words).stdout)["cells"]
    assert document["default"]["test_mean"] == cell.default_test.mean


def begun(storage: Path, role: str) -> list[str]:
    """The notes of trials of a role that have begun."""
    found = []
    for path in (storage / "tiny" / "started").glob("*.json"):
        with suppress(FileNotFoundError, json.JSONDecodeError):
            note = json.loads(path.read_text(encoding="utf-8"))
            found += [note["id"]] if note["role"] == role else []
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_in_their_midst_and_before_they_are_scored_a_sweep_ends_with_each_of_them_once(spec, tmp_path):
    tuned = spec.model_copy(update={"modes": ("fine_tuning",), "default_finals": True, "seeds": 3, "trials": 2})
    words = command(tuned, tmp_path, *BAD_FIRST, "--set", "epochs=20")
    (tmp_path / "tiny" / "trials").mkdir(parents=True)
    moments = {
        "one trains": lambda: begun(tmp_path, "default"),
        "one has ended": lambda: any(not one["answered_by"] for one in of_role(tmp_path, "default")),
        "one is scored": lambda: any(one["test"] for one in of_role(tmp_path, "default")),
    }
    for moment, has_come in moments.items():
        process = started(words, tmp_path / "log")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not has_come() and process.poll() is None:
            assert time.monotonic() < deadline, moment
            time.sleep(0.02)
        process.kill()
        process.wait()
    before = {one["id"]: one["dev"] for one in of_role(tmp_path, "default")}
    assert before, "killed too early to show anything"
    done = run(words)
    assert done.returncode == 0, done.stderr
    cell = assert_whole_with_defaults(tmp_path, seeds=3)
    assert {one.id: one.dev for one in cell.default_finals if one.id in before} == before
    assert_predictions_give_their_scores(tmp_path)
