"""ledger: what is written is whole, what is broken is named, and one process drives a sweep."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from meltpoint.adapters.files import write_atomically
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.tasks.core.metrics import limits


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "tiny")
    made.create()
    return made


def test_a_record_comes_back_as_it_was_written(ledger, proposal, make_record):
    record = make_record(proposal)
    ledger.write(record)
    assert ledger.records() == [record]


def test_the_file_of_a_trial_holds_what_the_contract_promises(ledger, proposal, make_record):
    ledger.write(make_record(proposal))
    document = json.loads((ledger.trials / f"{proposal.id}.json").read_text(encoding="utf-8"))
    promised = {"id", "encoder", "mode", "task", "head", "seed", "setting", "status", "role", "dev", "best_epoch"}
    assert promised | {"epochs", "error", "mlflow_run_id"} <= set(document)
    assert {"epoch", "dev", "train_seconds", "dev_seconds"} <= set(document["epochs"][0])


def order(proposal: Trial) -> dict[str, object]:
    """What a started note must have of a trial's order."""
    return proposal.model_dump(include={"id", "role", "number", "seed", "setting", "encoder", "mode", "task"})


def test_a_finished_trial_is_struck_off_the_started_ones(ledger, proposal, make_record):
    ledger.start(order(proposal))
    assert [order["id"] for order in ledger.unfinished()] == [proposal.id]
    ledger.write(make_record(proposal))
    assert ledger.unfinished() == []


def test_a_cut_between_the_record_and_the_strike_leaves_no_unfinished_trial(ledger, proposal, make_record):
    ledger.write(make_record(proposal))
    ledger.start(order(proposal))
    assert ledger.unfinished() == []
    assert ledger.clean_started() == []
    assert list(ledger.started.iterdir()) == []


DAMAGED = ["", '{"id": "abc"', "{}", "[]", "\x00" * 40, '{"id": "abc", "role": "search", "number": 0, "setting": []}']


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_started_note_is_named_and_a_sweep_that_goes_on_deletes_it_alone(ledger, proposal, text):
    ledger.start(order(proposal))
    (ledger.started / "abc.json").write_text(text)
    with pytest.raises(ValueError, match=r"started/abc\.json is not a started trial's note; delete it"):
        ledger.unfinished()
    (line,) = ledger.clean_started()
    assert str(ledger.started / "abc.json") in line
    assert "has been deleted" in line
    assert [note["id"] for note in ledger.unfinished()] == [proposal.id]
    assert [path.stem for path in ledger.started.iterdir()] == [proposal.id]


def test_a_note_that_is_struck_off_while_it_is_read_is_no_fault(ledger, proposal, monkeypatch):
    ledger.start(order(proposal))
    path = ledger.started / f"{proposal.id}.json"
    monkeypatch.setattr(Path, "glob", lambda *_: [path])
    path.unlink()
    assert ledger.unfinished() == []


