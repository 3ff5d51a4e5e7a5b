"""cluster_part: `status` says which part of its cluster a running sweep may use, by a note of its driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from meltpoint.reports.status_view import RUNNING_SHOWN, running_lines, show_status
from meltpoint.sweeps.driver.driver import NOTE_SECONDS, SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.driver_notes import (
    PART_ENDING,
    RUNNING_ENDING,
    ClusterPart,
    RunningTrialNote,
    RunningTrials,
    note,
    noted_part,
    noted_running,
)
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Attempt
from meltpoint.sweeps.on_ray.room import LOOK_SECONDS
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.cell_progress import trial_name
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.planning import epoch_of
from meltpoint.tests.sweeps.test_room import Cluster


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            ClusterPart(places=1, whole=6, cpus=2, gpus=1 / 3),
            "0.3333 of 2 GPUs (1 of 6 trials at a time)",
        ),
        (
            ClusterPart(places=4, whole=4, cpus=1, has_no_node=True),
            "none: no node has room for a trial; the sweep waits for one to join",
        ),
        (
            ClusterPart(places=1, whole=2, cpus=0.5, most=1),
            "0.5 of 1 CPU (1 of 2 trials at a time); at most 1 worker",
        ),
    ],
)
def test_a_part_is_one_line(part, words):
    assert str(part) == words


@contextmanager
def running(ledger: Ledger, planner: Planner, cluster: Cluster, most: int | None = None) -> Iterator[SweepDriver]:
    """A sweep's driver on a cluster."""
    driver = quiet_driver(planner, ledger, max_workers=most)
    with ledger.driving():
        driver.share = cluster.share(most)
        driver.note_part()
        yield driver


def shown(ledger: Ledger) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        show_status(summarise(Ledger(ledger.folder)), console)
    return " ".join(captured.get().split())


@pytest.fixture
def begun(spec, cells, tmp_path: Path) -> tuple[Ledger, Planner]:
    ledger = Ledger(tmp_path / spec.name)
    settle_specification(ledger, spec, cells)
    return ledger, Planner(spec, cells, [])


def test_status_shows_the_part_of_a_sweep_that_runs_and_follows_it(begun):
    ledger, planner = begun
    cluster = Cluster(places=8)
    with running(ledger, planner, cluster, most=6) as driver:
        assert "It may use 6 of 8 CPUs (6 of 8 trials at a time); at most 6 workers." in shown(ledger)
        cluster.places = 4
        cluster.seconds += LOOK_SECONDS
        driver._follow_cluster()
        assert "It may use 4 of 4 CPUs (4 of 4 trials at a time); at most 6 workers." in shown(ledger)
        document = summarise(Ledger(ledger.folder)).as_json()["cluster"]
        part = {"places": 4, "whole": 4, "cpus": 1.0, "gpus": 0.0, "most": 6}
        assert document == part | {"has_no_node": False}
    assert "It may use" not in shown(ledger)
    assert summarise(ledger).as_json()["cluster"] is None


def test_a_later_driver_shows_nothing_of_an_earlier_ones_notes(begun):
    ledger, planner = begun
    one = RunningTrialNote(id="a", name="cell trial 1", began=0.0, metric="accuracy")
    with running(ledger, planner, Cluster(places=2)):
        note(ledger.drivers, ledger.attempt, RUNNING_ENDING, RunningTrials(noted_at=1.0, trials=(one,)))
        assert noted_part(ledger.drivers) == ClusterPart(places=2, whole=2, cpus=1.0)
        assert noted_running(ledger.drivers).trials == (one,)
    with ledger.driving():
        assert noted_part(ledger.drivers) is noted_running(ledger.drivers) is None
        assert "It may use" not in shown(ledger)


@pytest.mark.parametrize("text", ["", "{", '{"places": -1}', "[]", "\x00"])
def test_a_note_that_is_damaged_is_none(begun, text):
    ledger, _ = begun
    with ledger.driving():
        note(ledger.drivers, ledger.attempt, PART_ENDING, ClusterPart(places=1, whole=1, cpus=1.0))
        (file,) = ledger.drivers.glob("*.part")
        file.write_text(text)
        assert noted_part(ledger.drivers) is None


