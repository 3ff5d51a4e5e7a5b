"""The index of records: the same answers as from the files, whatever is written, deleted or damaged in between."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meltpoint.adapters import process
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger import record_index
from meltpoint.sweeps.ledger.lazy_record import LazyRecord
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.record_index import RecordIndex
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.selection import best_of


def record(number: int, dev: float = 0.5, epochs: int = 2) -> TrialRecord:
    """A record of a cell that there is not."""
    each = [
        EpochResult(
            epoch=n, phase="train", step=n, train_loss=1.0, dev={"accuracy": dev / n}, train_seconds=1.0,
            dev_seconds=0.1, learning_rate=1e-3, finished_at=1.7e9,
        )
        for n in range(1, epochs + 1)
    ]  # fmt: skip
    return TrialRecord(
        id=f"{number:016x}", number=number, encoder="tiny", mode="fine_tuning", task="reviews", role="search", seed=0,
        head="linear", setting={"learning_rate": 1e-3 * (number + 1), "epochs": epochs}, metric="accuracy",
        status="finished" if epochs else "failed", dev=dev if epochs else None, epochs=each,
        best_epoch=1 if epochs else None,
        error=None if epochs else "the loss is not finite", data_fingerprint="d", code_version="c",
        started_at=1.7e9 + number, seconds=1.5,
    )  # fmt: skip


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is too new for the index."""
    monkeypatch.setattr(record_index, "SETTLED_NS", -(10**15))


def ledger_of(folder: Path, count: int) -> Ledger:
    ledger = Ledger(folder)
    ledger.create()
    for number in range(count):
        ledger.write(record(number, number / 100, number % 3))
    return ledger


def plain(ledger: Ledger) -> list[str]:
    """What the files say, without an index."""
    return [ledger._read(path).model_dump_json() for path in sorted(ledger.trials.glob("*.json"))]


def test_a_second_reading_opens_no_record_and_says_the_same(tmp_path, at_once) -> None:
    ledger = ledger_of(tmp_path, 30)
    index = RecordIndex(ledger.trials, few=0)
    first = [one.model_dump_json() for one in index.records(ledger._read)]
    assert index.files_read == 30
    second = index.records(ledger._read)
    assert index.files_read == 0
    assert all(isinstance(one, LazyRecord) for one in second)
    opened: list[Path] = []

    def read(path: Path) -> TrialRecord:
        opened.append(path)
        return ledger._read(path)

    again = RecordIndex(ledger.trials, few=0).records(read)
    best = best_of(again)
    assert best is not None
    assert (best.dev, best.setting["epochs"], best.cell) == (0.29, 2, ("tiny", "fine_tuning", "reviews"))
    assert opened == [], "choosing the best one needs no file"
    assert len(best.epochs) == 2
    assert opened == [ledger.trials / f"{best.id}.json"]
    assert [one.model_dump_json() for one in second] == first == plain(ledger)


def test_another_process_takes_the_index_for_its_own() -> None:
    code = "from meltpoint.sweeps.ledger import record_index; print(record_index.FORMAT)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert said.stdout.strip() == record_index.FORMAT


def test_a_new_record_alone_is_read(tmp_path, at_once) -> None:
    ledger, index = ledger_of(tmp_path, 20), RecordIndex(tmp_path / "trials", few=0)
    index.records(ledger._read)
    ledger.write(record(99))
    ledger.write(record(3, 0.875))
    found = {one.id: one for one in index.records(ledger._read)}
    assert index.files_read == 2
    assert found[f"{3:016x}"].dev == 0.875


def test_a_file_that_has_just_changed_is_not_trusted_to_the_index(tmp_path) -> None:
    ledger, index = ledger_of(tmp_path, 5), RecordIndex(tmp_path / "trials", few=0)
    for _ in range(2):
        index.records(ledger._read)
        assert index.files_read == 5
    assert not index.path.exists()


def test_a_small_ledger_has_no_index_and_a_read_only_one_is_read_all_the_same(tmp_path, at_once) -> None:
    ledger = ledger_of(tmp_path, 5)
    assert len(ledger.records()) == 5
    index = RecordIndex(ledger.trials, few=0)
    assert not index.path.exists()
    index.path.mkdir()  # nothing can be written there, whoever runs the test
    assert [one.model_dump_json() for one in index.records(ledger._read)] == plain(ledger)


def test_a_damaged_record_is_named_though_the_index_knew_it_whole(tmp_path, at_once) -> None:
    ledger, index = ledger_of(tmp_path, 5), RecordIndex(tmp_path / "trials", few=0)
    index.records(ledger._read)
    (ledger.trials / f"{2:016x}.json").write_text("{")
    with pytest.raises(ValueError, match=r"0000000000000002\.json is not a trial record"):
        index.records(ledger._read)


def test_every_way_to_write_a_record_of_the_index_writes_all_of_it(tmp_path, at_once) -> None:
    ledger, index = ledger_of(tmp_path, 3), RecordIndex(tmp_path / "trials", few=0)
    index.records(ledger._read)
    lazy, whole = index.records(ledger._read)[2], ledger._read(ledger.trials / f"{2:016x}.json")
    assert isinstance(lazy, LazyRecord)
    ledger.write(lazy.model_copy(update={"mlflow_run_id": "abc"}))
    assert ledger._read(ledger.trials / f"{2:016x}.json") == whole.model_copy(update={"mlflow_run_id": "abc"})
    ledger.write(lazy)
    assert lazy.model_dump() == ledger._read(ledger.trials / f"{2:016x}.json").model_dump()


