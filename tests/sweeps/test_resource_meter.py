"""The meter of an order: whose memory it was, and what the ledger has of it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray.tune

from meltpoint.adapters.hardware import Hardware
from meltpoint.adapters.training.training_state import read_about
from meltpoint.sweeps.driver.running_trial import record_of
from meltpoint.sweeps.ledger.ledger import STATES
from meltpoint.sweeps.ledger.records import NOTHING_KNOWN, Attempt, TrialRecord
from meltpoint.sweeps.machine.limits import ProcessPeak
from meltpoint.sweeps.on_ray.trainable import EVENTS, train_on_ray
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.worker import worker
from meltpoint.sweeps.worker.outcome import STOPPED_EARLY, TrialEvent, TrialOutcome, lost_worker
from meltpoint.sweeps.worker.resources import ResourceMeter
from meltpoint.sweeps.worker.work_order import Order, to_config
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
    mine = np.ones(32 * 2**20 // 8)
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


def test_a_trial_that_fails_tells_what_it_used_and_one_that_cannot_begin_tells_nothing(tuned, monkeypatch) -> None:
    _, order = tuned
    monkeypatch.setattr("meltpoint.adapters.head.Head.loss", lambda self, scores, batch: scores.sum() * float("nan"))
    *_, ended = [event for events in worker.run((order,)) for event in events]
    assert ended.outcome.status == "failed"
    assert ended.attempt.peak_memory_bytes > 0
    gone = order.model_copy(update={"gpus": 1.0})
    (ended,) = [event for events in worker.run((gone,)) for event in events]
    assert "torch sees none" in ended.outcome.error
    assert ended.attempt == Attempt()


@pytest.mark.parametrize(
    ("outcome", "peak"), [(TrialOutcome(status="finished"), 4), (STOPPED_EARLY, 4), (lost_worker("it died"), None)]
)
def test_a_stopped_trial_has_its_use_so_far_and_a_lost_one_none(tuned, outcome, peak) -> None:
    _, order = tuned
    use = Attempt(peak_memory_bytes=4, peak_memory_kind="process")
    event = TrialEvent(trial=order.id, attempt=use)
    assert record_of(order, (0.0, 0.0), event, outcome).peak_memory_bytes == peak
