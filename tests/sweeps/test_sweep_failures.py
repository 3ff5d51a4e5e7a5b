"""A whole sweep that is cut off, killed, copied, or whose weights or MLflow are damaged: nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from meltpoint.adapters.training.epochs import best_epoch
from meltpoint.adapters.training.saved_state import DamagedStateError, read_about
from meltpoint.sweeps.ledger.ledger import STATES, Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_options import SHARE
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.tests.marked_processes import titled
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.whole_sweeps import (
    PATIENCE_SECONDS,
    SEEDS,
    TRIALS,
    assert_whole,
    command,
    hung_server,
    mlflow_runs,
    records,
    roles,
    run,
    started,
    wait_until,
)


@pytest.mark.slow
def test_a_time_budget_ends_the_search_and_the_finals_still_follow(spec, tmp_path):
    words = command(spec, tmp_path, "--time-budget", "8s", modes=("fine_tuning",), trials=400)
    ended = run(words)
    assert ended.returncode == 0, ended.stderr
    assert "time budget is spent" in ended.stderr
    found = roles(tmp_path)
    assert 1 <= found["search"] < 400
    assert found["final"] == 2
    more = command(
        spec, tmp_path, "--time-budget", "1h", "--address", "127.0.0.1:1", modes=("fine_tuning",), trials=400
    )
    again = run(more)  # nobody answers there, and nobody is asked
    assert again.returncode == 0, again.stderr
    assert roles(tmp_path) == found
    assert f"its search ended after {found['search']} of 400 trials (budget)" in ended.stdout
    assert "1 of 1 cell ended the search early" in ended.stdout
    assert f"{found['search']} of 400 search trials ran, then the budget was spent" in again.stderr
    assert "is closed because its test split was opened on" in again.stderr
    assert "Nothing is left to train" in again.stderr


def workers_of(process: subprocess.Popen, doing: str = "") -> list[psutil.Process]:
    """The Ray worker processes that train for a driver, or that do what Ray's title for them says."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        return [child for child in family if f"ray::ImplicitFunc{doing}" in titled(child)]
    return []


@pytest.mark.slow
def test_a_worker_that_is_killed_before_its_trial_begins_does_not_hang_the_sweep(spec, tmp_path):
    process = started(command(spec, tmp_path, modes=("fine_tuning",)), tmp_path / "log")
    victims: list[psutil.Process] = []
    wait_until(lambda: victims.extend(workers_of(process, ".__init__")) or victims, process)
    assert victims, "no worker was seen while its actor was made"
    for victim in victims:
        victim.kill()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text(encoding="utf-8")
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


