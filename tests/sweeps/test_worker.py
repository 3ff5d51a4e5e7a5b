"""worker: what a trial reports, how it fails, and that it cannot see a test split."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from meltpoint.adapters.features import entries
from meltpoint.adapters.files import NoLocksError
from meltpoint.adapters.model import AdaptedModel
from meltpoint.sweeps.ledger.records import ResourceUse
from meltpoint.sweeps.machine.limits import Memory
from meltpoint.sweeps.on_ray.workers import result_of
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import features_folder
from meltpoint.sweeps.worker import resources, worker
from meltpoint.sweeps.worker.outcome import STOPPED_BY_BUDGET, TrialEvent, TrialOutcome
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tests.sweeps.one_process import order_of

NO_HANDLE = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"

AUDITED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from meltpoint.sweeps.worker.worker import run
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
events = [event for events in run((Order.model_validate_json(sys.argv[1]),)) for event in events]
locked = [name for name in sys.modules if name == "meltpoint.tasks.core.locked"]
outcome = events[-1].outcome
print(json.dumps({"opened": opened, "locked": locked, "status": outcome.status, "error": outcome.error}))
"""


@pytest.fixture
def order(spec, cells, tmp_path) -> Order:
    """A fine-tuning trial of the tiny encoder."""
    planner = Planner(spec.model_copy(update={"modes": ("fine_tuning",)}), cells[1:], [])
    return order_of(cells[1], planner.next(), tmp_path)


TIMED = {
    "epochs": {"__all__": {"finished_at", "train_seconds", "dev_seconds"}},
    **dict.fromkeys(ResourceUse.model_fields, True),
}
"""Of an attempt, what differs each time."""


def events_of(*orders: Order) -> list[TrialEvent]:
    """What a worker reports of orders that it takes up together."""
    return [event for events in worker.run(orders) for event in events]


def outcome_of(order: Order) -> TrialOutcome:
    """The end of a trial, which is its last event."""
    last = events_of(order)[-1]
    assert last.outcome is not None
    return last.outcome


def without_times(events: list[TrialEvent]) -> list[dict[str, object]]:
    return [event.model_dump(exclude={"attempt": TIMED, "seconds": True}) for event in events]


def test_a_trial_says_started_then_each_epoch_then_its_end_and_leaves_its_weights(order):
    events = events_of(order)
    started, *_, ended = events
    assert [event.epoch and event.epoch.epoch for event in events] == [None, 1, 2]
    assert [event.outcome is not None for event in events] == [False, False, True]
    hardware = started.attempt.hardware
    assert (hardware.device, hardware.threads) == ("cpu", 1)
    assert ended.outcome.status == "finished"
    assert [path.name for path in Path(order.checkpoint).iterdir()] == [worker.WEIGHTS]


def test_the_same_order_gives_the_same_numbers_to_the_last_bit_in_a_warm_worker(order):
    first = events_of(order)
    again = events_of(order)
    assert without_times(first) == without_times(again)


def test_another_seed_gives_other_numbers(order):
    losses = {
        event.epoch.train_loss for seed in (0, 1) for event in events_of(order.model_copy(update={"seed": seed}))[1:2]
    }
    assert len(losses) == 2


def test_a_trial_does_not_change_the_warm_encoder(order):
    data = worker.warm_training_data(order.data)
    encoder = worker.warm_encoder(order.encoder, data.task.kind)
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    events_of(order)
    assert all(torch.equal(before[name], weight) for name, weight in encoder.state_dict().items())


def test_a_loss_that_is_not_finite_is_a_failed_trial_with_its_remedy(order):
    wild = order.model_copy(update={"setting": {**order.setting, "learning_rate": 1.0, "gradient_clip": 0.0}})

    def explode(self, scores, batch):
        return scores.sum() * float("nan")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meltpoint.adapters.head.Head.loss", explode)
        outcome = outcome_of(wild)
    assert (outcome.status, outcome.cause) == ("failed", "setting")
    assert "not finite in epoch 1" in outcome.error
    assert "lower learning rate" in outcome.error
    assert not Path(order.checkpoint).exists()


def test_a_disk_without_room_for_the_weights_ends_a_trial_before_it_trains(order, monkeypatch):
    monkeypatch.setattr(worker, "free_bytes", lambda folder: worker.SPARE_BYTES + 1000)
    (event,) = events_of(order)
    assert event.outcome.cause == "disk"
    assert re.fullmatch(r"No space left on device: 10 MB are free, but .* take 0 MB", event.outcome.error)


def test_a_disk_that_fills_up_while_a_trial_trains_is_no_fault_of_its_setting(order, monkeypatch):
    def full(state, path):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(worker, "save_file", full)
    assert outcome_of(order).cause == "disk"