IMPOSSIBLE = {
    "dev": [math.nan, math.inf, 3.5, -0.5, "0.9", "high", True, None],
    "dev_metrics": [{"accuracy": math.nan}, {"accuracy": 350.0}, {"pearson": -1.2}, {"mae": -0.1}],
    "test": [{"accuracy": math.nan}, {"accuracy": 1.5}, {"accuracy": "0.5"}, {"f1": 0.5}, "x"],
    "epochs": [[], [{"epoch": 1}], "x", None],
    "seconds": [math.nan, math.inf, "12", None],
    "best_epoch": [9, "x"],
    "setting": [{"learning_rate": math.nan}, {"batch_size": 2**63}, []],
    "id": ["../../escaped", "another", "x" * 300],
    "trained_together": [0],
}
"""Field of a record → values that no trial gives, or that lead elsewhere."""


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, all in IMPOSSIBLE.items() for value in all])
def test_a_record_that_no_trial_gives_is_named_and_left_out_and_the_others_are_read(
    ledger, proposal, make_record, field, value
):
    ledger.write(make_record(proposal))
    document = make_record(proposal).model_dump(mode="json") | {"id": "odd", field: value}
    (ledger.trials / "odd.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"odd\.json is not a trial record .* delete it"):
        ledger.records()
    damaged: dict[str, str] = {}
    assert [record.id for record in ledger.records(damaged)] == [proposal.id]
    assert list(damaged) == ["odd"]


@pytest.mark.parametrize("name", ["accuracy", "span_f1.PER", "roc_auc", "pearson", "mae", "of_a_later_version"])
def test_every_score_within_its_metrics_range_is_read(ledger, proposal, make_record, name):
    lowest, highest = limits(name)
    values = [max(lowest, -1e6), min(highest, 1e6), 0.0, min(highest + 1e-9, 1e6)]
    for number, value in enumerate(values):
        document = make_record(proposal, dev_metrics={name: value}).model_dump(mode="json") | {"id": str(number)}
        (ledger.trials / f"{number}.json").write_text(json.dumps(document))
    assert len(ledger.records()) == len(values)


@pytest.mark.parametrize("has_locks", [True, False], ids=["locks", "no locks"])
def test_a_second_driver_is_refused_while_the_first_one_drives(ledger, monkeypatch, has_locks):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", fail)
    with ledger.driving():
        assert Ledger(ledger.folder).is_driven()
        assert not ledger.is_driven(), "by another one, that is"
        message = f"Another process drives this sweep .process {os.getpid()}"
        with pytest.raises(ValueError, match=message), Ledger(ledger.folder).driving():
            pass
    assert not ledger.is_driven()


def test_records_and_notes_say_which_driver_wrote_them(ledger, proposal, make_record):
    for attempt in (1, 2):
        with ledger.driving():
            ledger.start(order(proposal))
            note = json.loads((ledger.started / f"{proposal.id}.json").read_text())
            ledger.write(make_record(proposal))
        assert note["driver_attempt"] == attempt
        assert [record.driver_attempt for record in ledger.records()] == [attempt]
        assert list(ledger.started.iterdir()) == []


def killed_driver(ledger: Ledger) -> None:
    code = "import sys, os\nfrom pathlib import Path\nfrom meltpoint.sweeps.ledger.ledger import Ledger\n"
    code += "with Ledger(Path(sys.argv[1])).driving():\n    os.kill(os.getpid(), 9)\n"
    died = subprocess.run([sys.executable, "-c", code, str(ledger.folder)], check=False)
    assert died.returncode == -9


def test_a_record_that_a_driver_wrote_after_it_was_taken_over_is_left_out_with_a_line(ledger, proposal, make_record):
    killed_driver(ledger)
    with ledger.driving():
        record = make_record(proposal, driver_attempt=1)
        write_atomically(ledger.trials / f"{record.id}.json", record.model_dump_json())
        assert ledger.records() == []
        (line,) = ledger.late_lines()
        assert line.startswith(f"Left out: 1 record ({record.id}.json) that a driver wrote after another one had taken")
        ledger.write(record)
        assert [one.driver_attempt for one in ledger.records()] == [2]
        assert ledger.late_lines() == []


def test_what_a_killed_driver_wrote_counts_after_the_take_over(ledger, proposal, make_record):
    record = make_record(proposal, driver_attempt=1)
    write_atomically(ledger.trials / f"{record.id}.json", record.model_dump_json())
    killed_driver(ledger)
    with ledger.driving():
        assert ledger.records() == [record]
        assert ledger.late_lines() == []


def test_a_checkpoint_is_moved_and_dropped_by_the_driver_alone(ledger):
    for name in ("one", "two"):
        ledger.checkpoint(name).mkdir(parents=True)
    with ledger.driving():
        ledger.drop_checkpoint("two")
        ledger.drop_checkpoint("not there")
        ledger.move_checkpoint("one", "two")
        assert [path.name for path in (ledger.folder / "checkpoints").iterdir()] == ["two"]


def test_a_sweep_that_may_not_be_written_is_refused_in_one_line_and_can_be_looked_at(ledger, monkeypatch):
    """A folder of somebody else, or a read-only file system; root may write anywhere, so the system's answer is set."""
    with ledger.driving():
        pass
    before = sorted(path.stat().st_mtime_ns for path in ledger.folder.rglob("*"))
    open_file = Path.open

    def read_only(path: Path, mode: str = "r", *more: object, **others: object) -> IO[str]:
        if mode not in ("r", "rb"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return open_file(path, mode, *more, **others)

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(ValueError, match=r"driver\.lock is not writable \(Read-only file system\)"), ledger.driving():
        pass
    assert not ledger.is_driven()
    assert sorted(path.stat().st_mtime_ns for path in ledger.folder.rglob("*")) == before


def test_a_folder_that_holds_other_things_is_no_place_for_a_sweep(tmp_path):
    notes, file = Ledger(tmp_path / "notes"), Ledger(tmp_path / "file")
    notes.folder.mkdir()
    (notes.folder / "diary.txt").write_text("dear diary")
    file.folder.write_text("")
    with pytest.raises(
        ValueError, match=r"--name notes: .*notes contains other files \(diary\.txt\) and no sweep\.json"
    ):
        notes.check_place()
    with pytest.raises(ValueError, match=r"--name file: .*file is not a folder; choose another --name"):
        file.check_place()


def test_records_without_their_specification_are_not_taken_over(ledger, proposal, make_record):
    ledger.write(make_record(proposal))
    with pytest.raises(ValueError, match=r"\(trials\) and no sweep\.json; choose another --name, or restore that file"):
        ledger.check_place()


def test_a_sweep_that_was_cut_off_before_it_wrote_anything_goes_on(ledger):
    with ledger.driving():
        ledger.check_place()
    (ledger.folder / f".sweep.json.{'0' * 32}.tmp").write_text("{")
    ledger.check_place()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_what_is_no_file_is_written_to_or_refused_and_never_replaced(tmp_path):
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file.md"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "text")
    assert (os.read(reader, 100), pipe.is_fifo()) == (b"text", True)
    os.close(reader)
    link.symlink_to(file)
    file.write_text("old", encoding="utf-8")
    write_atomically(link, "new")
    assert (link.is_symlink(), file.read_text(encoding="utf-8")) == (True, "new")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        write_atomically(tmp_path, "text")


def test_a_storage_that_cannot_be_written_is_refused_with_the_remedy(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ValueError, match=r"--storage .*is not writable .* use a folder of your own"):
        storage_folder(str(in_the_way / "runs"))


def test_a_storage_of_another_scheme_is_refused(tmp_path):
    with pytest.raises(ValueError, match="use a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX; mount the az store"):
        storage_folder("az://bucket/runs")
    assert storage_folder(f"file://{tmp_path}/runs") == tmp_path / "runs"
