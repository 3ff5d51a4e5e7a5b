"""mlflow_runs: a trial's run by the client's calls, in a real store: what is in it, and what runs are left alone."""

from __future__ import annotations

import math
import os
import shutil
import threading
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.tracking import store
from meltpoint.sweeps.tracking.dashboard import CellEnding
from meltpoint.sweeps.tracking.runs import Runs

BEGAN = 1.7e9
"""When the records of `make_record` began."""


@pytest.fixture
def runs(mlflow_storage: Path, cells, request: pytest.FixtureRequest) -> Runs:
    made = Runs(request.node.name[:60], f"sqlite:///{mlflow_storage / 'mlflow.db'}", mlflow_storage)
    made.open(cells, "{}", BEGAN)
    return made


def of_trial(runs: Runs, trial: str) -> list:
    found = runs.client.search_runs([runs.experiment], max_results=1000)
    return [run for run in found if run.data.tags.get("meltpoint.trial") == trial]


def test_a_sweep_waits_while_another_one_makes_the_store(tmp_path, made_store, monkeypatch):
    monkeypatch.setattr(store, "_make_store", lambda uri, path: shutil.copy(made_store, path))
    waits = threading.Event()
    monkeypatch.setattr(store, "acquire", lambda *words, **options: (waits.set(), acquire(*words, **options)))
    with (tmp_path / "mlflow.db.lock").open("a") as other:
        acquire(other, shared=False, wait=True)
        opening = threading.Thread(target=Runs, args=("late", f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path))
        opening.start()
        assert waits.wait(20)
        opening.join(0.2)
        assert opening.is_alive()
        assert not (tmp_path / "mlflow.db").exists()
    opening.join(60)
    assert (tmp_path / "mlflow.db").exists()


