"""driver: how many orders lie at Ray at a time, and what becomes of trials whose workers are lost."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import TrialState

from meltpoint.adapters.settings import complete
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.running_trial import record_of
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Attempt
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.worker.outcome import (
    INTERRUPTED,
    RESTARTED,
    RETRIES,
    STOPPED_BY_BUDGET,
    STOPPED_EARLY,
    TrialEvent,
    TrialOutcome,
    failed,
    is_full_disk,
    lost_worker,
)
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tests.sweeps.one_process import order_of, quiet_driver
from meltpoint.tests.sweeps.planning import epoch_of


@pytest.fixture
def driver(spec, cells, tmp_path: Path) -> SweepDriver:
    made = quiet_driver(Planner(spec, cells, []), Ledger(tmp_path / "sweep"))
    made.slots = 3
    return made


LOST = failed("worker", "its worker died")


def records(driver: SweepDriver) -> dict[str, object]:
    return {record.id: record for record in driver.ledger.records()}


def orders_until_wait(driver: SweepDriver) -> list[WorkOrder]:
    """What Ray gets where it asks until it is told to wait."""
    orders: list[WorkOrder] = []
    while isinstance(order := driver.next_order(), tuple):
        orders.append(order)
        assert len(orders) < 10
    assert order == "wait"
    return orders


def test_an_order_waits_for_each_worker_without_one_and_one_more_where_all_have_some(driver):
    first, second, third = orders_until_wait(driver)
    driver.on_start(first)
    assert orders_until_wait(driver) == [], "two workers are on their way, and two orders wait for them"
    driver.on_start(second)
    driver.on_start(third)
    (fourth,) = orders_until_wait(driver)
    driver.on_order_end(second, LOST)
    assert orders_until_wait(driver) == [], "the fourth takes its place"
    driver.on_start(fourth)
    assert len(orders_until_wait(driver)) == 1


def ids(work: WorkOrder) -> list[str]:
    return [order.id for order in work]


def hand_out(driver: SweepDriver) -> WorkOrder:
    order = driver.next_order()
    assert isinstance(order, tuple)
    return order


def hand_out_several(driver: SweepDriver) -> WorkOrder:
    """An order of trials that train side by side; those of one trial before it run."""
    driver.slots = 1
    work = hand_out(driver)
    while len(work) == 1:  # a fine-tuning trial
        driver.on_start(work)
        work = hand_out(driver)
    return work


def hand_out_and_fail(driver: SweepDriver) -> Order:
    """A trial that has its outcome, and so its record."""
    work = hand_out(driver)
    driver.on_start(work)
    for order in work:
        driver.on_event(ended(order))
    driver.on_order_end(work, LOST)
    return work[0]


def ended(order: Order, cause: str = "setting", error: str = "it broke") -> TrialEvent:
    return TrialEvent(trial=order.id, outcome=failed(cause, error))


@pytest.mark.parametrize("taken_up", [False, True], ids=["before it began", "while it ran"])
def test_a_trial_whose_worker_dies_is_handed_out_again_first(driver, taken_up):
    work = hand_out(driver)
    if taken_up:
        driver.on_start(work)
    driver.on_order_end(work, LOST)
    again = hand_out(driver)
    assert ids(again) == ids(work)
    assert {order.attempt for order in again} == {1}
    assert records(driver) == {}, "a lost worker is no outcome"


@pytest.mark.parametrize("taken_up", [False, True], ids=["before it began", "while it ran"])
def test_an_order_that_tune_ended_for_anothers_sake_is_handed_out_again_however_often(driver, taken_up):
    first = hand_out(driver)
    work = first
    for _ in range(2 + RETRIES["worker"]):
        if taken_up:
            driver.on_start(work)
        driver.on_order_end(work, RESTARTED)
        work = hand_out(driver)
        assert ids(work) == ids(first)
        assert {order.attempt for order in work} == {0}
    assert records(driver) == {}


def test_a_trial_that_always_loses_its_worker_fails_after_its_retries_and_its_study_never_hears_of_it(driver):
    first = hand_out(driver)
    for attempt in range(RETRIES["worker"]):
        work = first if attempt == 0 else hand_out(driver)
        assert first[0].id in ids(work)
        driver.on_start(work)
        driver.on_order_end(work, LOST)
    last = hand_out(driver)
    assert ids(last) == [first[0].id], "what has lost several workers is tried alone"
    driver.on_order_end(last, LOST)
    (record,) = records(driver).values()
    assert (record.status, record.cause, record.attempts) == ("failed", "worker", 1 + RETRIES["worker"])
    assert record.is_lost
    study = driver.planner.cells[record.cell].study.study
    assert {trial.state for trial in study.trials} <= {TrialState.FAIL, TrialState.RUNNING}, (
        "FAIL is what TPE leaves out"
    )


def test_a_trial_killed_for_memory_is_tried_alone_at_once(driver):
    work = hand_out_several(driver)
    driver.on_start(work)
    driver.on_order_end(work, failed("memory", "its worker was killed"))
    assert [len(hand_out(driver))] == [1]


def test_an_error_of_the_setting_is_not_tried_again_and_is_the_worst_for_its_study(driver):
    work = hand_out(driver)
    driver.on_start(work)
    driver.on_event(ended(work[0]))
    record = records(driver)[work[0].id]
    assert (record.status, record.cause, record.hardware) == ("failed", "setting", None)
    study = driver.planner.cells[record.cell].study.study
    assert TrialState.PRUNED in {trial.state for trial in study.trials}


def test_the_end_of_a_lost_order_says_nothing_of_its_trials_next_attempt(driver):
    work = hand_out(driver)
    driver.on_start(work)
    driver.on_event(ended(work[0], cause="worker", error="lost"))
    again = hand_out(driver)
    assert work[0].id in ids(again)
    driver.on_start(again)
    driver.on_order_end(work, LOST)
    assert work[0].id in driver.running


def attempt_of(*scores: float, phases: Sequence[str] = ()) -> Attempt:
    """An attempt that has trained epochs with these dev scores."""
    epochs = [
        epoch_of(number, score, phase=phases[number - 1] if phases else "train")
        for number, score in enumerate(scores, 1)
    ]
    return Attempt(epochs=epochs, storage_notes=["features: cached"])


def epoch_ended(order: Order, *scores: float) -> TrialEvent:
    """The event of the last of these epochs."""
    return TrialEvent(trial=order.id, attempt=attempt_of(*scores), score=scores[-1], percent=50.0 * len(scores))


FINISHED = TrialOutcome(status="finished")
ENDINGS = {
    "finished": (FINISHED, "finished"),
    "stopped by ASHA": (STOPPED_EARLY, "stopped"),
    "stopped by the time budget": (STOPPED_BY_BUDGET, "stopped"),
    "Ctrl-C": (INTERRUPTED, "runs again in the next command"),
    "an error of the setting": (failed("setting", "it broke"), "failed"),
    "changed input": (failed("input", "other files"), "failed"),
    "killed for memory": (failed("memory", "killed"), "runs again"),
    "a lost worker": (LOST, "runs again"),
}


@pytest.mark.parametrize(("outcome", "leads_to"), ENDINGS.values(), ids=ENDINGS)
def test_every_ending_takes_a_trial_off_the_running_ones_and_leads_to_a_record_or_another_attempt(
    driver, outcome, leads_to
):
    work = hand_out(driver)
    driver.on_start(work)
    scores = (0.5, 0.75, 0.75)
    for epoch in range(1, len(scores) + 1):
        driver.on_event(epoch_ended(work[0], *scores[:epoch]))
    if outcome == INTERRUPTED:
        driver.interrupted()
    else:
        driver.on_order_end(work, outcome)
    assert driver.running == driver.waiting == {}
    progress = driver.planner.cells[work[0].cell]
    assert progress.running == {}
    assert [proposal.id for proposal in progress.again] == (ids(work) if leads_to == "runs again" else [])
    assert {order["id"] for order in driver.ledger.unfinished()} == (set(ids(work)) - set(records(driver)))
    record = records(driver).get(work[0].id)
    assert leads_to == (record.status if record else leads_to)
    assert (record is None) == leads_to.startswith("runs again")
    if record is not None:
        assert (record.error, record.cause) == (outcome.error, outcome.cause)
        assert (record.best_epoch, record.dev, len(record.epochs)) == (2, 0.75, 3)
        assert (record.input_notes, record.storage_notes) == ([], ["features: cached"]), "reports speak of the inputs"


@pytest.mark.parametrize(
    ("phases", "outcome", "best"),
    [
        (("stack", "stack", "finetune", "finetune"), FINISHED, (4, 0.7)),
        (("stack", "stack", "finetune", "finetune"), STOPPED_BY_BUDGET, (4, 0.7)),
        (("stack", "stack", "stack", "finetune"), failed("setting", "the loss is not finite"), (4, 0.7)),
        (("stack", "stack", "stack", "stack"), failed("setting", "the loss is not finite"), (None, None)),
        (("stack", "stack", "stack", "stack"), STOPPED_BY_BUDGET, (None, None)),
    ],
)
def test_a_record_has_the_best_epoch_of_the_last_phase_and_none_where_that_was_not_reached(
    cells, phases, outcome, best
):
    cell = replace(cells[0], mode="stack_and_finetune", head="bilstm")
    order = order_of(cell, cell.trial("t", 0, "search", complete({}, cell.mode, cell.head), 0), Path("nowhere"))
    attempt = attempt_of(0.9, 0.8, 0.6, 0.7, phases=phases)
    record = record_of(order, (0.0, 0.0), TrialEvent(trial=order.id, attempt=attempt), outcome)
    assert (record.best_epoch, record.dev) == best
    assert record.dev_metrics == ({} if best[0] is None else {"accuracy": 0.7})


def test_an_order_that_is_stopped_keeps_what_has_ended_and_lets_go_of_what_never_trained(driver):
    work = hand_out_several(driver)
    driver.on_start(work)
    first, second, *others = work
    driver.on_event(epoch_ended(first, 0.75).model_copy(update={"outcome": FINISHED}))
    driver.on_event(epoch_ended(second, 0.5))
    driver.on_order_end(work, STOPPED_BY_BUDGET)
    kept = {trial: record.status for trial, record in records(driver).items()}
    assert kept == {first.id: "finished", second.id: "stopped"}
    assert others
    assert {order["id"] for order in driver.ledger.unfinished()} >= {order.id for order in others}
    assert not set(ids(work)) & {*driver.running, *driver.waiting}


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
    assert lost_worker(said).cause == cause


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


def test_a_full_disk_ends_the_sweep_and_its_trials_run_again_with_the_same_command(driver):
    work = hand_out(driver)
    driver.on_start(work)
    with pytest.raises(OSError, match="3 MB are free"):
        driver.on_event(ended(work[0], "disk", "No space left on device: 3 MB are free"))
    driver.interrupted()
    assert records(driver) == driver.running == {}
    assert {order["id"] for order in driver.ledger.unfinished()} == set(ids(work))
