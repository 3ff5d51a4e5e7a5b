"""tracking: what a person finds in a real MLflow store, and what happens when it is not there."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.planner import Planner, Proposal
from meltpoint.sweeps.tracking import Tracker, default_uri


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder; one SQLite store serves the module, since its first opening takes seconds."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture
def tracker(store: Path, cells, request: pytest.FixtureRequest) -> Tracker:
    made = Tracker(request.node.name[:60], default_uri(store), store)
    made.open(cells, "{}")
    assert made.trouble is None
    return made


@pytest.fixture
def proposal(spec, cells) -> Proposal:
    return Planner(spec, cells, []).next()


def runs(tracker: Tracker) -> list:
    client = MlflowClient(tracker.uri)
    return client.search_runs([tracker.experiment], max_results=1000)


def of_trial(tracker: Tracker, trial: str) -> list:
    return [run for run in runs(tracker) if run.data.tags.get("meltpoint.trial") == trial]


def test_each_cell_is_a_parent_run_with_its_space_and_its_data(tracker, cells):
    parents = {run.info.run_name: run for run in runs(tracker)}
    assert set(parents) == {cell.name for cell in cells}
    for cell in cells:
        run = parents[cell.name]
        assert run.data.tags["meltpoint.role"] == "cell"
        assert run.inputs.dataset_inputs[0].dataset.digest == cell.data_fingerprint
        client = MlflowClient(tracker.uri)
        assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["space.yaml"]


def test_a_trial_is_a_child_run_with_its_setting_its_epochs_and_its_tags(tracker, proposal, make_record):
    tracker.begin(proposal, "code")
    record = make_record(proposal, dev=(0.5, 0.75))
    for epoch in record.epochs:
        tracker.epoch(proposal.id, epoch)
    tracker.end(record)
    (run,) = of_trial(tracker, proposal.id)
    assert run.data.tags["mlflow.parentRunId"] == tracker.parents[proposal.cell.key]
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
    tracker, store, cells, proposal, make_record
):
    tracker.begin(proposal, "code")
    record = make_record(proposal, dev=(0.5, 0.75))
    tracker.epoch(proposal.id, record.epochs[0])
    later = Tracker(tracker.sweep, default_uri(store), store)
    later.open(cells, "{}")
    later.begin(proposal, "code")
    for epoch in record.epochs:
        later.epoch(proposal.id, epoch)
    later.end(record)
    (run,) = of_trial(later, proposal.id)
    history = MlflowClient(later.uri).get_metric_history(run.info.run_id, "dev/accuracy")
    assert [metric.step for metric in history] == [4, 8]
    assert len(runs(later)) == len(cells) + 1


def test_a_failed_trial_is_a_failed_run_that_says_why(tracker, proposal, make_record):
    tracker.begin(proposal, "code")
    tracker.end(make_record(proposal, dev=(), status="failed", error="out of memory: 2 GiB"))
    (run,) = of_trial(tracker, proposal.id)
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"] == "out of memory: 2 GiB"


def test_whatever_the_ledger_has_and_mlflow_has_not_is_written_and_no_run_is_left_running(
    tracker, spec, cells, proposal, make_record
):
    orphan = Proposal("0" * 16, 7, "search", cells[0], proposal.setting, 0)
    tracker.begin(orphan, "code")
    record = make_record(proposal)
    tracker.reconcile([record], lambda _: proposal, "code")
    assert tracker.trouble is None
    assert [run.info.status for run in of_trial(tracker, proposal.id)] == ["FINISHED"]
    assert [run.info.status for run in of_trial(tracker, orphan.id)] == ["KILLED"]
    before = len(runs(tracker))
    tracker.reconcile([record], lambda _: proposal, "code")
    assert len(runs(tracker)) == before


def test_an_ended_sweep_leaves_no_cell_running_and_its_table_with_each(tracker, cells):
    tracker.close([(cell.key, {"best_dev": 0.5}) for cell in cells], True, {"table.md": "| a |"})
    found = runs(tracker)
    assert Counter(run.info.status for run in found) == {"FINISHED": len(cells)}
    assert {run.data.metrics["best_dev"] for run in found} == {0.5}
    names = {artifact.path for artifact in MlflowClient(tracker.uri).list_artifacts(found[0].info.run_id)}
    assert names == {"space.yaml", "table.md"}


def test_a_dead_server_is_one_line_of_trouble_and_stops_nothing(tmp_path, cells, proposal, make_record):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"  # bound, but nobody listens
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        tracker = Tracker("dead", uri, tmp_path)
        tracker.open(cells, "{}")
        assert tracker.begin(proposal, "code") is None
        tracker.end(make_record(proposal))
    assert uri in tracker.trouble
    assert "the ledger keeps everything" in tracker.trouble
    assert "\n" not in tracker.trouble


def test_a_server_that_comes_back_is_filled_in_from_the_ledger(tmp_path, store, cells, proposal, make_record):
    tracker = Tracker("comeback", "http://127.0.0.1:9", tmp_path)  # the discard port: nobody answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        tracker.open(cells, "{}")
        tracker.begin(proposal, "code")
    assert tracker.trouble is not None
    tracker.uri = default_uri(store)
    tracker.reconcile([make_record(proposal)], lambda _: proposal, "code")
    assert tracker.trouble is None
    assert [run.info.status for run in of_trial(tracker, proposal.id)] == ["FINISHED"]
