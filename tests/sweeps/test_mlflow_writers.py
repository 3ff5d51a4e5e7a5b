"""mlflow_writers: what is written as rows is what MLflow's client would have written, whole or not at all."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.mlflow_runs import Runs
from meltpoint.sweeps.mlflow_writers import ClientWriter, Logged, RowWriter, Writer, writer_of
from meltpoint.sweeps.tracking import Tracker

TABLES = {  # what is compared; a run's own id and the time of writing differ
    "runs": "name, source_type, source_name, entry_point_name, user_id, status, end_time IS NULL, source_version, "
    "lifecycle_stage, replace(artifact_uri, run_uuid, 'ID'), experiment_id, deleted_time",
    "tags": "key, value",
    "params": "key, value",
    "metrics": "key, value, timestamp, step, is_nan",
    "latest_metrics": "key, value, timestamp, step, is_nan",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("storage")
    runs = Runs("writers", f"sqlite:///{folder / 'mlflow.db'}", folder)
    runs.open([], "{}")
    return runs


@pytest.fixture
def both(store: Runs) -> tuple[Writer, Writer]:
    rows = writer_of(store.uri, store.client)
    assert isinstance(rows, RowWriter), "MLflow has changed its tables: read them again, then this module"
    return ClientWriter(store.client), rows


def read(store: Runs, run: str) -> dict[str, list[tuple]]:
    with contextlib.closing(sqlite3.connect(store.uri.removeprefix("sqlite:///"))) as base:
        return {
            table: sorted(base.execute(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (run,)), key=repr)
            for table, columns in TABLES.items()
        }


def write_a_trial(writer: Writer, experiment: str) -> str:
    """Begun, cut off, taken up, ended; with values that SQL cannot hold and texts that are too long."""
    run = writer.create(experiment, "a cell trial 0", {"meltpoint.trial": "0" * 16, "meltpoint.status": "running"})
    params = [Param("learning_rate", "0.001"), Param("long", "x" * 7000)]
    writer.log(run, [Metric("train/loss", 2.0, 10, 4), Metric("dev/accuracy", math.nan, 10, 4)], params, [], None)
    assert writer.take_up(run) == Logged(1, True)
    metrics = [
        Metric("train/loss", math.inf, 20, 8),
        Metric("dev/accuracy", 0.5, 20, 8),
        Metric("train/loss", 2.0, 10, 4),
    ]
    tags = [RunTag("meltpoint.status", "failed"), RunTag("mlflow.note.content", "y" * 9000)]
    writer.log(run, metrics, [], tags, "FAILED")
    return run


def test_a_trial_written_as_rows_is_what_the_client_writes(store, both):
    by_client, by_rows = (read(store, write_a_trial(writer, store.experiment)) for writer in both)
    assert by_rows == by_client
    assert len(by_rows["metrics"]) == 4


def test_mlflow_reads_what_was_written_as_rows(store, both):
    run = MlflowClient(store.uri).get_run(write_a_trial(both[1], store.experiment))
    assert (run.info.status, run.info.run_name) == ("FAILED", "a cell trial 0")
    assert run.info.artifact_uri.endswith(f"{run.info.run_id}/artifacts")
    assert (run.data.params["learning_rate"], run.data.metrics["dev/accuracy"]) == ("0.001", 0.5)


VALUES = st.floats(allow_nan=True, width=32) | st.sampled_from([0.0, math.inf, -math.inf])
HISTORIES = st.lists(st.lists(st.tuples(VALUES, st.integers(0, 3), st.integers(0, 3)), max_size=4), max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HISTORIES)
def test_in_whatever_order_values_come_history_and_latest_are_the_clients(store, both, history):
    runs = [writer.create(store.experiment, "run", {}) for writer in both]
    for call in history:
        for writer, run in zip(both, runs, strict=True):
            writer.log(run, [Metric("m", value, when, step) for value, when, step in call], [], [], None)
    assert read(store, runs[0]) == read(store, runs[1])


def test_a_run_that_was_cut_off_before_its_setting_came_is_said_to_have_none(store, both):
    for writer in both:
        assert writer.take_up(writer.create(store.experiment, "run", {})) == Logged(0, False)


def write_and_fail(writer: Writer, run: str) -> None:
    writer.log(run, [Metric("m", 1.0, 0, 0)], [], [], "FINISHED")
    writer.log(run, [], [Param("p", "1")], [], None)
    writer.log(run, [], [Param("p", "2")], [], None)  # a parameter is said once


def test_what_is_written_together_is_there_whole_or_not_at_all(store, both):
    _, rows = both
    run = rows.create(store.experiment, "run", {})
    before = read(store, run)
    with pytest.raises(sqlite3.IntegrityError), rows.together():
        write_and_fail(rows, run)
    assert read(store, run) == before
    rows.log(run, [Metric("m", 1.0, 0, 0)], [], [], "FINISHED")
    assert read(store, run)["metrics"] == [("m", 1.0, 0, 0, 0)]


def test_a_writer_waits_for_another_process_that_holds_the_store(store, both):
    _, rows = both
    path = store.uri.removeprefix("sqlite:///")
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    release.start()
    run = rows.create(store.experiment, "run", {})
    release.join()
    holder.close()
    assert read(store, run)["runs"]


def test_a_run_or_an_experiment_that_a_person_deleted_is_said_to_be_and_not_written_to(store, both, tmp_path):
    _, rows = both
    run = rows.create(store.experiment, "run", {})
    store.client.delete_run(run)
    with pytest.raises(MlflowException, match=f"the run {run} was deleted"):
        rows.take_up(run)
    gone = store.client.create_experiment("gone", artifact_location=tmp_path.as_uri())
    store.client.delete_experiment(gone)
    with pytest.raises(MlflowException, match=r"experiment .* was deleted"):
        rows.create(gone, "run", {})


def test_a_store_whose_tables_are_not_the_known_ones_is_left_to_the_client(tmp_path: Path):
    runs = Runs("later", f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    assert isinstance(runs.writer, RowWriter)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as base:
        base.execute("ALTER TABLE metrics ADD COLUMN entity VARCHAR(32)")
    assert isinstance(writer_of(runs.uri, runs.client), ClientWriter)
    assert isinstance(writer_of("http://127.0.0.1:9", runs.client), ClientWriter)


def test_a_batch_that_fails_leaves_no_run_behind_and_no_id_in_a_record(store, cells, proposal, monkeypatch):
    tracker = Tracker("batch", store.uri, store.storage)
    tracker.open(cells, "{}")
    tracker.flush()
    begin = tracker.runs.begin

    def begin_then_fail(*words: object) -> None:
        begin(*words)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(tracker.runs, "begin", begin_then_fail)
    tracker.begin(proposal, "code")
    assert tracker.run_of(proposal.id) is None
    assert "disk is full" in tracker.trouble
    assert not [r for r in store.client.search_runs([tracker.runs.experiment]) if "meltpoint.trial" in r.data.tags]
