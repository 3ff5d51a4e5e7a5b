"""running_trials: `status` says what a running sweep's workers have and how far they are, by a note of its driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from meltpoint.reports.status_view import RUNNING_SHOWN, running_lines, show_status
from meltpoint.sweeps.driver.driver import NOTE_SECONDS, SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.driver_notes import RunningTrialNote, RunningTrials, note_running, noted_running
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import EpochRecord
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker.events import EpochEnded
from meltpoint.sweeps.worker.work_order import WorkOrder


@pytest.fixture
def seconds() -> list[float]:
    return [0.0]


@pytest.fixture
def driver(spec, cells, tmp_path: Path, seconds) -> SweepDriver:
    """A sweep's driver with a ledger, whose clock is `seconds`."""
    ledger = Ledger(tmp_path / spec.name)
    settle_specification(ledger, spec, cells)
    calls = ("begin", "on_start", "prepare", "epoch", "say", "abandon", "lost")
    silent = SimpleNamespace(**dict.fromkeys(calls, lambda *_: None))
    resources = Resources(storage=str(tmp_path), gpus_per_trial=0.0)
    made = SweepDriver(
        Planner(spec, cells, []),
        ledger,
        silent,
        silent,
        silent,
        resources,
        clock=lambda: seconds[0],  # type: ignore[arg-type]
    )
    made.slots = 2
    return made


def end_epoch(driver: SweepDriver, trial: str, number: int, dev: float, percent: float) -> None:
    epoch = EpochRecord(
        epoch=number, phase="train", step=number, train_loss=1.0, dev={"accuracy": dev}, train_seconds=1.0,
        dev_seconds=1.0, learning_rate=1e-3, finished_at=float(number),
    )  # fmt: skip
    driver.on_event(EpochEnded(trial=trial, epoch=epoch, score=dev, percent=percent))


def shown(ledger: Ledger) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        show_status(summarise(Ledger(ledger.folder)), console)
    return " ".join(captured.get().split())


def test_status_and_its_json_say_which_epoch_each_running_trial_is_in(driver, seconds):
    with driver.ledger.driving():
        works = [driver.next_order(), driver.next_order()]
        assert all(isinstance(work, WorkOrder) for work in works)
        for work in works:
            driver.on_start(work)
        end_epoch(driver, works[0].first.id, 3, 0.75, percent=25.0)
        driver._note_running()
        name = driver.running[works[0].first.id].note().name
        text = shown(driver.ledger)
        assert f"{name}: 0 s, epoch 3 of at most 12, dev accuracy 75.0." in text
        others = len(driver.running) - 1
        assert text.count("0 s, not yet through an epoch.") == others > 0
        document = summarise(Ledger(driver.ledger.folder)).as_json()["running"]
        assert document[0] == {
            "id": works[0].first.id, "name": name, "epoch": 3, "epochs": 12, "metric": "accuracy", "dev": 0.75,
            "seconds": 0,
        }  # fmt: skip
        assert document[1]["epoch"] is None
        assert document[1]["dev"] is None
    assert name not in shown(driver.ledger), "what no process drives does not run"
    assert summarise(Ledger(driver.ledger.folder)).as_json()["running"] is None


@pytest.mark.parametrize("dev", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_ends_no_sweep(driver, dev):
    with driver.ledger.driving():
        work = driver.next_order()
        driver.on_start(work)
        end_epoch(driver, work.first.id, 1, dev, percent=50.0)
        driver._note_running()
        assert "epoch 1 of at most 2, dev accuracy no number." in shown(driver.ledger)


def test_the_note_is_made_now_and_then(driver, seconds):
    with driver.ledger.driving():
        (work,) = [driver.next_order()]
        driver.on_start(work)
        driver._note_running()
        end_epoch(driver, work.first.id, 1, 0.5, percent=50.0)
        seconds[0] += NOTE_SECONDS - 1
        driver._note_running()
        assert [trial.epoch for trial in noted_running(driver.ledger.drivers).trials] == [None]
        seconds[0] += 1
        driver._note_running()
        assert [trial.epoch for trial in noted_running(driver.ledger.drivers).trials] == [1]


def test_a_later_drivers_sweep_shows_nothing_of_an_earlier_ones(driver):
    ledger = driver.ledger
    one = RunningTrialNote(id="a", name="cell trial 1", began=0.0, metric="accuracy")
    with ledger.driving():
        note_running(ledger.drivers, ledger.attempt, (one,))
        assert noted_running(ledger.drivers).trials == (one,)
    with ledger.driving():
        assert noted_running(ledger.drivers) is None


@pytest.mark.parametrize("text", ["", "{", '{"noted_at": 1, "trials": 3}', "\x00"])
def test_a_damaged_note_is_none(driver, text):
    ledger = driver.ledger
    with ledger.driving():
        note_running(ledger.drivers, ledger.attempt, ())
        (note,) = ledger.drivers.glob("*.running")
        note.write_text(text)
        assert noted_running(ledger.drivers) is None
        assert "trial 1" not in shown(ledger)


@pytest.fixture
def note() -> Callable[..., RunningTrialNote]:
    def of(number: int) -> RunningTrialNote:
        return RunningTrialNote(id=str(number), name=f"cell trial {number}", began=float(number), metric="accuracy")

    return of


@pytest.mark.parametrize(("more", "last"), [(0, None), (1, "1 more trial beside these."), (7, "7 more trials beside")])
def test_of_many_trials_the_longest_are_named_and_the_others_counted(note, more, last):
    running = RunningTrials(noted_at=100.0, trials=tuple(note(number) for number in range(RUNNING_SHOWN + more)))
    lines = running_lines(running)
    assert lines[0] == "cell trial 0: 1 min 40 s, not yet through an epoch."
    assert len(lines) == RUNNING_SHOWN + bool(more)
    if last is not None:
        assert lines[-1].startswith(last)


def test_an_error_is_said_in_its_own_unit(note):
    one = note(0).model_copy(update={"metric": "mse", "dev": 0.25, "epoch": 1, "epochs": 2})
    (line,) = running_lines(RunningTrials(noted_at=5.0, trials=(one,)))
    assert line == "cell trial 0: 5 s, epoch 1 of at most 2, dev mse 0.250."


def test_a_clock_that_was_set_back_gives_no_negative_time(note):
    assert running_lines(RunningTrials(noted_at=1.0, trials=(note(9),)))[0].startswith("cell trial 9: 0 s, ")


def test_trials_are_in_the_order_in_which_workers_took_them_up(driver):
    works = [driver.next_order(), driver.next_order()]
    for work in reversed(works):
        driver.on_start(work)
    with driver.ledger.driving():
        driver._note_running()
        noted = noted_running(driver.ledger.drivers)
    assert [trial.id for trial in noted.trials] == [order.id for work in reversed(works) for order in work.orders]
