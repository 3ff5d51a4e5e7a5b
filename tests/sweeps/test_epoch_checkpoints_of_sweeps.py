"""Whole sweeps whose worker and driver are killed between epochs: the trial goes on, to the undisturbed one's bits."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.adapters.training.epochs import SHARE, best_epoch
from meltpoint.adapters.training.training_state import DamagedStateError, read_about
from meltpoint.sweeps.ledger.ledger import STATES, Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.test_sweep_failures import workers_of
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, command, mlflow_runs, records, started

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
    deadline = time.monotonic() + PATIENCE_SECONDS
    while saved_epochs(storage) < count:
        assert process.poll() is None, (storage.parent / "log").read_text(encoding="utf-8")
        assert time.monotonic() < deadline, "no epoch is saved"
        time.sleep(0.01)


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