def test_a_process_that_ends_while_it_makes_the_store_leaves_none_that_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / ".mlflow.db.0.tmp").write_text("half a store")
    (tmp_path / ".mlflow.db.0.tmp-journal").write_text("and its journal")

    def half(uri: str) -> None:
        Path(uri.removeprefix("sqlite:///")).write_text("half of another one")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "MlflowClient", half)
        with pytest.raises(KeyboardInterrupt):
            Runs("killed", f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    assert [path.suffix for path in tmp_path.glob(".mlflow.db.*")] == [".tmp"], "the older one is gone"
    assert not (tmp_path / "mlflow.db").exists()
    before = os.umask(0o002)  # of people who share a storage
    Runs("after", f"sqlite:///{tmp_path}/mlflow.db?timeout=20", tmp_path).open([], "{}", BEGAN)
    os.umask(before)
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.lock"}
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("is_known", [True, False], ids=["the same driver", "a later one"])
def test_no_run_ends_before_it_began_though_the_clock_is_set_back_meanwhile(
    runs, mlflow_storage, cells, proposal, make_record, is_known
):
    runs.begin(proposal, code_version(), BEGAN)
    runs.abandon(proposal.id, BEGAN - 3600)
    (abandoned,) = of_trial(runs, proposal.id)
    assert (abandoned.info.status, abandoned.info.end_time) == ("KILLED", 1000 * BEGAN)
    later = runs if is_known else Runs(runs.sweep, runs.uri, mlflow_storage)
    if not is_known:
        later.open(cells, "{}", BEGAN - 3600)
    later.begin(proposal, code_version(), BEGAN - 3600)
    later.write(proposal.id, [], make_record(proposal, started_at=BEGAN - 3600, seconds=3.0))
    for cell in cells:
        later.close(cell.key, {}, True, {}, {}, BEGAN - 3600, CellEnding())
    ended = later.client.search_runs([later.experiment], max_results=1000)
    assert {run.info.status for run in ended} == {"FINISHED"}
    assert all(run.info.end_time >= run.info.start_time for run in ended)


def test_values_that_are_no_numbers_long_errors_and_many_epochs_are_written(runs, proposal, make_record):
    record = make_record(proposal, dev=(0.5,) * 400, status="failed", error="y" * 9000)
    record.epochs[0] = record.epochs[0].model_copy(update={"train_loss": math.nan})
    record.epochs[1] = record.epochs[1].model_copy(update={"train_loss": math.inf})
    runs.begin(proposal, code_version(), BEGAN)
    runs.write(proposal.id, record.epochs, record)
    (run,) = of_trial(runs, proposal.id)
    history = runs.client.get_metric_history(run.info.run_id, "train/loss")
    assert len(history) == len(record.epochs) == 400
    assert math.isnan(history[0].value)
    assert history[1].value > 1e300
    assert run.data.tags["mlflow.note.content"].startswith("y" * 1000)
    assert run.info.status == "FAILED"


def test_a_finalist_of_a_task_without_a_labelled_test_is_written_whole(runs, proposal, make_record):
    record = make_record(proposal, test={})
    runs.begin(proposal, code_version(), BEGAN)
    runs.write(proposal.id, record.epochs, record)
    (run,) = of_trial(runs, proposal.id)
    assert (run.info.status, run.data.metrics["best_dev"]) == ("FINISHED", record.dev)
    assert not any(name.startswith("test") for name in run.data.metrics)
    assert runs.lacking([record]) == []


def test_a_trial_that_was_cut_off_before_its_setting_came_gets_it_when_it_is_taken_up(
    runs, mlflow_storage, cells, proposal, make_record
):
    runs.begin(proposal, code_version(), BEGAN)
    assert of_trial(runs, proposal.id)[0].data.params == {}
    later = Runs(runs.sweep, runs.uri, mlflow_storage)
    later.open(cells, "{}", BEGAN)
    later.begin(proposal, code_version(), BEGAN)
    later.write(proposal.id, [], None)
    (run,) = of_trial(runs, proposal.id)
    assert run.data.params["seed"] == str(proposal.seed)


def test_a_run_that_a_person_deleted_is_said_to_be_and_not_written_to(runs, proposal):
    runs.begin(proposal, code_version(), BEGAN)
    runs.client.delete_run(runs.runs[proposal.id])
    with pytest.raises(MlflowException, match="deleted"):
        runs.begin(proposal, code_version(), BEGAN)


def statuses(runs: Runs, trial: str) -> dict[str, str]:
    return {run.info.run_id: run.info.status for run in of_trial(runs, trial)}


def reconcile(runs: Runs, records: list, proposal: Trial) -> None:
    """What the tracker does at the end of a sweep."""
    for record in runs.lacking(records):
        runs.begin(proposal, record.code_version, record.started_at)
        runs.write(record.id, record.epochs, record)
    runs.end_lost(records)


def unanswered(runs: Runs, proposal: Trial) -> str:
    """The empty run that a `create_run` without an answer leaves behind."""
    tags = {"meltpoint.trial": proposal.id, "meltpoint.code_version": code_version()}
    return runs.client.create_run(runs.experiment, tags=tags).info.run_id


def test_an_empty_second_run_of_a_trial_is_deleted_and_the_one_with_the_epochs_kept(
    runs, mlflow_storage, cells, proposal, make_record
):
    record = make_record(proposal)
    runs.begin(proposal, code_version(), BEGAN)
    runs.write(proposal.id, record.epochs, None)
    unanswered(runs, proposal)  # it comes late, and is the newest
    later = Runs(runs.sweep, runs.uri, mlflow_storage)
    later.open(cells, "{}", BEGAN)
    assert later.runs == runs.runs
    assert statuses(runs, proposal.id) == {runs.runs[proposal.id]: "RUNNING"}
    unanswered(runs, proposal)
    reconcile(later, [record], proposal)
    assert statuses(runs, proposal.id) == {runs.runs[proposal.id]: "FINISHED"}


def test_a_run_that_was_just_begun_is_kept_though_a_second_empty_one_is_there(runs, proposal, make_record):
    runs.begin(proposal, code_version(), BEGAN)
    unanswered(runs, proposal)
    assert runs.lacking([make_record(proposal)]), "it has no end yet"
    assert statuses(runs, proposal.id) == {runs.runs[proposal.id]: "RUNNING"}


def test_a_cell_has_one_run_though_its_creation_was_not_answered_and_gets_what_it_lacks(
    mlflow_storage, cells, monkeypatch
):
    made = Runs("cell", f"sqlite:///{mlflow_storage / 'mlflow.db'}", mlflow_storage)
    with monkeypatch.context() as patch:
        _lose_answers(patch, "create_run")
        with pytest.raises(MlflowException, match="no answer"):
            made.open(cells, "{}", BEGAN)
    made.open(cells, "{}", BEGAN)
    found = made.writer.search(made.experiment)
    assert sorted(run.info.run_id for run in found) == sorted(made.parents.values())
    for run in found:
        assert run.data.params
        assert run.info.start_time == BEGAN * 1000


CALLS = ("create_run", "log_batch", "set_terminated", "update_run", "set_tag", "get_metric_history", "get_run")


def _lose_answers(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let a call of MLflow's client succeed and its answer be lost."""
    method = getattr(MlflowClient, name)

    def unanswered_call(*words: object, **options: object) -> None:
        method(*words, **options)
        raise MlflowException("no answer")

    patch.setattr(MlflowClient, name, unanswered_call)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_made_again_since_its_answer_was_lost_leaves_everything_once(
    runs, mlflow_storage, cells, proposal, make_record, monkeypatch, name
):
    """Each step of a trial with an interruption is tried until it is answered, the first time in vain."""
    record = make_record(proposal)
    steps = [
        lambda: runs.begin(proposal, code_version(), BEGAN),
        lambda: runs.write(proposal.id, record.epochs[:1], None),
        lambda: runs.abandon(proposal.id, BEGAN + 2),
        lambda: runs.begin(proposal, code_version(), BEGAN),
        lambda: runs.write(proposal.id, record.epochs, record),
    ]
    lost = 0
    for step in steps:
        with monkeypatch.context() as patch:
            _lose_answers(patch, name)
            try:
                step()
                continue
            except MlflowException as error:
                assert str(error) == "no answer"  # noqa: PT017
                lost += 1
        step()
    assert lost
    (run,) = of_trial(runs, proposal.id)
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", BEGAN * 1000, (BEGAN + 3) * 1000)
    assert run.data.params["seed"] == str(proposal.seed)
    for name_of_metric, count in (("train/loss", 2), ("dev_seconds", 2), ("best_dev", 1), ("seconds", 1)):
        assert len(runs.client.get_metric_history(run.info.run_id, name_of_metric)) == count


def test_an_experiment_that_a_person_deleted_is_said_to_be_with_the_way_back(runs, mlflow_storage, cells):
    runs.client.delete_experiment(runs.experiment)
    with pytest.raises(MlflowException, match="mlflow experiments restore --experiment-id"):
        Runs(runs.sweep, runs.uri, mlflow_storage).open(cells, "{}", BEGAN)