def test_a_disk_that_fails_while_weights_are_saved_is_no_fault_of_the_setting(order, monkeypatch):
    def stale(state, path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(worker, "save_file", stale)
    outcome = outcome_of(order)
    assert outcome.cause == "worker"
    assert "Stale file handle" in outcome.error


def test_a_mount_that_is_stale_is_a_fault_of_the_node(order, monkeypatch):
    def stale(ledger, trial):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(resources, "_has", stale)
    assert "cannot reach the storage" in (resources.storage_fault(Path(order.checkpoint).parent, order.id, 0.0) or "")


def test_where_nothing_can_be_locked_the_encoder_runs_in_each_batch(frozen_orders, monkeypatch):
    def refused(*more, **options):
        raise NoLocksError("there are no file locks.")

    monkeypatch.setattr(resources, "open_features", refused)
    last = events_of(frozen_orders[0])[-1]
    assert last.outcome.status == "finished"
    assert any("no file locks. The encoder runs in each batch" in note for note in last.attempt.storage_notes)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory"),
        (RuntimeError(NO_HANDLE), "memory"),
        (MemoryError(), "setting"),
    ],
)
def test_out_of_memory_is_an_outcome_in_one_line_and_the_worker_lives(order, error, cause):
    def run_out(self, batch):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meltpoint.adapters.model.AdaptedModel.forward", run_out)
        outcome = outcome_of(order)
    assert (outcome.status, outcome.cause) == ("failed", cause)
    assert outcome.error.startswith("out of memory")
    assert (outcome.out_of_memory is not None) == (cause == "memory"), "with less at a time it is tried again"
    assert outcome_of(order).status == "finished"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_fingerprint": "0" * 16}, "the data of tiny_reviews changed since the sweep was opened"),
        ({"encoder_fingerprint": "0" * 16}, "changed since the sweep was opened; restore the old ones"),
        ({"metric": "macro_f1"}, "the metric of tiny_reviews was macro_f1 and is now accuracy"),
    ],
    ids=["data", "encoder", "metric"],
)
def test_input_that_changed_under_the_sweep_fails_the_trial(order, change, said):
    outcome = outcome_of(order.model_copy(update=change))
    assert (outcome.status, outcome.cause) == ("failed", "input")
    assert said in outcome.error


def test_a_gpu_that_is_not_there_fails_the_trial_with_a_pointer_to_doctor(order):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    outcome = outcome_of(order.model_copy(update={"gpus": 1.0}))
    assert "meltpoint doctor" in outcome.error


def test_a_training_worker_opens_no_test_split(order):
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, order.model_dump_json()], capture_output=True, encoding="utf-8", check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["status"] == "finished", said["error"]
    names = {Path(path).name for path in said["opened"]}
    assert {"train.tsv", "dev.tsv"} <= names, "the audit must see what a worker opens"
    assert "test.tsv" not in names
    assert said["locked"] == [], "a worker must not even import the lock's key"


def test_the_data_that_a_worker_holds_have_no_test_split(order, spec: SweepSpec):
    data = worker.warm_training_data(order.data)
    assert not hasattr(data, "test")
    held = {example.texts for example in [*data.train, *data.dev]}
    test_file = Path(spec.tasks[0]).with_name("test.tsv")
    of_test = {(line.split("\t")[0],) for line in test_file.read_text(encoding="utf-8").splitlines()[1:]}
    own = {name: (test_file.with_name(f"{name}.tsv")).read_text(encoding="utf-8") for name in ("train", "dev")}
    unseen = {texts for texts in of_test if not any(texts[0] in text for text in own.values())}
    assert unseen, "the test split has sentences of its own"
    assert unseen.isdisjoint(held)


