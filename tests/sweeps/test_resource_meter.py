"""A worker's machine: whether it is fit for an order, what is noted of the inputs, and whose memory and time it was."""

from __future__ import annotations

import mmap
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray.tune
import torch

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.hardware import Hardware
from meltpoint.adapters.training.saved_state import read_about
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.driver.running_trial import record_of
from meltpoint.sweeps.ledger.ledger import STATES, Ledger
from meltpoint.sweeps.ledger.records import NOTHING_KNOWN, Attempt, Trial, TrialRecord
from meltpoint.sweeps.machine.limits import ProcessPeak
from meltpoint.sweeps.on_ray import workers
from meltpoint.sweeps.on_ray.workers import EVENTS, train_on_ray
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.worker import resources, worker
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.outcome import STOPPED_EARLY, TrialEvent, TrialOutcome, lost_worker
from meltpoint.sweeps.worker.resources import ResourceMeter, input_notes, unfit
from meltpoint.sweeps.worker.work_order import Order, to_config
from meltpoint.tasks import get
from meltpoint.tests.sweeps.one_process import order_of

CPU = Hardware("cpu", "AVX512", 1)


def test_a_trial_has_the_peak_of_its_last_lap_and_none_before() -> None:
    meter = ResourceMeter()
    assert meter.of("a") == NOTHING_KNOWN, "the device was never claimed"
    meter.begin(CPU)
    meter.lap(["a"])
    assert meter.of("a").peak_memory_bytes > 10 * 2**20, "Python with torch"
    assert meter.of("b") == NOTHING_KNOWN


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_peak_is_of_the_time_since_it_began_and_not_of_an_earlier_trial() -> None:
    peak = ProcessPeak()
    earlier = np.ones(64 * 2**20 // 8)
    del earlier
    peak.begin()
    if peak.kind != "process":
        pytest.skip("this sandbox does not let a process set its peak back")
    before = peak.read()
    mine = np.frombuffer(mmap.mmap(-1, 32 * 2**20))  # malloc might give pages that are already resident
    mine[:] = 1.0
    assert 30 * 2**20 < peak.read() - before < 60 * 2**20
    assert mine.nbytes == 32 * 2**20


def test_where_it_cannot_be_set_back_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmPeak:\t  900 kB\nVmHWM:\t     512 kB\n", encoding="ascii")
    (tmp_path / "clear_refs").mkdir()  # nothing can be written there, whoever runs the test
    peak = ProcessPeak(tmp_path)
    peak.begin()
    assert (peak.kind, peak.read()) == ("process_lifetime", 512 * 1024)


# --- real trials ---


@pytest.fixture
def tuned(spec, cells, tmp_path) -> tuple[OpenCell, Order]:
    """A fine-tuning trial of the tiny encoder."""
    proposal = Planner(spec.model_copy(update={"modes": ("fine_tuning",)}), cells[1:], []).next()
    return cells[1], order_of(cells[1], proposal, tmp_path)


def test_a_real_trial_tells_its_peak_and_what_it_trained_and_the_record_has_it(tuned) -> None:
    cell, order = tuned
    started, *_, ended = [event for events in worker.run((order,)) for event in events]
    begun = started.attempt
    encoder = worker.warm_encoder(order.encoder, cell.task.kind)
    assert begun.trained_parameters == begun.task_parameters + sum(p.numel() for p in encoder.parameters())
    use = ended.attempt
    assert use.peak_memory_bytes > 50 * 2**20
    record = record_of(order, (time.time(), time.monotonic()), ended, ended.outcome)
    assert {name: getattr(record, name) for name in Attempt.model_fields} == dict(use)
    assert record.trained_parameters == begun.trained_parameters
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record


def test_a_trials_seconds_are_its_workers_though_the_driver_is_halted_meanwhile(tuned, monkeypatch) -> None:
    """Ray's `report` returns once the driver asks for the next result."""
    _, order = tuned
    order = order.model_copy(update={"saving_share": 1e9})
    reported, halted = [], 0.0

    def report(result: dict[str, list[TrialEvent]]) -> None:
        nonlocal halted
        reported.extend(result[EVENTS])
        time.sleep(1.5)
        halted += 1.5

    monkeypatch.setattr(ray.tune, "report", report)
    began = time.monotonic()
    train_on_ray(to_config((order,)))
    took = time.monotonic() - began
    *_, ended = reported
    assert ended.outcome is not None
    assert [event.seconds for event in reported] == sorted(event.seconds for event in reported)
    assert sum(e.epoch.train_seconds for e in reported if e.epoch is not None) < ended.seconds <= took - halted
    (state,) = Path(order.checkpoint).glob(STATES)
    assert 0 < read_about(state)["seconds"] <= ended.seconds


@pytest.mark.parametrize(("pace", "opened"), [(1.0, 1), (0.75, 2), (0.5, 3), (9.0, 0)])
def test_layers_that_a_plan_never_opens_are_not_counted_as_trained(tuned, pace, opened) -> None:
    """Two epochs of four steps: the groups thaw at the steps 4 × pace, 8 × pace, …"""
    cell, order = tuned
    setting = {**order.setting, "gradual_unfreezing": True, "gradual_unfreezing.epochs_per_group": pace, "epochs": 2}
    work = (order.model_copy(update={"setting": setting}),)
    begun = next(worker.run(work))[0].attempt
    encoder = worker.warm_encoder(order.encoder, cell.task.kind)
    groups = encoder.layer_groups()
    tops = groups[len(groups) - opened :]
    assert begun.trained_parameters == begun.task_parameters + sum(p.numel() for g in tops for p in g.parameters)


def test_a_frozen_encoder_is_not_counted_as_trained(spec, cells, tmp_path) -> None:
    planner = Planner(spec, [replace(cells[0], trials=2)], [])
    orders = tuple(order_of(cells[0], proposal, tmp_path) for proposal in planner.next_together(slots=1))
    assert len(orders) == 2
    for event in (event for events in worker.run(orders) for event in events):
        assert event.attempt.trained_parameters == event.attempt.task_parameters


def test_a_trial_that_fails_tells_what_it_used(tuned, monkeypatch) -> None:
    _, order = tuned
    monkeypatch.setattr("meltpoint.adapters.head.Head.loss", lambda self, scores, batch: scores.sum() * float("nan"))
    *_, ended = [event for events in worker.run((order,)) for event in events]
    assert ended.outcome.status == "failed"
    assert ended.attempt.peak_memory_bytes > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_trial_that_cannot_begin_tells_nothing(tuned) -> None:
    _, order = tuned
    gone = order.model_copy(update={"gpus": 1.0})
    (ended,) = [event for events in worker.run((gone,)) for event in events]
    assert "torch sees none" in ended.outcome.error
    assert "meltpoint doctor" in ended.outcome.error
    assert ended.attempt == Attempt()


@pytest.mark.parametrize(
    ("outcome", "peak"), [(TrialOutcome(status="finished"), 4), (STOPPED_EARLY, 4), (lost_worker("it died"), None)]
)
def test_a_stopped_trial_has_its_use_so_far_and_a_lost_one_none(tuned, outcome, peak) -> None:
    _, order = tuned
    use = Attempt(peak_memory_bytes=4, peak_memory_kind="process")
    event = TrialEvent(trial=order.id, attempt=use)
    assert record_of(order, (0.0, 0.0), event, outcome).peak_memory_bytes == peak


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "runs" / "tiny")
    ledger.create()
    return ledger


