"""driver: how many orders lie at Ray at a time, and what becomes of trials whose workers are lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from meltpoint.sweeps.driver.driver import SweepConductor
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.losses import RETRIES, Loss, is_full_disk, loss_of
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.sweeps.worker.work_order import Order, WorkOrder


@pytest.fixture
def driver(spec, cells, tmp_path: Path) -> SweepConductor:
    calls = ("begin", "on_start", "prepare", "run_of", "end", "ended", "abandon", "lost", "epoch", "say")
    deaf = SimpleNamespace(**dict.fromkeys(calls, lambda *_: None))
    resources = Resources(storage=str(tmp_path), gpus=0.0)
    made = SweepConductor(Planner(spec, cells, []), Ledger(tmp_path / "sweep"), deaf, deaf, deaf, resources)
    made.slots = 3
    return made


LOST = Loss("worker", "its worker died")


def records(driver: SweepConductor) -> dict[str, object]:
    return {record.id: record for record in driver.ledger.records()}


def asked(driver: SweepConductor) -> list[WorkOrder]:
    """What Ray gets where it asks until it is told to wait."""
    orders: list[WorkOrder] = []
    while isinstance(order := driver.next_order(), WorkOrder):
        orders.append(order)
        assert len(orders) < 10
    assert order == "wait"
    return orders


def test_an_order_waits_for_each_worker_without_one_and_one_more_where_all_have_some(driver):
    first, second, third = asked(driver)
    driver.on_start(first)
    assert asked(driver) == [], "two workers are on their way, and two orders wait for them"
    driver.on_start(second)
    driver.on_start(third)
    (fourth,) = asked(driver)
    driver.on_lost(second, LOST)
    assert asked(driver) == [], "the fourth takes its place"
    driver.on_start(fourth)
    assert len(asked(driver)) == 1


def test_tune_asks_for_all_workers_at_once_unless_a_person_said_otherwise(monkeypatch):
    monkeypatch.delenv(experiment.MOST_PENDING, raising=False)
    with experiment._workers_start_together(5):
        assert os.environ[experiment.MOST_PENDING] == "5"
    assert experiment.MOST_PENDING not in os.environ
    monkeypatch.setenv(experiment.MOST_PENDING, "2")
    with experiment._workers_start_together(5):
        assert os.environ[experiment.MOST_PENDING] == "2"
    assert os.environ[experiment.MOST_PENDING] == "2"


def ids(work: WorkOrder) -> list[str]:
    return [order.id for order in work.orders]


def hand_out(driver: SweepConductor) -> WorkOrder:
    order = driver.next_order()
    assert isinstance(order, WorkOrder)
    return order


def hand_out_and_fail(driver: SweepConductor) -> Order:
    """A trial that has its outcome, and so its record."""
    work = hand_out(driver)
    driver.on_start(work)
    for order in work.orders:
        driver.on_event(outcome(order))
    driver.on_lost(work, None)
    return work.first


def outcome(order, **body: object) -> dict[str, object]:
    facts = {"status": "failed", "error": "it broke", "best_epoch": None, "notes": [], "cause": "setting"}
    return {"event": "outcome", "trial": order.id, "body": facts | body}


def test_a_record_written_before_mlflow_answered_gets_its_run_while_the_sweep_goes_on(driver, monkeypatch):
    runs: dict[str, str] = {}
    monkeypatch.setattr(driver.tracker, "run_of", runs.get)
    monkeypatch.setattr(driver, "score", lambda timeout_seconds: False)
    first, second = (order.id for order in [hand_out_and_fail(driver), hand_out_and_fail(driver)])
    driver.tick()
    assert {record.mlflow_run_id for record in records(driver).values()} == {None}
    runs[first] = "the first one's"
    driver.tick()
    assert [records(driver)[trial].mlflow_run_id for trial in (first, second)] == ["the first one's", None]
    runs[second] = "the second one's"
    driver.tick()
    assert records(driver)[second].mlflow_run_id == "the second one's"
    assert driver.without_run == {}


@pytest.mark.parametrize("taken_up", [False, True], ids=["before it began", "while it ran"])
def test_a_trial_whose_worker_dies_is_handed_out_again_first(driver, taken_up):
    work = hand_out(driver)
    if taken_up:
        driver.on_start(work)
    driver.on_lost(work, LOST)
    again = hand_out(driver)
    assert ids(again) == ids(work)
    assert {order.attempt for order in again.orders} == {1}
    assert records(driver) == {}, "a lost worker is no outcome"


def test_a_trial_that_always_loses_its_worker_fails_after_its_retries_and_its_study_never_hears_of_it(driver):
    first = hand_out(driver)
    for attempt in range(RETRIES["worker"]):
        work = first if attempt == 0 else hand_out(driver)
        assert first.first.id in ids(work)
        driver.on_start(work)
        driver.on_lost(work, LOST)
    last = hand_out(driver)
    assert ids(last) == [first.first.id], "what has lost several workers is tried alone"
    driver.on_lost(last, LOST)
    (record,) = records(driver).values()
    assert (record.status, record.cause, record.attempts) == ("failed", "worker", 1 + RETRIES["worker"])
    assert record.is_lost
    study = driver.planner.cells[record.cell].study.study
    assert {trial.state for trial in study.trials} <= {TrialState.FAIL, TrialState.RUNNING}, (
        "FAIL is what TPE leaves out"
    )


def test_a_trial_killed_for_memory_is_tried_alone_at_once(driver):
    driver.slots = 1
    work = hand_out(driver)
    while len(work.orders) == 1:  # a fine-tuning trial
        driver.on_start(work)
        work = hand_out(driver)
    driver.on_start(work)
    driver.on_lost(work, Loss("memory", "its worker was killed"))
    assert [len(hand_out(driver).orders)] == [1]


def test_an_error_of_the_setting_is_not_tried_again_and_is_the_worst_for_its_study(driver):
    work = hand_out(driver)
    driver.on_start(work)
    driver.on_event(outcome(work.first))
    record = records(driver)[work.first.id]
    assert (record.status, record.cause, record.hardware) == ("failed", "setting", None)
    study = driver.planner.cells[record.cell].study.study
    assert TrialState.PRUNED in {trial.state for trial in study.trials}


def test_a_full_disk_is_tried_once_more_and_then_ends_the_sweep_without_a_record(driver):
    full = {"cause": "disk", "error": "No space left on device: 3 MB are free"}
    for expected in (None, errno.ENOSPC):
        work = hand_out(driver)
        driver.on_start(work)
        if expected is None:
            driver.on_event(outcome(work.first, **full))
            driver.on_lost(work, None)
        else:
            with pytest.raises(OSError, match="3 MB are free") as told:
                driver.on_event(outcome(work.first, **full))
            assert told.value.errno == expected
    assert records(driver) == {}
    assert work.first.id in {order["id"] for order in driver.ledger.unfinished()}, "it runs first next time"


def test_the_end_of_a_lost_order_says_nothing_of_its_trials_next_attempt(driver):
    work = hand_out(driver)
    driver.on_start(work)
    driver.on_event(outcome(work.first, cause="disk", error="full"))
    again = hand_out(driver)
    assert work.first.id in ids(again)
    driver.on_start(again)
    driver.on_lost(work, None)
    assert work.first.id in driver.live


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("1 worker(s) were killed due to the node running low on memory", "memory"),
        ("The actor died because its node has died. Node Id: 1", "worker"),
        ("The actor is dead because its worker process has died.", "worker"),
        ("", "worker"),
    ],
)
def test_rays_words_tell_the_causes_apart(said, cause):
    assert loss_of(said).cause == cause


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("I/O error: Permission denied (os error 13)"), False),
    ],
)
def test_a_full_disk_is_known_by_its_number_in_whoever_says_it(error, full):
    assert is_full_disk(error) is full


def test_a_final_whose_weights_are_damaged_is_trained_again_once(driver, make_record):
    cell = next(iter(driver.planner.cells.values()))
    while (work := driver.next_order()) != "wait" and isinstance(work, WorkOrder):
        driver.on_start(work)
    for proposal in [*driver.planner.cells[cell.cell.key].running.values()]:
        driver.planner.end(make_record(proposal))
    final = make_record(driver.planner.missing_finals(cell)[1])
    driver.planner.end(final)
    driver.scorer = SimpleNamespace(damaged=[], troubles={}, submitted=set())
    driver._train_again(final, "weights.safetensors is damaged")
    assert [proposal.id for proposal in cell.due_again] == [final.id]
    assert driver.planner.has_work_again()
    driver._train_again(final, "weights.safetensors is damaged")
    assert "after it was trained again" in driver.scorer.troubles[final.id]
