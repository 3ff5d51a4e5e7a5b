"""tracker: what a real MLflow store has of a sweep, and what happens when it does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.adapters import modes
from meltpoint.sweeps.driver.run import note_runs
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import tracker as tracking
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.tests.local_servers import until

BEGAN = 1.7e9
"""When the records of `make_record` began."""


@pytest.fixture
def tracker(mlflow_storage: Path, cells, request: pytest.FixtureRequest) -> Tracker:
    made = Tracker(request.node.name[:60], default_uri(mlflow_storage), mlflow_storage)
    made.open(cells, "{}")
    made.flush()
    assert made.trouble is None
    return made


def runs(tracker: Tracker) -> list:
    tracker.flush()
    client = MlflowClient(tracker.uri)
    return client.search_runs([tracker.runs.experiment], max_results=1000)


def files(tracker: Tracker, run: object) -> set[str]:
    """A run's files, where MLflow's server reads them."""
    folder = tracker.storage / "mlartifacts" / tracker.sweep / run.info.run_id / "artifacts"
    assert run.info.artifact_uri == f"mlflow-artifacts:/{tracker.sweep}/{run.info.run_id}/artifacts"
    return {path.name for path in folder.iterdir()}


def of_trial(tracker: Tracker, trial: str) -> list:
    return [run for run in runs(tracker) if run.data.tags.get("meltpoint.trial") == trial]


def test_each_cell_is_a_parent_run_with_its_space(tracker, cells):
    parents = {run.info.run_name: run for run in runs(tracker)}
    assert set(parents) == {"❄ tiny_reviews", "🔥 tiny_reviews"}
    for cell in cells:
        run = parents[f"{modes.get(cell.mode).symbol} {cell.task_name}"]
        assert run.data.tags["meltpoint.cell"] == cell.name
        assert run.data.tags["meltpoint.role"] == "cell"
        assert run.data.tags["meltpoint.data_fingerprint"] == cell.data_fingerprint
        assert files(tracker, run) == {"space.yaml"}


def test_a_trial_is_a_child_run_with_its_setting_its_epochs_and_its_tags(tracker, proposal, make_record):
    tracker.begin(proposal, code_version(), BEGAN)
    record = make_record(proposal, dev=(0.5, 0.75))
    for epoch in record.epochs:
        tracker.epoch(proposal.id, epoch)
    tracker.end(record)
    (run,) = of_trial(tracker, proposal.id)
    assert run.data.tags["mlflow.parentRunId"] == tracker.runs.parents[proposal.cell]
    assert {
        f"meltpoint.{word}" for word in ("sweep", "encoder", "mode", "task", "head", "trial", "role", "status")
    } <= set(run.data.tags)
    assert run.data.params["learning_rate"] == str(proposal.setting["learning_rate"])
    assert run.data.metrics["best_dev"] == 0.75
    assert run.info.status == "FINISHED"
    history = MlflowClient(tracker.uri).get_metric_history(run.info.run_id, "dev/accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(4, 0.5), (8, 0.75)]
    assert [metric.timestamp for metric in history] == [int(epoch.finished_at * 1000) for epoch in record.epochs]


def test_a_trial_that_begins_again_takes_up_its_run_and_logs_no_epoch_twice(
    tracker, mlflow_storage, cells, proposal, make_record
):
    tracker.begin(proposal, code_version(), BEGAN)
    record = make_record(proposal, dev=(0.5, 0.75))
    tracker.epoch(proposal.id, record.epochs[0])
    tracker.flush()
    later = Tracker(tracker.sweep, default_uri(mlflow_storage), mlflow_storage)
    later.open(cells, "{}")
    later.begin(proposal, code_version(), BEGAN)
    for epoch in record.epochs:
        later.epoch(proposal.id, epoch)
    later.end(record)
    (run,) = of_trial(later, proposal.id)
    history = MlflowClient(later.uri).get_metric_history(run.info.run_id, "dev/accuracy")
    assert [metric.step for metric in history] == [4, 8]
    assert len(runs(later)) == len(cells) + 1


def test_whatever_the_ledger_has_and_mlflow_has_not_is_written_and_no_run_is_left_running(
    tracker, mlflow_storage, cells, proposal, make_record
):
    orphan, other = (cells[0].trial(word * 16, 7, "search", proposal.setting, 0) for word in "0b")
    for trial in (orphan, other):
        tracker.begin(trial, code_version(), BEGAN)  # and then the driver is killed
    tracker.flush()
    records = [make_record(proposal, code_version="of an older version"), make_record(other)]
    later = Tracker(tracker.sweep, default_uri(mlflow_storage), mlflow_storage)
    later.open(cells, "{}")
    later.reconcile(records)
    assert later.trouble is None
    assert [run.info.status for run in of_trial(later, orphan.id)] == ["KILLED"]
    for record in records:
        (run,) = of_trial(later, record.id)
        assert run.data.tags["meltpoint.code_version"] == record.code_version
        times = run.info.start_time, run.info.end_time
        assert (run.info.status, times) == ("FINISHED", (1_700_000_000_000, 1_700_000_003_000))
        history = MlflowClient(later.uri).get_metric_history(run.info.run_id, "dev/accuracy")
        assert [metric.timestamp for metric in history] == [1_700_000_001_000, 1_700_000_002_000]
    before = len(runs(later))
    later.reconcile(records)
    assert len(runs(later)) == before


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers that try again soon."""
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.2))