@pytest.mark.slow
def test_a_finalist_whose_weights_are_damaged_is_trained_again_and_scored(done, tmp_path):
    spec, storage = done
    copied = tmp_path / "copied"
    shutil.copytree(storage, copied)
    finals = {record["seed"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        path = copied / "tiny" / "trials" / f"{record['id']}.json"
        path.write_text(json.dumps({**record, "test": None}))
        weights = copied / "tiny" / "checkpoints" / record["id"] / "weights.safetensors"
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.write_bytes(b"half of a fi")
    again = run(command(spec, copied))
    assert again.returncode == 0, again.stderr
    assert "is damaged" in again.stderr
    assert "retraining it" in again.stderr
    scored = {record["id"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        assert scored[record["id"]]["dev"] == record["dev"]
        assert scored[record["id"]]["test"] == record["test"]


@pytest.mark.slow
def test_one_ctrl_c_ends_a_sweep_within_ten_seconds_though_mlflow_hangs(spec, tmp_path):
    with hung_server() as uri:
        words = command(spec, tmp_path, "--tracking-uri", uri, "--set", "epochs=150", modes=("fine_tuning",))
        process = started(words, tmp_path / "log")
        wait_until(lambda: workers_of(process, ".train"), process)
        told = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1
        assert time.monotonic() - told < 10
    assert "Resume it with:" in (tmp_path / "log").read_text(encoding="utf-8")


def listing(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Everything in a folder: when it changed, and what files hold."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def cut_off(storage: Path) -> None:
    """Make a trained final one that began and did not end, as a killed driver leaves it: its note has `storage`."""
    final = next(r for r in records(storage) if r["mode"] == "fine_tuning" and r["role"] == "final" and r["seed"] == 1)
    (storage / "tiny" / "trials" / f"{final['id']}.json").unlink()
    words = ("id", "number", "role", "encoder", "mode", "task", "head", "seed", "setting")
    note = {word: final[word] for word in words}
    note |= {"checkpoint": str(storage / "tiny" / "checkpoints" / final["id"]), "cache": str(storage / "cache")}
    (storage / "tiny" / "started" / f"{final['id']}.json").write_text(json.dumps(note))


@pytest.mark.slow
def test_a_copied_sweep_goes_on_and_is_used_and_the_original_stays_as_it_is(done, tmp_path):
    spec, storage = done
    original, copied = tmp_path / "original", tmp_path / "copied"
    shutil.copytree(storage, original)
    cut_off(original)
    shutil.copytree(original, copied)
    before = listing(original)
    finished = run(command(spec, copied))
    assert finished.returncode == 0, finished.stderr
    assert_whole(copied, cells=2, trials=TRIALS, seeds=SEEDS)
    for words in (["export", "--model"], ["report"], ["ensemble", "--task", "tiny_reviews"], ["status"]):
        used = [sys.executable, "-m", "meltpoint.launch", words[0], "tiny", *words[1:], "--storage", str(copied)]
        assert run(used).returncode == 0
    assert listing(original) == before


@pytest.mark.slow
def test_a_password_in_the_tracking_uri_is_printed_and_kept_nowhere(spec, tmp_path):
    changes = {"modes": ("fine_tuning",), "trials": 1, "seeds": 1}
    away = command(spec, tmp_path, "--tracking-uri", "http://user:pa55word@127.0.0.1:1/", **changes)
    new = run(away)
    assert new.returncode == 2, "a new sweep is refused where nobody answers"
    assert "127.0.0.1:1 does not answer" in new.stderr
    assert run(command(spec, tmp_path, **changes)).returncode == 0
    again = run(away)
    assert again.returncode == 0, again.stderr
    assert ":***@127.0.0.1:1/" in again.stderr
    assert "the same command updates MLflow" in " ".join(again.stderr.split())
    assert "pa55word" not in "".join(one.stdout + one.stderr for one in (new, again))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"pa55word" in path.read_bytes()] == []


EPOCHS = 60
TIMED = {"train_seconds", "dev_seconds", "finished_at"}


def saved_epochs(storage: Path) -> int:
    """The number of saved epochs of the trial under way."""
    found = 0
    for path in (storage / "tiny" / "checkpoints").glob(f"*/{STATES}"):
        try:
            found = max(found, len(read_about(path)["ended_at"]))
        except (FileNotFoundError, DamagedStateError):
            continue  # replaced meanwhile by a later one
    return found


def wait_until_saved(storage: Path, count: int, process: subprocess.Popen) -> None:
    wait_until(lambda: saved_epochs(storage) >= count, process)
    assert process.poll() is None, (storage.parent / "log").read_text(encoding="utf-8")


def undisturbed(spec: SweepSpec, folder: Path) -> dict[str, object]:
    """The numbers of a specification's first trial, as a worker reports them that nobody disturbs."""
    planner = Planner(spec, open_cells(spec), [])
    driver = quiet_driver(planner, Ledger(folder / spec.name), no_epoch_checkpoints=True)
    order = driver.order(planner.next(), 0.0)  # type: ignore[arg-type]
    events = [event for events in worker.run((order,)) for event in events]
    epochs = [event.epoch for event in events if event.epoch is not None]
    best = best_epoch(epochs, order.metric, epochs[-1].phase)
    assert best is not None
    found = [epoch.model_dump(exclude=TIMED) for epoch in epochs]
    return {"id": order.id, "dev": best.dev[order.metric], "best": best.epoch, "epochs": found}


def numbers(storage: Path) -> dict[str, object]:
    (record,) = [one for one in records(storage) if one["role"] == "search"]
    epochs = [{name: value for name, value in epoch.items() if name not in TIMED} for epoch in record["epochs"]]
    return {"id": record["id"], "dev": record["dev"], "best": record["best_epoch"], "epochs": epochs}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["fine_tuning", "stack_and_finetune"])
def test_a_trial_whose_worker_and_then_whose_driver_are_killed_ends_with_the_same_bits(
    spec, tmp_path, monkeypatch, mode
):
    monkeypatch.setenv(SHARE, "1")  # epochs of a tenth of a second are worth saving
    more = ("--set", f"epochs={EPOCHS}")
    words = {"modes": (mode,), "trials": 1, "seeds": 1}
    cut = command(spec, tmp_path / "cut", *more, **words)

    process = started(cut, tmp_path / "log")
    wait_until_saved(tmp_path / "cut", 3, process)
    for victim in workers_of(process):
        victim.kill()
    wait_until_saved(tmp_path / "cut", saved_epochs(tmp_path / "cut") + 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = started(cut, tmp_path / "log")
    assert again.wait(timeout=2 * PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text(encoding="utf-8")

    assert "its worker died" in (tmp_path / "log").read_text(encoding="utf-8")
    assert "resumes after epoch" in (tmp_path / "log").read_text(encoding="utf-8")
    own = spec.model_copy(update={**words, "overrides": (f"epochs={EPOCHS}",)})
    assert numbers(tmp_path / "cut") == undisturbed(own, tmp_path / "whole")
    (record,) = [one for one in records(tmp_path / "cut") if one["role"] == "search"]
    assert record["resumed_after_epochs"] >= 6
    assert record["seconds_before"] > 0
    trained = sum(
        one["train_seconds"] + one["dev_seconds"] for one in record["epochs"][record["resumed_after_epochs"] :]
    )
    assert record["seconds"] >= trained
    assert not list((tmp_path / "cut" / "tiny" / "checkpoints").glob(f"*/{STATES}")), "the record is there: they go"

    client = MlflowClient(f"sqlite:///{tmp_path / 'cut' / 'mlflow.db'}")
    for one in mlflow_runs(tmp_path / "cut"):
        if one.data.tags["meltpoint.role"] != "cell":
            steps = Counter(metric.step for metric in client.get_metric_history(one.info.run_id, "train/loss"))
            assert set(steps.values()) == {1}, "no epoch is told twice"
            assert len(steps) == len(record["epochs"])
            if one.data.tags["meltpoint.role"] == "search":
                assert one.data.tags["meltpoint.resumed_after_epochs"] == str(record["resumed_after_epochs"])
