"""A clock that is set by an hour, forward or back, in the midst of a sweep: nothing that counts or decides follows it.

The wall clock is `time.time`, which all of Python's code asks; what the kernel and Ray measure by themselves stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.running_trial import record_of
from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.worker.outcome import STOPPED_EARLY, TrialEvent, TrialOutcome, failed, lost_worker
from meltpoint.tests.sweeps.one_process import quiet_driver

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


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "sweep")
    made.create()
    return made


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