def test_a_server_that_comes_back_is_filled_in_by_itself(eager, tmp_path, mlflow_storage, cells, proposal, make_record):
    said: list[str] = []
    tracker = Tracker("comeback", "http://127.0.0.1:9", tmp_path, said.append)  # nobody listens there
    tracker.open(cells, "{}")
    tracker.begin(proposal, code_version(), BEGAN)
    tell(tracker, make_record(proposal))
    until(lambda: said)
    tracker.uri = default_uri(mlflow_storage)
    until(lambda: len(said) == 2)
    assert "answers again; all data are written" in said[1]
    assert [run.info.status for run in of_trial(tracker, proposal.id)] == ["FINISHED"]


def test_a_run_that_a_person_deleted_holds_nobody_up_and_is_written_again_at_the_end(
    eager, tracker, cells, proposal, make_record
):
    other = cells[0].trial("b" * 16, 1, "search", proposal.setting, 0)
    said: list[str] = []
    tracker.say = said.append
    tracker.begin(proposal, code_version(), BEGAN)
    tracker.flush()
    tracker.runs.client.delete_run(tracker.run_of(proposal.id))
    records = [make_record(trial) for trial in (proposal, other)]
    tell(tracker, records[0])
    tracker.begin(other, code_version(), BEGAN)
    tell(tracker, records[1])
    until(lambda: [run.info.status for run in _searched(tracker, other.id)] == ["FINISHED"])
    tracker.flush()
    assert "deleted" in tracker.trouble
    assert len(said) == 1
    tracker.reconcile(records)
    assert tracker.trouble is None
    assert [run.info.status for run in of_trial(tracker, proposal.id)] == ["FINISHED"]
    assert [run.info.status for run in of_trial(tracker, other.id)] == ["FINISHED"]


def _searched(tracker: Tracker, trial: str) -> list:
    """A trial's runs, without waiting for the tracker."""
    return MlflowClient(tracker.uri).search_runs([tracker.runs.experiment], f"tags.`meltpoint.trial` = '{trial}'")