def test_a_driver_keeps_the_index_so_that_the_first_reader_opens_no_record(tmp_path, at_once, monkeypatch) -> None:
    monkeypatch.setattr(record_index, "BLOCK", 5)
    ledger = Ledger(tmp_path)
    ledger.create()
    for number in range(12):
        ledger.write(record(number))
    ledger.write(record(3, 0.875))  # again, as a record is whose run in MLflow is known later
    reader = RecordIndex(ledger.trials, few=0)
    found = {one.id: one for one in reader.records(ledger._read)}
    assert reader.files_read == 3, "the last three are not a block yet, one of them written for the second time"
    assert found[f"{3:016x}"].dev == 0.875
    assert sorted(one.model_dump_json() for one in found.values()) == sorted(plain(ledger))


def test_a_driver_leaves_what_is_too_new_for_the_index_to_the_next_block(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(record_index, "BLOCK", 2)
    monkeypatch.setattr(record_index, "MOST_BLOCKS_NOTED", 3)
    ledger = ledger_of(tmp_path, 12)
    assert ledger.index is not None
    assert not ledger.index.path.exists()
    assert 6 <= len(ledger.index.noted) <= 8, "three blocks wait, and what came since"
    monkeypatch.setattr(record_index, "SETTLED_NS", -(10**15))
    for number in range(12, 16):
        ledger.write(record(number))
    reader = RecordIndex(ledger.trials, few=0)
    reader.records(ledger._read)
    assert reader.files_read <= 8


def test_a_torn_block_costs_its_own_records_alone(tmp_path, at_once, monkeypatch) -> None:
    monkeypatch.setattr(record_index, "BLOCK", 10)
    ledger, index = ledger_of(tmp_path, 30), RecordIndex(tmp_path / "trials", few=0)
    index.records(ledger._read)
    text = bytearray(index.path.read_bytes())
    text[-20] ^= 1
    index.path.write_bytes(text)
    for files_read in (10, 0):
        assert [one.model_dump_json() for one in index.records(ledger._read)] == plain(ledger)
        assert index.files_read in (files_read, 0), "read once, and in the index then"


def test_what_is_seldom_asked_for_is_read_from_the_file_of_a_light_record(tmp_path) -> None:
    ledger = ledger_of(tmp_path, 1)
    whole = record(7, 0.75, epochs=3).model_copy(update={"seconds_before": 2.5})
    ledger.write(whole)
    light = ledger.light(whole)
    (ledger.trials / f"{whole.id}.json").rename(tmp_path / "away")
    assert (light.dev, light.setting, light.seconds_before, light.epoch_count, light.last_epoch) == (
        0.75, whole.setting, 2.5, 3, 3,
    )  # fmt: skip
    assert not light.is_lost
    (tmp_path / "away").rename(ledger.trials / f"{whole.id}.json")
    assert light.epochs == whole.epochs
    assert light.whole() == whole


class Interleavings(RuleBasedStateMachine):
    """Two readers and whoever changes the files, in any order."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.ledger = ledger_of(self.folder, 4)
        self.indices = [RecordIndex(self.ledger.trials, few=0) for _ in range(2)]

    @rule(number=st.integers(0, 6), dev=st.floats(0, 1), epochs=st.integers(0, 3))
    def write(self, number: int, dev: float, epochs: int) -> None:
        self.ledger.write(record(number, dev, epochs))

    @rule(number=st.integers(0, 6))
    def delete(self, number: int) -> None:
        (self.ledger.trials / f"{number:016x}.json").unlink(missing_ok=True)

    @rule(reader=st.integers(0, 1))
    def read(self, reader: int) -> None:
        found = self.indices[reader].records(self.ledger._read)
        assert sorted(one.model_dump_json() for one in found) == sorted(plain(self.ledger))
        known = RecordIndex(self.ledger.trials, few=0).records(self.ledger._read)
        hot = [(one.id, one.dev, one.epoch_count, one.setting, one.status, one.cell, one.error) for one in known]
        whole = [one.whole() if isinstance(one, LazyRecord) else one for one in known]
        assert hot == [
            (one.id, one.dev, len(one.epochs), one.setting, one.status, one.cell, one.error) for one in whole
        ]

    @precondition(lambda self: self.indices[0].path.exists())
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        path = self.indices[0].path
        text = bytearray(path.read_bytes())
        way = data.draw(st.sampled_from(["flip", "cut", "remove", "append", "empty"]))
        if way == "remove":
            path.unlink()
            return
        if way == "flip" and text:
            text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        if way == "cut":
            del text[data.draw(st.integers(0, len(text))) :]
        if way == "append":
            text += text[len(text) // 2 :]
        path.write_bytes(b"" if way == "empty" else bytes(text))

    @invariant()
    def leaves_nothing_beside(self) -> None:
        if hasattr(self, "folder"):
            assert not list(self.folder.glob(".trials.index.*"))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


@pytest.mark.usefixtures("at_once")
class TestInterleavings(Interleavings.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@pytest.mark.parametrize("is_a_commands", [False, True])
def test_reading_records_keeps_garbage_from_the_collector_in_a_commands_own_process_alone(
    tmp_path: Path, is_a_commands: bool
) -> None:
    class Model:
        """A model of the user's, in a circle."""

    before = gc.get_threshold()
    try:
        if is_a_commands:
            process.raise_gc_threshold()
        model = Model()
        model.itself = model  # type: ignore[attr-defined]
        gone = weakref.ref(model)
        del model
        Ledger(tmp_path).records()
        gc.collect()
        assert (gone() is not None) == is_a_commands
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