def test_a_disk_without_room_for_the_note_ends_no_sweep(begun, monkeypatch):
    ledger, _ = begun

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with ledger.driving():
        monkeypatch.setattr(os, "fsync", full)
        note(ledger.drivers, ledger.attempt, PART_ENDING, ClusterPart(places=1, whole=1, cpus=1.0))
        assert noted_part(ledger.drivers) is None


@pytest.fixture
def seconds() -> list[float]:
    return [0.0]


@pytest.fixture
def driver(begun, seconds) -> SweepDriver:
    """A sweep's driver with a ledger, whose clock is `seconds`."""
    ledger, planner = begun
    made = quiet_driver(planner, ledger, clock=lambda: seconds[0])
    made.slots = 2
    return made


def end_epoch(driver: SweepDriver, trial: str, number: int, dev: float, percent: float) -> None:
    attempt = Attempt(epochs=[epoch_of(number, dev)])
    driver.on_event(TrialEvent(trial=trial, attempt=attempt, score=dev, percent=percent))


def test_status_and_its_json_say_which_epoch_each_running_trial_is_in(driver):
    with driver.ledger.driving():
        works = [driver.next_order(), driver.next_order()]
        assert all(isinstance(work, tuple) for work in works)
        for work in works:
            driver.on_start(work)
        end_epoch(driver, works[0][0].id, 3, 0.75, percent=25.0)
        driver._note_running()
        name = trial_name(works[0][0])
        text = shown(driver.ledger)
        assert f"{name}: 0 s, epoch 3 of at most 12, dev accuracy 75.0." in text
        others = len(driver.running) - 1
        assert text.count("0 s, no epoch finished yet.") == others > 0
        document = summarise(Ledger(driver.ledger.folder)).as_json()["running"]
        assert document[0] == {
            "id": works[0][0].id, "name": name, "epoch": 3, "epochs": 12, "metric": "accuracy", "dev": 0.75,
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
        end_epoch(driver, work[0].id, 1, dev, percent=50.0)
        driver._note_running()
        assert "epoch 1 of at most 2, dev accuracy no number." in shown(driver.ledger)


def test_the_note_is_made_now_and_then(driver, seconds):
    with driver.ledger.driving():
        (work,) = [driver.next_order()]
        driver.on_start(work)
        driver._note_running()
        end_epoch(driver, work[0].id, 1, 0.5, percent=50.0)
        seconds[0] += NOTE_SECONDS - 1
        driver._note_running()
        assert [trial.epoch for trial in noted_running(driver.ledger.drivers).trials] == [None]
        seconds[0] += 1
        driver._note_running()
        assert [trial.epoch for trial in noted_running(driver.ledger.drivers).trials] == [1]


@pytest.fixture
def note_of() -> Callable[..., RunningTrialNote]:
    def of(number: int) -> RunningTrialNote:
        return RunningTrialNote(id=str(number), name=f"cell trial {number}", began=float(number), metric="accuracy")

    return of


@pytest.mark.parametrize(("more", "last"), [(0, None), (1, "1 more trial."), (7, "7 more trials.")])
def test_of_many_trials_the_longest_are_named_and_the_others_counted(note_of, more, last):
    running = RunningTrials(noted_at=100.0, trials=tuple(note_of(number) for number in range(RUNNING_SHOWN + more)))
    lines = running_lines(running)
    assert lines[0] == "cell trial 0: 1 min 40 s, no epoch finished yet."
    assert len(lines) == RUNNING_SHOWN + bool(more)
    if last is not None:
        assert lines[-1].startswith(last)


def test_an_error_is_said_in_its_own_unit(note_of):
    one = note_of(0).model_copy(update={"metric": "mse", "dev": 0.25, "epoch": 1, "epochs": 2})
    (line,) = running_lines(RunningTrials(noted_at=5.0, trials=(one,)))
    assert line == "cell trial 0: 5 s, epoch 1 of at most 2, dev mse 0.250."
