"""Saved epochs: a lost trial goes on from them to the same bits, and nobody else's, damaged or stale ones count."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

from meltpoint.adapters.training.saved_state import read_about
from meltpoint.sweeps.ledger.ledger import STATES, Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import worker_seconds
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.storage import object_store
from meltpoint.sweeps.storage.files import StoragePath, local_copy, write
from meltpoint.sweeps.storage.object_client import OPTIONAL, StoreError
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.sweeps.worker import epoch_checkpoints, worker
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tests.sweeps.one_process import order_of

TIMED = {"train_seconds", "dev_seconds", "finished_at"}
EPOCHS = 4


@pytest.fixture(autouse=True)
def every_epoch_is_long_enough(monkeypatch):
    monkeypatch.setattr("meltpoint.adapters.training.epochs.FIRST_SECONDS", 0.0)


def saving_order(spec, mode: str, folder: Path, **changes: Any) -> Order:
    """A trial of four epochs whose saving may take any time."""
    own = spec.model_copy(update={"modes": (mode,), "space": None, "overrides": ("batch_size=8",)})
    (cell,) = open_cells(own)
    proposal = Planner(own, [cell], []).next()
    setting = {**proposal.setting, "epochs": EPOCHS, "learning_rate": 1e-3}
    if mode == "stack_and_finetune":
        setting |= {"epochs": 2, "stack_and_finetune.stack_epochs": 2}
    checkpoint = str(folder / "checkpoints" / proposal.id)
    saving = {"setting": setting, "checkpoint": checkpoint, "saving_share": 1e9, "driver_attempt": 1}
    return order_of(cell, proposal, folder, **(saving | changes))


def events_of(order: Order, epochs: int | None = None) -> list[TrialEvent]:
    """The events that a worker reports, up to the save after so many epochs, where the process is killed."""
    found: list[TrialEvent] = []
    for events in worker.run((order,)):
        if epochs is not None and sum(event.epoch is not None for event in found) == epochs:
            break  # the save came before these events, which nobody heard
        found += events
    return found


def epochs_in(events: list[TrialEvent]) -> list[dict[str, Any]]:
    return [event.epoch.model_dump(exclude=TIMED) for event in events if event.epoch is not None]


def states(order: Order) -> list[str]:
    return sorted(path.name for path in Path(order.checkpoint).glob("state.*"))


def weights(order: Order) -> dict[str, Any]:
    return load_file(Path(order.checkpoint) / worker.WEIGHTS)


def next_attempt(order: Order, **changes: Any) -> Order:
    return order.model_copy(update={"handed_out": order.handed_out + 1, **changes})


@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
@pytest.mark.parametrize("killed_after", [1, 3])
def test_the_next_attempt_goes_on_and_reports_what_the_undisturbed_one_does(spec, tmp_path, mode, killed_after):
    whole = saving_order(spec, mode, tmp_path / "whole")
    undisturbed = events_of(whole)
    order = saving_order(spec, mode, tmp_path / "cut")
    first = events_of(order, killed_after)
    again = next_attempt(order)
    second = events_of(again)
    started, *reported = second
    assert started.epoch is None
    assert reported[-1].outcome is not None
    assert started.attempt.resumed_after_epochs == killed_after
    assert epochs_in(second) == epochs_in(undisturbed)
    old = [event.epoch for event in first if event.epoch is not None]
    assert [event.epoch for event in reported[:killed_after]] == old, "with the times that they took then"
    one, two = weights(whole), weights(again)
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)


def test_a_state_lies_beside_the_weights_and_says_whose_it_is(spec, tmp_path):
    order = saving_order(spec, "fine_tuning", tmp_path, handed_out=2)
    events_of(order, 2)
    assert states(order) == ["state.000001-0002.safetensors"]
    about = read_about(Path(order.checkpoint) / states(order)[0])
    assert about["belongs_to"]["trial"] == order.id
    assert about["seconds"] > 0
    assert len(about["ended_at"]) == 2


@pytest.mark.parametrize("other", [
    {"trial": "0" * 16}, {"code": "0.0.0+00000000"}, {"precision": "bf16 of another kind"}, {"processor": "another"},
    {"threads": 64}, {"versions": {"torch": "1.0"}}, {"device": "cuda"},
])  # fmt: skip
def test_a_state_of_other_circumstances_is_not_used(spec, tmp_path, monkeypatch, other):
    order = saving_order(spec, "feature_extraction", tmp_path)
    real = epoch_checkpoints.belongs_to
    with monkeypatch.context() as patch:
        patch.setattr(epoch_checkpoints, "belongs_to", lambda *given: {**real(*given), **other})
        events_of(order, 2)
    assert states(order)
    started = events_of(next_attempt(order))[0]
    assert started.attempt.resumed_after_epochs == 0
    assert started.attempt.storage_notes == []


def test_a_damaged_state_is_set_aside_with_one_line_and_the_trial_begins_from_the_start(spec, tmp_path):
    order = saving_order(spec, "feature_extraction", tmp_path)
    undisturbed = epochs_in(events_of(order.model_copy(update={"checkpoint": str(tmp_path / "other" / "whole")})))
    events_of(order, 2)
    path = Path(order.checkpoint) / states(order)[0]
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    started, *rest = events_of(next_attempt(order))
    assert started.attempt.resumed_after_epochs == 0
    (note,) = started.attempt.storage_notes
    assert re.fullmatch(
        r"a saved epoch was damaged \(its checksum does not match\); it was ignored and set aside as .+\.damaged", note
    )
    assert path.with_suffix(".damaged").read_bytes() == bytes(content)
    assert epochs_in(rest) == undisturbed
    assert rest[-1].attempt.storage_notes[-1] == note, "the record says it too"


def test_an_older_state_serves_where_the_newest_is_damaged(spec, tmp_path):
    order = saving_order(spec, "feature_extraction", tmp_path)
    events_of(order, 1)
    old = Path(order.checkpoint) / states(order)[0]
    kept = old.read_bytes()
    events_of(next_attempt(order), 2)
    (newer,) = states(order)
    (Path(order.checkpoint) / newer).write_bytes(b"nothing")
    old.write_bytes(kept)
    assert events_of(order.model_copy(update={"handed_out": 2}))[0].attempt.resumed_after_epochs == 1


def test_a_stale_worker_overwrites_nothing_of_a_newer_ones_and_stops_saving(spec, tmp_path):
    stale = saving_order(spec, "feature_extraction", tmp_path)
    running = worker.run((stale,))
    list(itertools.islice(running, 3))  # it began, and reported two epochs; one is saved
    newer = stale.model_copy(update={"driver_attempt": 2})
    assert events_of(newer, 2)[0].attempt.resumed_after_epochs == 1
    before = {name: (Path(newer.checkpoint) / name).read_bytes() for name in states(newer)}
    assert list(before) == ["state.000002-0000.safetensors"], "the older one is gone"
    list(running)
    assert {name: (Path(newer.checkpoint) / name).read_bytes() for name in states(newer)} == before


def test_a_disk_without_room_or_with_errors_costs_the_trial_nothing(spec, tmp_path, monkeypatch):
    order = saving_order(spec, "feature_extraction", tmp_path / "small")
    monkeypatch.setattr(epoch_checkpoints, "free_bytes", lambda folder: epoch_checkpoints.SPARE_BYTES)
    assert events_of(order)[-1].outcome.status == "finished"
    assert states(order) == []
    monkeypatch.undo()

    # safetensors tells of a disk's errors by its own
    for error in (OSError(5, "Input/output error"), SafetensorError("I/O error: Input/output error (os error 5)")):
        folder = tmp_path / type(error).__name__

        def broken(*given: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(epoch_checkpoints, "write_state", broken)
        monkeypatch.setattr("meltpoint.adapters.training.epochs.FIRST_SECONDS", 0.0)
        last = events_of(saving_order(spec, "feature_extraction", folder))[-1]
        assert last.outcome.status == "finished"
        notes = last.attempt.storage_notes
        assert [note for note in notes if "could not be saved (" in note and "Input/output error" in note]


@pytest.mark.parametrize("off", ["share", "bundle", "short"])
def test_nothing_is_saved_where_it_is_turned_off_side_by_side_or_not_worth_it(spec, tmp_path, monkeypatch, off):
    monkeypatch.setattr("meltpoint.adapters.training.epochs.FIRST_SECONDS", 0.05)
    share = {"share": 0.0, "bundle": 1e9, "short": 1e-6}[off]
    order = saving_order(spec, "feature_extraction", tmp_path, saving_share=share)
    orders = [order, order.model_copy(update={"id": "f" * 16})] if off == "bundle" else [order]
    list(worker.run(tuple(orders)))
    assert states(order) == []


# --- the ledger ---


def test_a_save_that_is_not_reached_leaves_the_trial_as_it_was(spec, tmp_path):
    on, off = (saving_order(spec, "fine_tuning", tmp_path / str(share), saving_share=share) for share in (1e9, 0.0))
    assert epochs_in(events_of(on)) == epochs_in(events_of(off))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """An object store in memory."""
    store = pytest.importorskip("obstore.store", reason="the extra 's3' is not installed").MemoryStore()
    monkeypatch.setattr(object_store, "client", lambda root, patience: store)
    return ObjectPath.of("s3://sweeps/lab")


@pytest.fixture(params=["folder", "object store"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "sweep" if request.param == "folder" else request.getfixturevalue("bucket"))
    made.create()
    return made


def with_states(ledger: Ledger, trial: str, *names: str) -> StoragePath:
    folder = ledger.checkpoint(trial)
    for name in names:
        write(folder / name, "x")
    return folder


def test_the_record_of_a_trial_ends_its_saved_epochs_and_keeps_its_weights(ledger, proposal, make_record):
    names = ("state.000001-0000.safetensors", "state.000001-0000.damaged", worker.WEIGHTS)
    folder = with_states(ledger, proposal.id, *names)
    ledger.write(make_record(proposal))
    assert [path.name for path in folder.iterdir()] == [worker.WEIGHTS]


def test_a_lost_trial_keeps_its_saved_epochs_for_the_next_command(ledger, proposal, make_record):
    folder = with_states(ledger, proposal.id, "state.000001-0003.safetensors")
    ledger.write(make_record(proposal, status="failed", cause="worker", error="its worker died"))
    assert list(folder.iterdir())


def test_what_a_given_up_worker_saved_after_the_record_goes_when_the_sweep_is_opened(ledger, proposal, make_record):
    record = make_record(proposal)
    ledger.write(record)
    folder = with_states(ledger, proposal.id, "state.000001-0000.safetensors")
    other = with_states(ledger, "0" * 16, "state.000001-0000.safetensors")
    ledger.clean_states([record])
    assert not folder.exists()
    assert list(other.glob(STATES)), "of a trial without a record"


def test_a_record_says_what_it_went_on_from_and_older_records_say_nothing(proposal, make_record):
    record = make_record(proposal, resumed_after_epochs=3, seconds_before=40.0)
    assert worker_seconds([record]) == record.seconds + 40.0
    document = json.loads(record.model_dump_json())
    del document["resumed_after_epochs"], document["seconds_before"]
    assert TrialRecord.model_validate(document).resumed_after_epochs == 0


# --- in an object store ---


def in_store(order: Order, bucket: ObjectPath) -> Order:
    return order.model_copy(update={"checkpoint": str(bucket / "checkpoints" / order.id)})


def names_in(order: Order) -> list[str]:
    return sorted(path.name for path in ObjectPath.of(order.checkpoint).glob("state.*"))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_in_an_object_store_the_next_attempt_goes_on_too(spec, tmp_path, bucket, is_damaged):
    whole = saving_order(spec, "fine_tuning", tmp_path / "whole")
    undisturbed = events_of(whole)
    order = in_store(saving_order(spec, "fine_tuning", tmp_path / "cut"), bucket)
    events_of(order, 2)
    assert names_in(order) == ["state.000001-0000.safetensors"]
    if is_damaged:
        path = ObjectPath.of(order.checkpoint) / names_in(order)[0]
        path.put(path.read_bytes()[:-1])
    again = next_attempt(order)
    started, *_, ended = events = events_of(again)
    assert started.epoch is None
    assert ended.outcome is not None
    assert started.attempt.resumed_after_epochs == (0 if is_damaged else 2)
    assert epochs_in(events) == epochs_in(undisturbed)
    assert any("a saved epoch was damaged" in note for note in ended.attempt.storage_notes) == is_damaged
    if is_damaged:
        assert "state.000001-0000.damaged" in names_in(again)
    with local_copy(ObjectPath.of(again.checkpoint) / worker.WEIGHTS) as copy:
        one, two = weights(whole), load_file(copy)
    assert all(one[name].equal(two[name]) for name in one)


def test_an_object_store_that_is_away_while_epochs_are_saved_costs_the_trial_nothing(
    spec, tmp_path, bucket, monkeypatch
):
    order = in_store(saving_order(spec, "feature_extraction", tmp_path), bucket)
    put, refused = ObjectPath.put, []

    def away_at_first(path: ObjectPath, contents: Any) -> None:
        if path.name.startswith("state.") and not refused:
            refused.append(path.patience)
            raise StoreError(f"{path}: the store does not answer")
        put(path, contents)

    monkeypatch.setattr(ObjectPath, "put", away_at_first)
    running = iter(worker.run((order,)))
    found = [event for _ in range(4) for event in next(running)]
    assert refused == [OPTIONAL], "it is not waited for as long as for a record"
    assert names_in(order), "a later epoch was saved"
    found += [event for events in running for event in events]
    assert found[-1].outcome.status == "finished"
    assert len([note for note in found[-1].attempt.storage_notes if "its epochs could not be saved" in note]) == 1
