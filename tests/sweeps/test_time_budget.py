"""A time budget for everything, from the start to the kept model; and a clock that is set by an hour meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.progress import RemainingTime
from meltpoint.sweeps.driver.running_trial import CLOSING_SECONDS, TimeBudget, record_of, seconds_to_go
from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Attempt
from meltpoint.sweeps.search.cell_progress import CellProgress
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.worker.outcome import (
    STOPPED_BY_BUDGET,
    STOPPED_EARLY,
    TrialEvent,
    TrialOutcome,
    failed,
    lost_worker,
)
from meltpoint.sweeps.worker.work_order import WorkOrder
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.planning import epoch_of
from meltpoint.tests.sweeps.test_driver import driver, epoch_ended, hand_out, orders_until_wait, records

__all__ = ["driver"]


@pytest.fixture
def timed(driver):
    """A driver whose budget of 100 s is for all, and `pass_time`, which turns its clock."""
    driver.resources = replace(driver.resources, time_budget=100.0, budget_began=0.0)
    driver.progress.remaining = RemainingTime()
    now = 0.0
    driver.clock = lambda: now
    driver.budget = TimeBudget(driver.planner, driver.ledger, driver.progress, driver.resources, driver.clock)

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    return driver, pass_time


def finish(driver: SweepDriver, work: WorkOrder, make_record) -> None:
    """Every trial of an order ends with a record of 10 s."""
    for order in work:
        record = make_record(driver.running.pop(order.id), seconds=10.0)
        driver.planner.end(record)
        driver.progress.remaining.add(record)
    driver.orders.pop(work[0].id)


def with_a_result(driver: SweepDriver, make_record) -> CellProgress:
    """The first cell, after its first order."""
    driver.slots = 1
    work = hand_out(driver)
    driver.on_start(work)
    finish(driver, work, make_record)
    return driver.planner.cells[work[0].cell]


def test_a_budget_for_all_begins_with_the_cheap_cell_whose_first_trials_alone_may_outlast_it(timed):
    driver, pass_time = timed
    pass_time(5.0)
    frozen, tuned, *_ = orders_until_wait(driver)
    assert (frozen[0].mode, frozen[0].ends_at) == ("feature_extraction", None)
    assert driver.progress.remaining.most() == 95.0
    assert tuned[0].mode == "fine_tuning"
    assert tuned[0].ends_at == pytest.approx(time.time() + 100 - 5 - CLOSING_SECONDS, abs=5.0)


def test_the_first_trial_runs_though_a_budget_for_all_is_spent_before_it(timed, make_record):
    driver, pass_time = timed
    pass_time(150.0)
    driver.slots = 1
    work = hand_out(driver)
    assert (work[0].mode, work[0].ends_at) == ("feature_extraction", None)
    driver.on_start(work)
    driver.budget.watch()
    assert driver.planner.closed_for_search


def test_no_worker_stops_a_trial_by_its_own_clock_where_other_machines_have_theirs(timed):
    driver, _ = timed
    driver.budget.is_on_cluster = True
    assert all(order.ends_at is None for work in orders_until_wait(driver) for order in work)


def test_an_order_that_waited_while_the_search_ended_begins_too_late(timed, make_record):
    driver, _ = timed
    progress = with_a_result(driver, make_record)
    (final, *_) = (work[0] for work in orders_until_wait(driver) if work[0].cell == progress.cell.key)
    search = final.model_copy(update={"role": "search"})
    assert not driver.begins_too_late((search,))
    driver.planner.close_search()
    assert driver.begins_too_late((search,))
    assert not driver.begins_too_late((final.model_copy(update={"role": "final"}),))


def test_a_trial_that_would_outlast_a_budget_for_all_is_stopped_and_leaves_its_cell_without_a_result(timed):
    driver, pass_time = timed
    frozen, tuned, *_ = orders_until_wait(driver)
    for work in (frozen, tuned):
        driver.on_start(work)
        driver.on_event(epoch_ended(work[0], 0.5).model_copy(update={"percent": 25.0, "seconds": 40.0}))
    pass_time(40.0)
    assert driver.wants_stop(tuned), "120 s are left of it, 60 of the budget"
    assert not driver.wants_stop(frozen), "without it there would be no result at all"
    pass_time(100.0)
    driver.budget.watch()
    assert driver.planner.closed_for_search
    assert not driver.wants_stop(frozen)


def test_the_pace_is_that_of_the_latest_epoch_and_a_frozen_encoders_first_one_has_none():
    """The first epoch may include the encoder's pass over the data: 3 s, and 0.1 s for each of the 99 others."""

    def event(*seconds: float, frozen: bool) -> TrialEvent:
        epochs = [
            epoch_of(number, train_seconds=one, dev_seconds=0.0, encoder_frozen=frozen)
            for number, one in enumerate(seconds, 1)
        ]
        done = {"percent": float(len(seconds)), "seconds": sum(seconds)}
        return TrialEvent(trial="a", attempt=Attempt(epochs=tuple(epochs)), score=0.5, **done)

    assert seconds_to_go(event(3.0, frozen=True)) == 0.0
    assert seconds_to_go(event(3.0, 0.1, frozen=True)) == pytest.approx(9.8)
    assert seconds_to_go(event(3.0, frozen=False)) == pytest.approx(297)


