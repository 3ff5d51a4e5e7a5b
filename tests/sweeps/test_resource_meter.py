"""The meter of an order: whose energy and memory it was, that it costs nothing, and what the ledger has of it."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray.tune
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.hardware import Hardware
from meltpoint.adapters.training.training_state import read_about
from meltpoint.sweeps.driver.running_trial import RunningTrial
from meltpoint.sweeps.ledger.attempt import NOTHING_KNOWN, Attempt
from meltpoint.sweeps.ledger.ledger import STATES
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.machine.counters import ProcessPeak
from meltpoint.sweeps.on_ray.trainable import EVENTS, train_on_ray
from meltpoint.sweeps.search.planner import Planner, Trial
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.worker import resources, worker
from meltpoint.sweeps.worker.outcome import STOPPED_EARLY, TrialEvent, TrialOutcome, lost_worker
from meltpoint.sweeps.worker.resources import ResourceMeter
from meltpoint.sweeps.worker.work_order import Order, to_config

CPU = Hardware("cpu", "AVX512", 1)


class Counter:
    """A counter of energy that gives what it is told to."""

    source = "rapl"

    def __init__(self, *joules: float | None) -> None:
        self.left = itertools.chain(joules, itertools.repeat(8.0))

    def joules(self) -> float | None:
        return next(self.left)


class Peak:
    """Memory that grows by one byte a look."""

    kind = "process"

    def __init__(self) -> None:
        self.begun, self.bytes = 0, 0

    def begin(self) -> None:
        self.begun, self.bytes = self.begun + 1, 0

    def read(self) -> int:
        self.bytes += 1
        return self.bytes


def meter_of(*joules: float | None, share: float = 1.0) -> ResourceMeter:
    meter = ResourceMeter()
    meter.open(Peak(), Counter(*joules), share)
    meter.begin(CPU)
    return meter


laps = st.lists(st.tuples(st.floats(0, 1e6), st.sets(st.sampled_from("abcdef"), min_size=1)), min_size=1, max_size=20)


@given(laps=laps, share=st.floats(0.01, 1.0))
def test_the_energy_of_an_orders_trials_adds_up_to_the_counters(laps, share) -> None:
    meter = meter_of(*(joules for joules, _ in laps), share=share)
    for _, trials in laps:
        meter.lap(sorted(trials))
    seen = set().union(*(trials for _, trials in laps))
    total = sum(meter.of(trial).energy_joules for trial in seen)
    assert total == pytest.approx(share * sum(joules for joules, _ in laps), abs=0.001 * len(seen))


def test_a_trial_that_leaves_early_has_no_part_in_what_comes_after() -> None:
    meter = meter_of(10.0, 6.0, share=0.5)
    meter.lap(["a", "b"])
    meter.lap(["b"])
    assert [meter.of(trial).energy_joules for trial in "ab"] == [2.5, 5.5]
    assert meter.of("b").energy_share == 0.5
    assert [meter.of(trial).peak_memory_bytes for trial in "ab"] == [1, 2]


def test_a_time_that_the_counter_does_not_tell_leaves_a_trials_energy_unknown_and_not_too_small() -> None:
    meter = meter_of(10.0, None, 6.0)
    meter.lap(["a"])
    meter.lap(["b"])
    meter.lap(["b", "c"])
    assert [meter.of(trial).energy_joules for trial in "abc"] == [10.0, None, 3.0]
    assert meter.of("b").energy_source is None
    assert meter.of("b").peak_memory_bytes == 3, "its memory is known all the same"
    assert meter.of("d") == NOTHING_KNOWN
    assert ResourceMeter().of("a") == NOTHING_KNOWN, "the device was never claimed"


@pytest.mark.parametrize(("threads", "share"), [(1, 1 / 8), (4, 1 / 2), (16, 1.0)])
def test_a_cpus_energy_counts_by_threads_of_all_logical_cores(threads, share, monkeypatch) -> None:
    monkeypatch.setattr(resources.os, "cpu_count", lambda: 8)
    assert resources.instruments(replace(CPU, threads=threads))[2] == share


# --- peak memory ---


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


def test_without_a_proc_folder_getrusage_answers(tmp_path: Path) -> None:
    peak = ProcessPeak(tmp_path / "nowhere")
    peak.begin()
    assert peak.kind == "process_lifetime"
    assert peak.read() > 10 * 2**20, "Python with torch"


# --- real trials ---


def order_of(cell: OpenCell, proposal: Trial, folder: Path) -> Order:
    return Order(
        id=proposal.id, number=0, role="search", encoder=cell.encoder, mode=cell.mode, task=cell.task_name,
        head=cell.head, seed=0, setting=proposal.setting, data=cell.data, data_fingerprint=cell.data_fingerprint,
        encoder_fingerprint=cell.encoder_fingerprint, checkpoint=str(folder / proposal.id), cpus=1, gpus=0,
        metric=cell.metric,
    )  # fmt: skip


@pytest.fixture
def tuned(spec, cells, tmp_path) -> tuple[OpenCell, Order]:
    """A fine-tuning trial of the tiny encoder."""
    proposal = Planner(spec.model_copy(update={"modes": ("fine_tuning",)}), cells[1:], []).next()
    return cells[1], order_of(cells[1], proposal, tmp_path)


@pytest.fixture
def counted(monkeypatch) -> None:
    """A counter of 8 J a look."""
    monkeypatch.setattr(resources, "package_energy", Counter)
    monkeypatch.setattr(resources.os, "cpu_count", lambda: 4)


def test_a_real_trial_tells_its_peak_its_energy_and_what_it_trained_and_the_record_has_it(tuned, counted) -> None:
    cell, order = tuned
    started, *epochs = [event for events in worker.run((order,)) for event in events]
    begun, ended = started.attempt, epochs[-1]
    encoder = worker.warm_encoder(order.encoder, cell.task.kind)
    assert begun.trained_parameters == begun.task_parameters + sum(p.numel() for p in encoder.parameters())
    assert [event.attempt.energy_joules for event in epochs] == [2.0, 4.0], "a quarter of 8 J, each epoch"
    use = ended.attempt
    assert use.peak_memory_bytes > 50 * 2**20
    assert (use.energy_joules, use.energy_source, use.energy_share) == (4.0, "rapl", 0.25)
    record = RunningTrial(order, time.time(), use).record(ended.outcome)
    assert {name: getattr(record, name) for name in Attempt.model_fields} == dict(use)
    assert record.trained_parameters == begun.trained_parameters
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record


def test_a_trials_seconds_are_its_workers_though_the_driver_is_halted_meanwhile(tuned, monkeypatch) -> None:
    """Ray's `report` returns once the driver asks for the next result."""
    _, order = tuned
    order = order.model_copy(update={"saving_share": 1.0})
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