@pytest.fixture
def order(proposal: Trial, cells: list[OpenCell], ledger: Ledger) -> Order:
    """An order of a sweep on a cluster, as the driver notes it before it hands it out."""
    cell = next(cell for cell in cells if cell.key == proposal.cell)
    checkpoint, fingerprint = str(ledger.checkpoint(proposal.id)), {"encoder_fingerprint": ""}
    made = order_of(cell, proposal, ledger.folder, checkpoint=checkpoint, code_version=code_version(), **fingerprint)
    ledger.start(made.as_json())
    return made


def test_a_machine_with_the_drivers_code_and_storage_is_fit(order: Order, ledger: Ledger) -> None:
    assert unfit(order) is None
    assert [path.name for path in ledger.started.iterdir()] == [f"{order.id}.json"], "nothing is left behind"


def test_an_order_of_a_local_cluster_takes_any_machine(order: Order) -> None:
    anywhere = {"code_version": "", "checkpoint": "/nowhere/runs/tiny/checkpoints/x"}
    assert unfit(order.model_copy(update=anywhere)) is None


def test_other_code_is_refused_with_both_versions(order: Order) -> None:
    fault = unfit(order.model_copy(update={"code_version": "0.0.1+0123abcd"}))
    assert fault is not None
    assert f"has Meltpoint's code {code_version()}, but the driver has 0.0.1+0123abcd" in fault


def test_a_storage_that_is_not_there_or_another_ones_is_refused(order: Order, ledger: Ledger) -> None:
    elsewhere = order.model_copy(update={"checkpoint": "/nowhere/runs/tiny/checkpoints/x"})
    assert "does not see /nowhere/runs/tiny; mount" in str(unfit(elsewhere, patience_seconds=0.0))
    (ledger.started / f"{order.id}.json").unlink()
    assert f"has a different {ledger.folder}; mount" in str(unfit(order, patience_seconds=0.0))


