"""ledger: what is written is whole, what is broken is named, and one process drives a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meltpoint.adapters.atomic import write_atomically
from meltpoint.sweeps.cells import OpenCell
from meltpoint.sweeps.ledger import Ledger, storage_folder
from meltpoint.sweeps.planner import Planner, Proposal
from meltpoint.sweeps.specification import SweepSpec


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "tiny")
    made.create()
    return made


@pytest.fixture
def proposal(spec: SweepSpec, cells: list[OpenCell]) -> Proposal:
    found = Planner(spec, cells, []).next()
    assert isinstance(found, Proposal)
    return found


def test_a_record_comes_back_as_it_was_written(ledger, proposal, make_record):
    record = make_record(proposal)
    ledger.write(record)
    assert ledger.records() == [record]


def test_the_file_of_a_trial_holds_what_the_contract_promises(ledger, proposal, make_record):
    ledger.write(make_record(proposal))
    document = json.loads((ledger.trials / f"{proposal.id}.json").read_text())
    promised = {"id", "encoder", "mode", "task", "head", "seed", "setting", "status", "role", "dev", "best_epoch"}
    assert promised | {"epochs", "error", "mlflow_run_id"} <= set(document)
    assert {"epoch", "dev", "train_seconds", "dev_seconds"} <= set(document["epochs"][0])


def test_a_finished_trial_is_struck_off_the_started_ones(ledger, proposal, make_record):
    ledger.start({"id": proposal.id, "role": "search", "number": 0})
    assert [order["id"] for order in ledger.unfinished()] == [proposal.id]
    ledger.write(make_record(proposal))
    assert ledger.unfinished() == []


def test_a_cut_between_the_record_and_the_strike_leaves_no_unfinished_trial(ledger, proposal, make_record):
    ledger.write(make_record(proposal))
    ledger.start({"id": proposal.id, "role": "search", "number": 0})
    assert ledger.unfinished() == []


def test_a_damaged_record_is_named_with_its_remedy(ledger):
    (ledger.trials / "abc.json").write_text('{"id": "abc"')
    with pytest.raises(ValueError, match=r"abc\.json is not a trial's record .* delete it"):
        ledger.records()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_a_second_driver_is_refused_while_the_first_one_drives(ledger):
    with ledger.driving():
        assert ledger.is_driven()
        with (
            pytest.raises(ValueError, match=f"Another process drives this sweep .process {os.getpid()}"),
            ledger.driving(),
        ):
            pass
    assert not ledger.is_driven()


def test_a_killed_driver_lets_go_of_the_sweep(ledger):
    code = "import sys, os\nfrom pathlib import Path\nfrom meltpoint.sweeps.ledger import Ledger\n"
    code += "with Ledger(Path(sys.argv[1])).driving():\n    os.kill(os.getpid(), 9)\n"
    died = subprocess.run([sys.executable, "-c", code, str(ledger.folder)], check=False)
    assert died.returncode == -9
    with ledger.driving():
        pass


def test_a_storage_that_cannot_be_written_is_refused_with_the_remedy(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ValueError, match=r"--storage .*cannot be written .* name a folder of yours"):
        storage_folder(str(in_the_way / "runs"))


def test_a_storage_of_another_scheme_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only folders for now"):
        storage_folder("s3://bucket/runs")
    assert storage_folder(f"file://{tmp_path}/runs") == tmp_path / "runs"