class SlowRuns:
    """Stands for a store that is busy: it notes each call, and waits with the first until it may go on."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.calls: list[tuple] = []
        self.entered, self.may_go_on = threading.Event(), threading.Event()
        self.cells = self

    def open(self, *_: object) -> None:
        self.entered.set()
        assert self.may_go_on.wait(20)

    def begin(self, proposal: Trial, code: str, started_at: float) -> None:
        self.runs[proposal.id] = f"run of {proposal.id}"
        self.calls.append(("begin", proposal.id))

    def write(self, trial: str, epochs: list, record: object) -> None:
        self.calls.append(("write", trial, [epoch.epoch for epoch in epochs], record is not None))

    def abandon(self, trial: str, at: float) -> None:
        self.calls.append(("abandon", trial))

    def answers(self) -> bool:
        return True

    def close(self, *_: object) -> None:
        self.calls.append(("close",))


@pytest.fixture
def slow(tmp_path, cells, monkeypatch: pytest.MonkeyPatch):
    """A tracker whose store is busy until `slow.may_go_on` is set, and that store."""
    runs = SlowRuns()
    monkeypatch.setattr("meltpoint.sweeps.tracking.runs.Runs", lambda *_: runs)
    tracker = Tracker("slow", "sqlite://", tmp_path)
    tracker.open(cells, "{}")
    assert runs.entered.wait(20)
    yield tracker, runs
    runs.may_go_on.set()
    tracker.close([], True, {})


def tell(tracker: Tracker, record) -> None:
    for epoch in record.epochs:
        tracker.epoch(record.id, epoch)
    tracker.end(record)


def test_nobody_waits_for_a_busy_store_and_what_gathered_goes_out_in_one_call_a_trial(slow, spec, cells, make_record):
    tracker, runs = slow
    first, second = (cells[0].trial(word * 16, 0, "search", {}, 0) for word in "ab")
    for proposal in (first, second):
        tracker.begin(proposal, code_version(), BEGAN)
        tell(tracker, make_record(proposal))
    assert runs.calls == []
    runs.may_go_on.set()
    tracker.flush()
    assert runs.calls == [
        ("begin", first.id), ("write", first.id, [1, 2], True), ("begin", second.id),
        ("write", second.id, [1, 2], True),
    ]  # fmt: skip


def test_a_trial_begins_at_once_and_its_news_gather_until_they_are_asked_for(slow, cells, make_record, monkeypatch):
    tracker, runs = slow
    monkeypatch.setattr("meltpoint.sweeps.tracking.unwritten.GATHER_SECONDS", 30.0)
    begun = threading.Event()
    begin = runs.begin
    monkeypatch.setattr(runs, "begin", lambda *words: (begin(*words), begun.set()))
    proposal = cells[0].trial("a" * 16, 0, "search", {}, 0)
    runs.may_go_on.set()
    tracker.begin(proposal, code_version(), BEGAN)
    assert begun.wait(20)
    assert tracker.run_of(proposal.id) == f"run of {proposal.id}"
    tell(tracker, make_record(proposal))
    assert runs.calls == [("begin", proposal.id)]
    tracker.flush()
    assert runs.calls == [("begin", proposal.id), ("write", proposal.id, [1, 2], True)]


def test_closing_writes_everything_first_and_ends_the_thread(slow, cells, make_record):
    tracker, runs = slow
    proposal = cells[0].trial("a" * 16, 0, "search", {}, 0)
    tracker.begin(proposal, code_version(), BEGAN)
    tell(tracker, make_record(proposal))
    runs.may_go_on.set()
    tracker.close([(cells[0].key, {})], True, {})
    assert runs.calls[-2:] == [("write", proposal.id, [1, 2], True), ("close",)]
    assert not tracker._thread.is_alive()


@pytest.mark.parametrize(
    "before", ["", "INTERNAL_ERROR: (raised as a result of Query-invoked autoflush; consider …)\n"]
)
def test_a_write_that_fails_in_a_way_nobody_foresaw_is_trouble_with_its_reason_and_holds_nobody_up(
    slow, eager, cells, make_record, monkeypatch, before
):
    (tracker, runs), begin = slow, slow[1].begin
    first, second = (cells[0].trial(word * 16, 0, "search", {}, 0) for word in "ab")
    failing = Mock(side_effect=RuntimeError(f"{before}disk is full\n[SQL: …]"))
    monkeypatch.setattr(runs, "begin", lambda one, *more: (failing if one == first else begin)(one, *more))
    for proposal in (first, second):
        tracker.begin(proposal, code_version(), BEGAN)
        tell(tracker, make_record(proposal))
    runs.may_go_on.set()
    tracker.flush()
    assert tracker.run_of(first.id) is None
    assert "(disk is full)" in tracker.trouble
    assert runs.calls == [("begin", second.id), ("write", second.id, [1, 2], True)]


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that takes connections and never answers; a call waits a minute for it."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_hung_server_delays_no_trial_and_its_records_get_their_runs_once_it_answers(
    hung, eager, tmp_path, mlflow_storage, cells, spec, make_record
):
    ledger = Ledger(tmp_path / "hung")
    ledger.create()
    tracker = Tracker("hung", f"http://127.0.0.1:{hung.getsockname()[1]}", tmp_path)
    tracker.open(cells, "{}")
    connection, _ = hung.accept()  # MLflow is imported, and its first call waits for an answer
    trials = [cells[0].trial(f"{number:016x}", number, "search", {}, 0) for number in range(20)]
    began = time.perf_counter()
    for proposal in trials:
        tracker.begin(proposal, code_version(), BEGAN)
        record = make_record(proposal)
        tell(tracker, record)
        assert tracker.run_of(proposal.id) is None
        ledger.write(record)
    seconds = time.perf_counter() - began
    assert tracker.trouble is None, "it still waits for the server's answer"
    assert seconds < 1.0, "its records' files included"
    tracker.uri = default_uri(mlflow_storage)
    connection.close()
    tracker.reconcile(ledger.records())
    assert tracker.trouble is None
    note_runs(ledger, tracker, ledger.records())
    known = {run.data.tags.get("meltpoint.trial"): run.info.run_id for run in runs(tracker)}
    noted = {record.id: record.mlflow_run_id for record in ledger.records()}
    assert noted == {trial.id: known[trial.id] for trial in trials}


def test_a_final_that_a_later_driver_scores_gets_its_scores_and_none_of_its_epochs_twice(
    mlflow_storage, cells, proposal, make_record
):
    first = Tracker("scored", default_uri(mlflow_storage), mlflow_storage)
    first.open(cells, "{}")
    first.begin(proposal, "c", BEGAN)
    record = make_record(proposal)
    first.end(record)
    first.flush()
    later = Tracker("scored", default_uri(mlflow_storage), mlflow_storage)
    later.open(cells, "{}")
    later.end(record.model_copy(update={"test": {"accuracy": 0.5}}))
    later.flush()
    assert later.trouble is None
    (run,) = of_trial(later, proposal.id)
    assert run.data.metrics["test_score"] == 0.5
    history = MlflowClient(later.uri).get_metric_history(run.info.run_id, "dev/accuracy")
    assert [metric.step for metric in history] == [4, 8]