def test_a_machine_without_a_usable_gpu_is_unfit_for_a_trial_on_one(order: Order, monkeypatch) -> None:
    on_gpu = order.model_copy(update={"gpus": 0.5})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "gave it a GPU that torch does not see; run `meltpoint doctor` there" in str(unfit(on_gpu))
    assert unfit(order) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])
    assert "has a GPU (sm_70) that torch" in str(unfit(on_gpu))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_that_cannot_be_written_is_refused(order: Order, ledger: Ledger) -> None:
    ledger.started.chmod(0o500)
    assert f"cannot write {ledger.started} (" in str(unfit(order))


def test_a_trial_that_has_ended_is_scored_where_its_record_is_seen(order: Order, ledger: Ledger) -> None:
    (ledger.started / f"{order.id}.json").rename(ledger.trials / f"{order.id}.json")
    assert unfit(order) is None


def test_a_refusal_loses_the_trials_and_names_the_node(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "0123")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    result = workers.refusal((order,), "its machine has other code")
    (event,) = result[workers.EVENTS]
    assert (event.trial, event.outcome.cause, event.outcome.error) == (order.id, "worker", "its machine has other code")
    assert result[workers.UNFIT_NODE] == "0123"


def test_finalists_are_not_scored_by_other_code_and_need_no_new_training(order, make_record, proposal) -> None:
    other = order.model_copy(update={"code_version": "0.0.1+0123abcd"})
    (answer,) = score_finalists(
        [other.as_json()], [make_record(proposal).model_dump_json()], str(Path(order.checkpoint))
    )
    assert answer["test"] is None
    assert answer["again"] is False
    assert "0.0.1+0123abcd" in answer["error"]


def test_a_note_that_comes_late_is_waited_for(order: Order, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    note = ledger.started / f"{order.id}.json"
    note.rename(ledger.folder / "late")
    monkeypatch.setattr(resources.time, "sleep", lambda seconds: (ledger.folder / "late").rename(note))
    assert unfit(order) is None


def data(limit: int, whole: int, task: str = "demo_sentiment", **dev: object) -> EncodedData:
    """60 training examples of `whole` pieces each, cut to `limit`, and a dev split."""
    rows = [Row(number, 0, (1,) * min(limit, whole), (), (), 0) for number in range(60)]
    cut = 60 * max(0, whole - limit)
    train = EncodedSplit(rows, 60, 60 if cut else 0, name="train", whole=[whole] * 60, pieces_cut=cut)
    return EncodedData(get(task), train, EncodedSplit([], **dev), [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_pieces", "longest", "whole", "said"),
    [
        (128, 512, 160, "max_pieces = 128 (100 %; 20 % of all pieces lost); --set max_pieces=160 would keep all"),
        (128, 512, 161, "max_pieces = 128 (100 %; 20.5 % of all pieces lost); --set max_pieces=168 would keep all"),
        (
            300,
            512,
            600,
            "max_pieces = 300 (100 %; 50 % of all pieces lost); --set max_pieces=512 would keep all but 60",
        ),
        (
            512,
            512,
            640,
            "the encoder's longest input, 512 pieces (100 %; 20 % of all pieces lost); the longest has 640",
        ),
    ],
)
def test_a_note_on_cut_inputs_names_the_limit_and_what_would_keep_them(
    max_pieces: int, longest: int, whole: int, said: str
):
    notes = input_notes(data(max_pieces, whole, examples=9, name="dev"), max_pieces, longest)
    assert notes == [f"train: 60 of 60 examples cut to {said}"]


def test_nothing_is_said_of_inputs_that_fit():
    assert input_notes(data(128, 128, examples=9, name="dev"), 128, 512) == []


def test_sentences_to_label_are_said_to_lose_a_word_or_to_be_split():
    rows = [Row(0, 0, (1,) * 100, (), (), ()), Row(0, 60, (1,) * 100, (), (), ())]
    dev = {
        "rows": rows, "examples": 1, "name": "dev", "word_counts": [100], "truncated": 1, "windowed": 1, "alone": 1,
        "whole": [250], "pieces_cut": 50,
    }  # fmt: skip
    own = EncodedData(get("demo_entities"), EncodedSplit([], 0, name="train"), EncodedSplit(**dev), [])  # type: ignore[arg-type]
    assert input_notes(own, 128, 512) == [
        "dev: 1 of 1 sentence with a word cut to max_pieces = 128 (100 %; 20 % of all pieces lost); "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence split into windows of max_pieces = 128, no word lost; "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence without a neighbour in the document",
    ]
