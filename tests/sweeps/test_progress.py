"""Progress: what a sweep says while it runs, in the same figures as `plan`."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from meltpoint.reports.screen import show_plan
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.progress import QUIET_SECONDS, STEPS, Progress, RemainingTime, left
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.tests.sweeps.planning import epoch_of


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
    for _ in range(4):
        remaining.add(make_record(proposal, seconds=20.0, trained_together=4))
    assert remaining.measured == {proposal.cell: (4, 20.0)}


def test_a_closed_search_has_only_finals_left(two_cells):
    (progress, _) = two_cells
    progress.cut = True
    assert left(progress) == progress.cell.seeds - 1, "one of them is answered by its search trial"