def test_finals_that_a_budget_for_all_has_no_room_for_are_left_to_the_next_command(timed, make_record):
    driver, pass_time = timed
    progress = with_a_result(driver, make_record)
    driver.planner.close_search()
    assert len(driver.planner.missing_finals(progress)) == 2
    pass_time(100.0 - CLOSING_SECONDS - 3.0)  # an order of two trials took 10 s
    driver.budget.watch()
    assert [one.seed for one in driver.planner.missing_finals(progress)] == [0], "its search trial has run it"


def test_finals_that_are_left_out_stay_so_though_fewer_of_them_need_less_time_for_test(timed, make_record, monkeypatch):
    driver, pass_time = timed
    progress = with_a_result(driver, make_record)
    monkeypatch.setattr(
        driver.budget, "_of_closing", lambda uncut: 4.0 if progress.finals_cut and uncut is not progress else 20.0
    )
    pass_time(77.0)
    for _ in range(4):
        driver.budget.watch()
        assert progress.finals_cut
        pass_time(0.5)


def test_a_final_that_the_budget_stops_leaves_no_record_and_runs_again_with_the_next_command(timed, make_record):
    driver, _ = timed
    progress = with_a_result(driver, make_record)
    driver.planner.close_search()
    (_, second) = driver.planner.missing_finals(progress)
    driver.planner.begin(second)
    order = driver._hand_out(second)
    driver.on_start((order,))
    driver.on_event(epoch_ended(order, 0.5))
    driver.on_end(order, STOPPED_BY_BUDGET)
    assert (second.id in records(driver), progress.running) == (False, {})


HOUR = 3600.0

Jump = Callable[[], None]


@pytest.fixture(params=[HOUR, -HOUR], ids=["forward", "back"])
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the clock."""
    set_by, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + set_by[0])

    def jumped() -> None:
        set_by[0] = request.param

    return jumped


@pytest.fixture
def make_driver(spec, cells, tmp_path: Path) -> Callable[..., SweepDriver]:
    return lambda **options: quiet_driver(Planner(spec, cells, []), Ledger(tmp_path / "sweep"), **options)


def test_a_trials_seconds_are_those_that_passed(make_driver, jump):
    driver, before = make_driver(), time.time()
    began = time.monotonic()
    work = driver.next_order()
    assert isinstance(work, tuple)
    driver.on_start(work)
    after = time.time()
    jump()
    driver.on_event(TrialEvent(trial=work[0].id, outcome=failed("setting", "it broke")))
    (record,) = driver.ledger.records()
    assert 0 <= record.seconds <= time.monotonic() - began
    assert before <= record.started_at <= after


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [(TrialOutcome(status="finished"), 2.4), (STOPPED_EARLY, 2.4), (failed("setting", "it broke"), 2.4),
     (lost_worker("it died"), 70.0)],
)  # fmt: skip
def test_the_workers_clock_counts_and_the_drivers_where_the_worker_was_lost(make_driver, outcome, seconds):
    driver = make_driver()
    work = driver.next_order()
    driver.on_start(work)
    began = time.time(), time.monotonic() - 70.0  # the driver was halted for so long
    latest = TrialEvent(trial=work[0].id, seconds=2.4)
    assert record_of(work[0], began, latest, outcome).seconds == pytest.approx(seconds, abs=1.0)


def test_a_time_budget_is_neither_ended_nor_made_longer(make_driver, jump):
    driver = make_driver(time_budget=HOUR / 2)
    driver.next_order()
    jump()
    driver.budget.watch()
    assert not driver.planner.closed_for_search
    assert driver.budget.deadline is not None
    driver.clock = lambda: driver.budget.deadline
    driver.budget.watch()
    assert driver.planner.closed_for_search


SILENCE = 2.0


@contextmanager
def driven_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[leases.Lease]:
    """A sweep that a process of another machine drives, as far as its files say."""
    monkeypatch.setenv(leases.SILENCE, str(SILENCE))
    lease = leases.acquire(folder / "drivers", say=pytest.fail)
    owner = lease.owner.model_copy(update={"boot": "another", "host": "there"})
    lease.claim.path.write_text(owner.model_dump_json() + "\n")
    lease.keep_renewing(on_lost=pytest.fail)
    try:
        yield lease
    finally:
        lease.release()


def test_the_lease_of_a_driver_that_is_alive_is_not_taken_over(ledger, monkeypatch, jump):
    with driven_elsewhere(ledger.folder, monkeypatch) as lease:
        jump()
        with pytest.raises(ValueError, match="Another process drives this sweep"), ledger.driving():
            pass
        lease.check()


def test_status_finds_a_driver_of_this_machine_that_has_not_renewed_its_lease_since(ledger, jump):
    with ledger.driving():
        jump()
        assert Ledger(ledger.folder).is_driven()


def test_gpu_hours_end_the_search_once_the_ended_trials_took_them(timed, make_record):
    driver, _ = timed
    driver.ledger.create()
    driver.resources = replace(driver.resources, time_budget=None, budget_began=None, max_gpu_hours=1.0)
    driver.budget = TimeBudget(driver.planner, driver.ledger, driver.progress, driver.resources, driver.clock)
    hardware = make_record(driver.planner.next()).hardware.model_copy(update={"gpu_share": 0.5})
    for number, is_spent in enumerate((False, True)):
        trial = driver.planner.next()
        driver.planner.end(make_record(trial, hardware=hardware, seconds=3600.0, started_at=1e9 + 9e3 * number))
        driver.budget.watch()
        assert driver.planner.closed_for_search is is_spent
