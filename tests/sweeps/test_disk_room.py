"""disk_room: a full disk pauses a sweep, says so once, and costs neither a trial nor a record."""

from __future__ import annotations

import errno

import pytest

from meltpoint.sweeps.driver import record_writer
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.attempt import Attempt, HardwareRecord
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tests.sweeps import test_driver
from meltpoint.tests.sweeps.test_driver import LOST, ended, hand_out, ids, records

driver = test_driver.driver

FULL = {"cause": "disk", "error": "No space left on device: 3 MB are free"}


class Said(list):
    """What a person was told, and a clock and a disk that the test moves."""

    now, free = 0.0, 3_000_000


@pytest.fixture
def disk(driver, monkeypatch) -> Said:
    said = Said()
    monkeypatch.setattr(record_writer, "free_bytes", lambda folder: said.free)
    driver.writer.room.say, driver.writer.room.clock = said.append, lambda: said.now
    return said


def find_no_room(driver: SweepDriver) -> WorkOrder:
    work = hand_out(driver)
    driver.on_start(work)
    driver.on_event(ended(work[0], **FULL))
    driver.on_order_end(work, LOST)
    return work


def test_a_trial_without_room_on_the_disk_pauses_the_sweep_says_so_once_and_runs_when_there_is_room(driver, disk):
    work = find_no_room(driver)
    (line,) = disk
    assert "3 MB are free" in line
    assert "no new trial begins until space is free; nothing is lost" in line
    assert driver.next_order() == "wait"
    disk.free += record_writer.GROWTH_BYTES
    again = hand_out(driver)
    assert ids(again) == ids(work)
    assert {order.attempt for order in again} == {1}
    driver.on_start(again)
    assert len(disk) == 1, "nobody knows yet"
    driver.on_event(started(again[0]))
    assert disk[1:] == ["The disk has space again: the sweep continues."]
    assert records(driver) == {}


def test_a_disk_whose_room_cannot_be_seen_is_tried_every_minute_however_often_and_costs_no_try(driver, disk):
    for _ in range(10):
        work = find_no_room(driver)
        assert driver.next_order() == "wait"
        disk.now += record_writer.AGAIN_SECONDS
    assert len(disk) == 1
    assert driver.losses[work[0].id] == 0
    driver.on_start(again := hand_out(driver))
    driver.on_order_end(again, LOST)
    assert driver.losses[work[0].id] == 1
    assert records(driver) == {}


def without_room(driver: SweepDriver, monkeypatch, *calls: str) -> None:
    """Let the ledger have no room for what it writes, until the patch is undone."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for call in calls:
        monkeypatch.setattr(driver.ledger, call, full)


def test_a_record_that_the_disk_has_no_room_for_is_written_later_and_meanwhile_no_trial_begins(driver, disk):
    work = hand_out(driver)
    driver.on_start(work)
    with pytest.MonkeyPatch.context() as patch:
        without_room(driver, patch, "write")
        for order in work:
            driver.on_event(ended(order))
        driver.on_order_end(work, LOST)
        assert driver.next_order() == "wait"
        disk.now += record_writer.LOOK_SECONDS
        assert driver.next_order() == "wait"
    assert records(driver) == {}
    (line,) = disk
    assert line.startswith("No disk space for a trial's record: No space left on device")
    disk.now += record_writer.LOOK_SECONDS
    assert isinstance(driver.next_order(), tuple)
    assert records(driver).keys() == set(ids(work))
    assert disk[1:] == ["The disk has space again: the sweep continues."]


def test_a_trial_whose_note_the_disk_has_no_room_for_does_not_begin_and_is_not_forgotten(driver, disk):
    with pytest.MonkeyPatch.context() as patch:
        without_room(driver, patch, "start")
        assert driver.next_order() == "wait"
        assert driver.next_order() == "wait"
    assert len(disk) == 1
    assert driver.waiting == {}
    disk.now += record_writer.AGAIN_SECONDS
    work = hand_out(driver)
    assert work[0].number == 0
    assert len(disk) == 2


def started(order: Order) -> TrialEvent:
    hardware = HardwareRecord(device="cpu", name="AVX2", threads=1, gpu_share=0.0, precision="fp32", host="here")
    return TrialEvent(trial=order.id, attempt=Attempt(hardware=hardware, task_parameters=1))
