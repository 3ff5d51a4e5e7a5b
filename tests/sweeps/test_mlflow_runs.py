"""mlflow_runs: a trial's run by the client's calls, in a real store: what is in it, and what runs are left alone."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.tracking import runs as mlflow_runs
from meltpoint.sweeps.tracking.runs import Runs


@pytest.fixture(scope="module")
def shared_with_a_group() -> Iterator[None]:
    """The umask of people who share a storage."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, shared_with_a_group: None) -> Path:
    """A storage folder; one store serves the module, since its first opening takes seconds."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture
def runs(storage: Path, cells, request: pytest.FixtureRequest) -> Runs:
    made = Runs(request.node.name[:60], f"sqlite:///{storage / 'mlflow.db'}", storage)
    made.open(cells, "{}")
    return made


def of_trial(runs: Runs, trial: str) -> list:
    found = runs.client.search_runs([runs.experiment], max_results=1000)
    return [run for run in found if run.data.tags.get("meltpoint.trial") == trial]


def test_a_new_store_has_the_permissions_that_the_umask_gives(runs, storage):
    assert (storage / "mlflow.db").stat().st_mode & 0o777 == 0o664


def test_a_sweep_waits_while_another_one_makes_the_store(tmp_path, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(mlflow_runs, "acquire", lambda *words, **options: (waits.set(), acquire(*words, **options)))
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


def test_a_process_that_is_killed_while_it_makes_the_store_leaves_none_that_cannot_be_opened(tmp_path):
    (tmp_path / ".mlflow.db.0.tmp").write_text("half a store")
    (tmp_path / ".mlflow.db.0.tmp-journal").write_text("and its journal")
    killed = f"""
import os
from pathlib import Path
from meltpoint.sweeps.tracking import runs
runs.give_usual_mode = lambda path: os.kill(os.getpid(), 9)
runs.Runs("killed", "sqlite:///{tmp_path}/mlflow.db", Path("{tmp_path}"))
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.glob(".mlflow.db.*")] == [".tmp"], "the older one is gone"
    assert not (tmp_path / "mlflow.db").exists()
    Runs("after", f"sqlite:///{tmp_path}/mlflow.db?timeout=20", tmp_path).open([], "{}")
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_a_trial_costs_three_calls(runs, proposal, make_record, monkeypatch):
    called: Counter[str] = Counter()
    for name in (name for name in dir(MlflowClient) if not name.startswith("_")):
        method = getattr(MlflowClient, name)
        if callable(method):
            monkeypatch.setattr(MlflowClient, name, _counted(called, name, method))
    record = make_record(proposal, dev=(0.5, 0.75))
    runs.begin(proposal, code_version())
    runs.write(proposal.id, record.epochs, record)
    assert called == {"create_run": 1, "log_batch": 1, "set_terminated": 1}


def _counted(called: Counter[str], name: str, method):
    def counted(*words: object, **options: object) -> object:
        called[name] += 1
        return method(*words, **options)

    return counted


def test_values_that_are_no_numbers_long_errors_and_many_epochs_are_written(runs, proposal, make_record):
    record = make_record(proposal, dev=(0.5,) * 400, status="failed", error="y" * 9000)
    record.epochs[0] = record.epochs[0].model_copy(update={"train_loss": math.nan})
    record.epochs[1] = record.epochs[1].model_copy(update={"train_loss": math.inf})
    runs.begin(proposal, code_version())
    runs.write(proposal.id, record.epochs, record)
    (run,) = of_trial(runs, proposal.id)
    history = runs.client.get_metric_history(run.info.run_id, "train/loss")
    assert len(history) == len(record.epochs) == 400
    assert math.isnan(history[0].value)
    assert history[1].value > 1e300
    assert run.data.tags["mlflow.note.content"].startswith("y" * 1000)
    assert run.info.status == "FAILED"


def test_a_trial_that_was_cut_off_before_its_setting_came_gets_it_when_it_is_taken_up(
    runs, storage, cells, proposal, make_record
):
    runs.begin(proposal, code_version())
    assert of_trial(runs, proposal.id)[0].data.params == {}
    later = Runs(runs.sweep, runs.uri, storage)
    later.open(cells, "{}")
    later.begin(proposal, code_version())
    later.write(proposal.id, [], None)
    (run,) = of_trial(runs, proposal.id)
    assert run.data.params["seed"] == str(proposal.seed)


def test_a_run_waits_for_another_process_that_holds_the_store(runs, storage, proposal):
    holder = sqlite3.connect(storage / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    release.start()
    runs.begin(proposal, code_version())
    release.join()
    holder.close()
    assert len(of_trial(runs, proposal.id)) == 1


def test_a_run_that_a_person_deleted_is_said_to_be_and_not_written_to(runs, proposal):
    runs.begin(proposal, code_version())
    runs.client.delete_run(runs.runs[proposal.id])
    with pytest.raises(MlflowException, match="deleted"):
        runs.begin(proposal, code_version())


def test_of_two_runs_of_one_trial_the_newest_is_kept_and_the_other_ended(runs, storage, cells, proposal, make_record):
    unanswered = runs.client.create_run(runs.experiment, start_time=1, tags={"meltpoint.trial": proposal.id})
    runs.begin(proposal, code_version())
    later = Runs(runs.sweep, runs.uri, storage)
    later.open(cells, "{}")
    assert later.runs == runs.runs
    later.reconcile([make_record(proposal)], lambda record: proposal)
    assert {run.info.run_id: run.info.status for run in of_trial(runs, proposal.id)} == {
        unanswered.info.run_id: "KILLED", runs.runs[proposal.id]: "FINISHED",
    }  # fmt: skip