def test_a_frozen_encoder_is_not_counted_as_trained_and_side_by_side_energy_is_shared(spec, cells, tmp_path, counted):
    planner = Planner(spec, [replace(cells[0], trials=2)], [])
    orders = tuple(order_of(cells[0], proposal, tmp_path) for proposal in planner.next_together(slots=1))
    assert len(orders) == 2
    events = [event for events in worker.run(orders) for event in events]
    for event in events:
        assert event.attempt.trained_parameters == event.attempt.task_parameters
    ends = [event for event in events if event.outcome is not None]
    epochs = sum(event.epoch is not None for event in events) / 2
    assert [event.attempt.energy_joules for event in ends] == [epochs, epochs], "half of a quarter of 8 J each"


def test_a_trial_that_fails_tells_what_it_used_and_one_that_cannot_begin_tells_nothing(tuned, counted, monkeypatch):
    _, order = tuned
    monkeypatch.setattr("meltpoint.adapters.head.Head.loss", lambda self, scores, batch: scores.sum() * float("nan"))
    *_, ended = [event for events in worker.run((order,)) for event in events]
    assert ended.outcome.status == "failed"
    assert ended.attempt.energy_joules == 2.0
    gone = order.model_copy(update={"gpus": 1.0})
    (ended,) = [event for events in worker.run((gone,)) for event in events]
    assert "torch sees none" in ended.outcome.error
    assert ended.attempt == Attempt()


@pytest.mark.parametrize(
    ("outcome", "joules"),
    [(TrialOutcome(status="finished"), 4.0), (STOPPED_EARLY, 4.0), (lost_worker("it died"), None)],
)
def test_a_stopped_trial_has_its_use_so_far_and_a_lost_one_none(tuned, outcome, joules) -> None:
    _, order = tuned
    use = Attempt(energy_joules=4.0, energy_source="nvml", energy_share=0.5)
    trial = RunningTrial(order, time.time(), use)
    assert trial.record(outcome).energy_joules == joules


def test_recording_takes_less_than_a_millisecond_an_epoch() -> None:
    """The median of several trials of ten epochs, in this thread's own time, since other programs run too."""
    times = []
    for _ in range(25):
        began = time.thread_time()
        meter = ResourceMeter()
        meter.begin(CPU)
        for _ in range(10):
            meter.lap(["a"])
            meter.of("a")
        times.append((time.thread_time() - began) / 10)
    assert statistics.median(times) < 1e-3, f"{1e3 * statistics.median(times):.3f} ms an epoch"