@pytest.mark.parametrize(
    ("free", "expected"), [(49, [0, 0, 1, 2, 2, 3]), (50, [0, 0, 0, 0, 0, 0])], ids=["scarce", "plenty"]
)
def test_memory_goes_back_between_two_cells_where_it_is_scarce(
    monkeypatch: pytest.MonkeyPatch, free: int, expected: list[int]
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(resources, "release_memory", lambda: given_back.append(1))
    monkeypatch.setattr(resources.limits, "memory", lambda: Memory(100, free))
    monkeypatch.setattr(resources._LastOrder, "cell", None)
    sst2, mrpc = ("a", "fine_tuning", "sst2"), ("a", "fine_tuning", "mrpc")
    seen = []
    for cell in (sst2, sst2, mrpc, sst2, sst2, mrpc):
        resources.make_room(cell)
        seen.append(len(given_back))
    assert seen == expected


# --- trials that a worker takes up together ---


@pytest.fixture
def frozen_orders(spec, cells, tmp_path) -> list[Order]:
    """Four trials of the frozen tiny encoder, two of them with another batch size."""
    planner = Planner(spec, [replace(cells[0], trials=4)], [])
    orders = [order_of(cells[0], proposal, tmp_path) for proposal in planner.next_together(slots=1)]
    return [
        order.model_copy(update={"setting": {**order.setting, "batch_size": 8 if place % 2 else 16}})
        for place, order in enumerate(orders)
    ]


def alone_or_not(events: list[TrialEvent], trial: str) -> list[dict[str, object]]:
    """What was reported of one trial, without times and neighbours."""
    left_out = {"attempt": {**TIMED, "storage_notes": True, "trained_together": True}, "seconds": True}
    return [event.model_dump(exclude=left_out) for event in events if event.trial == trial]


def test_trials_taken_up_together_say_each_what_it_says_alone(frozen_orders):
    events = events_of(*frozen_orders)
    together = [event.attempt.trained_together for event in events if event.epoch is None]
    assert together == [2, 2, 2, 2], "those of one batch size train side by side"
    for order in frozen_orders:
        own = [event.epoch and event.epoch.epoch for event in events if event.trial == order.id]
        assert own == [None, 1, 2]
        assert alone_or_not(events, order.id) == alone_or_not(events_of(order), order.id)
        assert (Path(order.checkpoint) / worker.WEIGHTS).exists()


def test_an_epoch_of_all_of_them_is_one_result(frozen_orders):
    same = [order for order in frozen_orders if order.setting["batch_size"] == 8]
    reported = list(worker.run(tuple(same)))
    found = [[event.epoch and event.epoch.epoch for event in events] for events in reported]
    assert found == [[None] * 2, [1] * 2, [2] * 2]
    assert all("score" not in result_of(events) for events in reported), "no rule stops trials that share a worker"
    (alone,) = (result_of(events) for events in list(worker.run((same[0],)))[1:2])
    assert (alone["epoch"], alone["percent"]) == (1, 50.0)
    assert alone["score"] == alone["events"][0].epoch.dev["accuracy"]


def test_where_memory_is_too_small_for_all_of_them_half_train_at_a_time(frozen_orders, monkeypatch):
    same = [order.model_copy(update={"setting": {**order.setting, "batch_size": 8}}) for order in frozen_orders]
    forward = AdaptedModel.forward
    sizes: list[int] = []

    def small_memory(self, batch):
        sizes.append(self.members)
        if self.members > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return forward(self, batch)

    monkeypatch.setattr(AdaptedModel, "forward", small_memory)
    events = events_of(*same)
    assert [event.outcome.status for event in events if event.outcome is not None] == ["finished"] * 4
    assert sizes[0] == 4
    assert set(sizes[1:]) == {2}


def test_a_failed_gpu_is_told_before_the_worker_ends_with_it(order, monkeypatch):
    """A worker of an H100 was aborted by torch's destructors, so that Ray said only that it had died."""

    def fail(self, batch):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in ...")

    monkeypatch.setattr(AdaptedModel, "forward", fail)
    reported, run = [], worker.run((order,))
    with pytest.raises(torch.AcceleratorError):
        reported.extend(event for events in run for event in events)
    outcome = reported[-1].outcome
    assert (outcome.status, outcome.cause) == ("failed", "worker"), "it is tried again, elsewhere"
    assert outcome.error == "its GPU failed: CUDA error: device-side assert triggered"


def test_the_second_trial_reads_the_frozen_states_that_the_first_one_left(frozen_orders):
    first, second = frozen_orders[:2]
    notes = [events_of(order)[-1].attempt.storage_notes for order in (first, second)]
    assert all("to write" in note for note in notes[0])
    assert [note.split(" in ")[0] for note in notes[1]] == ["features: cached", "features: cached"]
    assert not any("to write" in note for note in notes[1])
    kept = entries(features_folder(Path(first.cache)))
    assert sorted(entry.split for entry in kept) == ["dev", "train"], "`cache ls` has a column of them"


def test_one_pass_of_the_encoder_keeps_the_layers_that_other_trials_of_the_cell_read(frozen_orders, tmp_path):
    def of(layers: str, cache: str, **changes: object) -> Order:
        setting = {**frozen_orders[0].setting, "feature_extraction.layers": layers}
        return frozen_orders[0].model_copy(update={"setting": setting, "cache": str(tmp_path / cache), **changes})

    def notes_and_dev(order: Order) -> tuple[list[str], object]:
        events = events_of(order)
        return events[-1].attempt.storage_notes, [event.epoch and event.epoch.dev for event in events]

    alone, scores = notes_and_dev(of("top", "alone"))
    _, same = notes_and_dev(of("top", "shared", caches_all_layers=True))
    assert same == scores
    size, larger = (
        sum(entry.bytes for entry in entries(features_folder(tmp_path / cache))) for cache in ("alone", "shared")
    )
    assert larger > 2 * size
    assert not any("to write" in note for note in notes_and_dev(of("mix", "shared", caches_all_layers=True))[0])
    small = of("top", "small", caches_all_layers=True, cache_bytes=size + 1)
    assert notes_and_dev(small) == (alone, scores), "where not all layers fit, the trial's own are kept"


def test_a_trial_whose_time_is_over_stops_while_the_encoder_fills_the_cache(frozen_orders):
    late = frozen_orders[0].model_copy(update={"ends_at": time.time() - 1.0})
    last = events_of(late)[-1]
    assert last.outcome == STOPPED_BY_BUDGET
    assert not list(features_folder(Path(late.cache)).rglob("*.bin")), "stopped before the first batch"


def test_a_budget_that_does_not_hold_runs_the_encoder_and_says_so(frozen_orders):
    small = frozen_orders[0].model_copy(update={"cache_bytes": 100})
    last = events_of(small)[-1]
    assert last.outcome.status == "finished"
    assert last.attempt.storage_notes
    assert all(note.endswith("the encoder runs in each batch") for note in last.attempt.storage_notes)
