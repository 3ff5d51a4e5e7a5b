"""What a sweep says while it runs, and what `status` says of it by the notes of its driver."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from meltpoint.reports.screen import show_plan
from meltpoint.reports.status_view import RUNNING_SHOWN, running_lines, show_status
from meltpoint.sweeps.driver.driver import NOTE_SECONDS, SweepDriver
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.progress import QUIET_SECONDS, STEPS, Progress, RemainingTime, left
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.driver_notes import (
    ClusterPart,
    RunningTrialNote,
    RunningTrials,
    note,
    noted,
)
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Attempt
from meltpoint.sweeps.on_ray.cluster_capacity import LOOK_SECONDS
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.cell_progress import trial_name
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.planning import epoch_of
from meltpoint.tests.sweeps.test_cluster_capacity import Places


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        (1, "1 cell: 3 search trials + 2 finals, 1 answered by its search trial"),
        (2, "2 cells: 6 search trials + 4 finals, 2 answered by their search trials"),
    ],
)
def test_plan_and_progress_count_the_same_trials_in_the_same_words(spec, tmp_path, modes, said):
    spec = spec.model_copy(update={"modes": spec.modes[:modes]})
    plan = plan_sweep(spec, Resources(storage=str(tmp_path)))
    console = Console(file=io.StringIO(), width=100)
    show_plan(plan, console)
    planner = Planner(spec, open_cells(spec), [])
    progress = Progress(lambda: list(planner.cells.values()), console)
    assert progress.planned() == said
    assert f"{said}; the ledger answers 0" in text_of(console)
    assert plan.as_json()["trials"] == 5 * modes
    assert [cell["finals"] for cell in plan.as_json()["cells"]] == [2] * modes


def end_all(planner: Planner, progress: Progress, make_record) -> int:
    """Let every trial of a sweep end; how many there were."""
    ended = 0
    while not isinstance(trial := planner.next(), str):
        planner.begin(trial)
        progress.on_start(trial)
        planner.end(make_record(trial, seconds=10.0))
        progress.ended(make_record(trial, seconds=10.0))
        ended += 1
    return ended


def test_a_pipe_gets_a_short_line_each_eighth_with_counts_time_left_and_the_leader(spec, cells, make_record):
    planner, console = Planner(spec, cells, []), Console(file=io.StringIO(), width=80)
    progress = Progress(lambda: list(planner.cells.values()), console)
    assert end_all(planner, progress, make_record) >= 6
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert 2 <= len(lines) <= STEPS
    assert re.fullmatch(r"0:00:0\d  [23]/10 runs, about \d+ s left; best on dev: (❄|🔥) \S+ 75.0", lines[0])


def test_a_failed_trial_has_a_line_with_its_error(spec, cells, make_record):
    planner, console = Planner(spec, cells, []), Console(file=io.StringIO(), width=80)
    progress = Progress(lambda: list(planner.cells.values()), console)
    progress.ended(make_record(planner.next(), status="failed", error="the loss is not finite"))
    assert text_of(console).endswith("trial 1 failed: the loss is not finite")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_has_a_bar_and_the_leader_of_each_task(spec, cells, make_record, width):
    planner = Planner(spec, cells, [])
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with Progress(lambda: list(planner.cells.values()), console) as progress:
        end_all(planner, progress, make_record)
    assert re.search(r"━ \d+/10 runs 0:00:0\d", text_of(console))
    assert "75.0 best on dev so far" in text_of(console)


def test_a_piped_sweep_that_said_nothing_for_long_says_what_runs_and_how_far_it_is(spec, cells):
    planner, console, seconds = Planner(spec, cells, []), Console(file=io.StringIO(), width=300), [0.0]
    progress = Progress(lambda: list(planner.cells.values()), console, clock=lambda: seconds[0])
    trial = planner.next()
    progress.on_start(trial)
    cell = planner.cells[trial.cell].cell
    metric = cell.task.metric
    progress.epoch(trial, metric, epoch_of(4, 0.75, metric))
    seconds[0] = QUIET_SECONDS
    progress.refresh()
    assert text_of(console) == ""
    seconds[0] += 1
    progress.refresh()
    progress.refresh()
    named = f"{cell.name} trial 1: epoch 4, dev {metric} 75.0"
    assert text_of(console) == f"0:05:01 0/10 runs; running: {named}"
    assert text_of(console).count("running") == 1, "it was said just now"


@pytest.fixture
def two_cells(spec, cells):
    """The progress of a frozen and a trained cell, with 3 search trials and 2 finals each."""
    return list(Planner(spec, cells, []).cells.values())


def test_the_time_that_is_left_is_that_of_the_trials_that_ended(spec, cells, make_record, two_cells):
    planner, remaining = Planner(spec, cells, []), RemainingTime(slots=lambda: 2)
    own = list(planner.cells.values())
    assert remaining.estimate(own) is None
    assert remaining.in_words(own) == ""
    trial = planner.next()
    planner.begin(trial)
    record = make_record(trial, seconds=10.0)
    planner.end(record)
    remaining.add(record)
    first, other = own if own[0].cell.key == record.cell else reversed(own)
    assert (left(first), left(other)) == (3, 4), "one final of each is answered by its search trial"
    expected = (3 * 10.0 + 4 * 10.0 * other.work / first.work) / 2
    found = remaining.estimate(own)
    assert found is not None
    assert found.seconds == pytest.approx(expected)
    assert remaining.in_words(own).endswith(" left")


def test_trials_that_trained_together_share_their_seconds_and_those_that_failed_say_nothing(
    spec, cells, make_record, two_cells
):
    proposal, remaining = Planner(spec, cells, []).next(), RemainingTime()
    for changes in ({"status": "failed"}, {"status": "stopped"}, {"answered_by": "another"}):
        remaining.add(make_record(proposal, seconds=99.0, **changes))
    assert remaining.measured == {}
    for seconds in (5.0, 5.0, 20.0, 20.0):  # two stacks of one order, one after the other
        remaining.add(make_record(proposal, seconds=seconds, trained_together=2, started_at=100.0))
    assert remaining.measured == {proposal.cell: (4, 20.0)}
    remaining.add(make_record(proposal, seconds=6.0, started_at=120.0, seconds_before=3.0))
    assert remaining.measured == {proposal.cell: (5, 29.0)}


def test_a_closed_search_has_only_finals_left(two_cells):
    (progress, _) = two_cells
    progress.cut = True
    assert left(progress) == progress.cell.seeds - 1, "one of them is answered by its search trial"


@contextmanager
def running(ledger: Ledger, planner: Planner, cluster: Places, most: int | None = None) -> Iterator[SweepDriver]:
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
    cluster = Places(places=8)
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
    with running(ledger, planner, Places(places=2)):
        note(ledger.drivers, ledger.attempt, RunningTrials(noted_at=1.0, trials=(one,)))
        assert noted(ledger.drivers, ClusterPart) == ClusterPart(places=2, whole=2, cpus=1.0)
        assert noted(ledger.drivers, RunningTrials).trials == (one,)
    with ledger.driving():
        assert noted(ledger.drivers, ClusterPart) is noted(ledger.drivers, RunningTrials) is None
        assert "It may use" not in shown(ledger)


@pytest.mark.parametrize("text", ["", "{", '{"places": -1}', "[]", "\x00"])
def test_a_note_that_is_damaged_is_none(begun, text):
    ledger, _ = begun
    with ledger.driving():
        note(ledger.drivers, ledger.attempt, ClusterPart(places=1, whole=1, cpus=1.0))
        (file,) = ledger.drivers.glob("*.part")
        file.write_text(text)
        assert noted(ledger.drivers, ClusterPart) is None


def test_a_disk_without_room_for_the_note_ends_no_sweep(begun, monkeypatch):
    ledger, _ = begun

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with ledger.driving():
        monkeypatch.setattr(os, "fsync", full)
        note(ledger.drivers, ledger.attempt, ClusterPart(places=1, whole=1, cpus=1.0))
        assert noted(ledger.drivers, ClusterPart) is None


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
        assert [trial.epoch for trial in noted(driver.ledger.drivers, RunningTrials).trials] == [None]
        seconds[0] += 1
        driver._note_running()
        assert [trial.epoch for trial in noted(driver.ledger.drivers, RunningTrials).trials] == [1]


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
