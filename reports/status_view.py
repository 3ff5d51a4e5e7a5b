"""The status of a sweep on the terminal, also while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meltpoint.reports.formats import duration, symbol
from meltpoint.reports.layout import ScreenColumn, mode_column, name_column, on_two_lines, say, say_lines, show_groups
from meltpoint.reports.notes import code_notes, growth_notes, searched_again, warning_notes
from meltpoint.sweeps.ledger.driver_notes import RunningTrials
from meltpoint.sweeps.ledger.records import TrialRecord, strays_in_words
from meltpoint.sweeps.machine.terminal import Screen
from meltpoint.sweeps.results.cost import NOTHING, TimeLeft, best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.closing import openings_in_words
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some

INTERVAL_SECONDS = 2.0
"""Between two reads: a ledger of a hundred thousand trials takes about as long to read."""


def watch(
    read: Callable[[], SweepSummary], console: Console, wait: Callable[[float], None] = time.sleep
) -> SweepSummary:  # fmt: skip
    """Show a sweep's status until no process drives it.

    A terminal shows the table of `status`, refreshed; a pipe gets a line whenever something has changed.

    Args:
        read: returns the sweep in its current state.
        wait: waits some seconds between two reads.

    Returns:
        The sweep in its final state.
    """
    return _on_terminal(read, console, wait) if console.is_terminal else _in_lines(read, console, wait)


def _on_terminal(
    read: Callable[[], SweepSummary], console: Console, wait: Callable[[float], None]
) -> SweepSummary:  # fmt: skip
    summary = read()
    with Live(_table(summary, console), console=console, auto_refresh=False) as live:
        while summary.state == "running":
            wait(INTERVAL_SECONDS)
            summary = read()
            live.update(_table(summary, console), refresh=True)
    return summary


def _table(summary: SweepSummary, console: Console) -> RenderableType:
    """The output of `status` as one renderable of the console's width."""
    inner = Screen(width=console.width, force_terminal=True, color_system="truecolor")
    with inner.capture() as captured:
        show_status(summary, inner)
    return Group(Text.from_ansi(captured.get()))


def _in_lines(read: Callable[[], SweepSummary], console: Console, wait: Callable[[float], None]) -> SweepSummary:
    before = ""
    while True:
        summary = read()
        line = progress_line(summary)
        if line != before:
            say_lines([line], console)
        if summary.state != "running":
            return summary
        before = line
        wait(INTERVAL_SECONDS)


def progress_line(summary: SweepSummary) -> str:
    """One line about a sweep: `first: running, 1 of 3 cells done, trials 14/48, finals 5/15, best dev 🔥 sst2 81.2`."""
    cells = summary.cells
    trials = f"{sum(c.counts['finished'] for c in cells)}/{sum(c.counts['planned'] for c in cells)}"
    failed = sum(c.counts["failed"] for c in cells)
    finals = f"{sum(len(c.finals) for c in cells)}/{sum(summary.seeds_of(c) for c in cells)}"
    done = f"{sum(c.is_done for c in cells)} of {some(len(cells), 'cell')} done"
    leaders: dict[str, TrialRecord] = {}
    for one in (c.best for c in cells if c.best and c.best.dev is not None):
        before = leaders.setdefault(one.task, one)
        if gain(one.metric, one.dev or 0.0) > gain(one.metric, before.dev or 0.0):
            leaders[one.task] = one
    best = [f"{symbol(one.mode)} {task} {score_text(one.dev or 0.0, one.metric)}" for task, one in leaders.items()]
    parts = [f"{summary.name}: {summary.state}", done, f"trials {trials}", f"finals {finals}"]
    parts += [f"{failed} failed"] * bool(failed) + [f"best dev {', '.join(best)}"] * bool(best)
    return ", ".join(parts)


MOST_ERRORS = 20
"""If more trials of a cell failed, trials with the same cause share a line."""
SHOWN = 3
"""The number of trials that such a line names."""
RUNNING_SHOWN = 8
"""Most running trials that have a line."""


def show_status(summary: SweepSummary, console: Console) -> None:
    """Print counts, best dev and finals of each cell; then the state, and the causes of failed trials."""
    columns: list[ScreenColumn[CellSummary]] = [
        mode_column(lambda cell: cell.header.mode),
        name_column("task", lambda cell: cell.header.task),
        ScreenColumn("done", lambda cell: f"{cell.counts['finished']}/{cell.counts['planned']}", is_figure=True),
        ScreenColumn("others", _others, narrow=lambda text: text.replace(", ", ",\n")),
        ScreenColumn("best dev", _best_dev, is_figure=True),
        ScreenColumn("finals", lambda cell: _finals(cell, summary.seeds_of(cell)), narrow=on_two_lines),
    ]
    if any(cell.default_seeds for cell in summary.cells):
        columns.append(ScreenColumn("default", _defaults, narrow=on_two_lines))
    if summary.has_variants:
        columns.insert(2, name_column("variant", lambda cell: cell.header.variant))
    show_groups(summary.cells, lambda cell: cell.header.encoder, columns, console)
    done = sum(cell.is_done for cell in summary.cells)
    early = sum(cell.closed_early is not None for cell in summary.cells)
    suffix = f", {early} closed early" if early else ""
    say(console, f"{summary.name}: {summary.state}, {done} of {some(len(summary.cells), 'cell')} done{suffix}.")
    if summary.time_left is not None:
        say(console, time_left_in_words(summary.time_left))
    if summary.part is not None:
        say(console, f"It may use {summary.part}.")
    if summary.running is not None:
        for line in running_lines(summary.running):
            say(console, line)
    if summary.strays:
        say(console, strays_in_words(summary.strays))
    for line in warning_notes(summary):
        say(console, line, style="yellow")
    for line in code_notes(summary):
        say(console, line)
    for line in growth_notes(summary):
        say(console, line)
    if summary.openings:
        say(console, openings_in_words(summary.openings))
    for cell in summary.cells:
        if cell.closed_early:
            line = f"{'.'.join(cell.header.key)}: closed after {cell.closed_early}, since {cell.closed_early.cause}"
            say_lines([line], console)
        if cell.test_round > 1:
            say(console, f"{'.'.join(cell.header.key)}: {searched_again(cell.test_round)}.")
        say_lines(error_lines(cell), console)


def running_lines(running: RunningTrials) -> list[str]:
    """A line for each running trial, the longest first, and the number of trials beyond `RUNNING_SHOWN`."""
    lines = []
    for trial in running.trials[:RUNNING_SHOWN]:
        seconds = max(0.0, running.noted_at - trial.began)
        state = "no epoch finished yet"
        if trial.epoch is not None:
            dev = "no number" if trial.dev is None else score_text(trial.dev, trial.metric)
            state = f"epoch {trial.epoch} of at most {trial.epochs}, dev {trial.metric} {dev}"
        lines.append(f"{trial.name}: {duration(seconds)}, {state}.")
    more = len(running.trials) - len(lines)
    return [*lines, *([f"{some(more, 'more trial')}."] if more > 0 else [])]


def time_left_in_words(left: TimeLeft) -> str:
    """`About 12 min left, if trials keep taking as long as the 40 that ended, 2 at a time.`"""
    ended = f"the {left.trials} that ended" if left.trials > 1 else "the one that ended"
    return f"A{str(left)[1:]}, if trials keep taking as long as {ended}, {left.at_a_time:.2g} at a time."


def error_lines(cell: CellSummary) -> list[str]:
    """The errors of a cell: a line per failed trial, or per cause if many trials failed."""
    name = ".".join(cell.header.key)
    if len(cell.errors) <= MOST_ERRORS:
        return [f"✗ {name} {' '.join(error.split())}" for error in cell.errors]
    trials: dict[str, list[str]] = {}
    for error in cell.errors:
        trial, _, cause = error.partition(": ")
        trials.setdefault(" ".join(cause.split()), []).append(trial)
    return [f"✗ {name} {some(len(ids), 'trial')} ({_first(ids)}): {cause}" for cause, ids in trials.items()]


def _first(ids: Sequence[str]) -> str:
    """The first of some trials' identities."""
    return ", ".join(ids[:SHOWN]) + (", …" if len(ids) > SHOWN else "")


def _others(cell: CellSummary) -> str:
    names = {state: state for state in ("stopped", "failed", "running", "missing")}
    names["missing"] = "not run" if cell.closed_early else "missing"
    return ", ".join(f"{cell.counts[state]} {name}" for state, name in names.items() if cell.counts[state])


def _best_dev(cell: CellSummary) -> str:
    return best_dev_text(cell.best)


def _finals(cell: CellSummary, planned: int) -> str:
    return _scores(cell, len(cell.finals), planned, cell.dev, cell.test)


def _defaults(cell: CellSummary) -> str:
    """The finals of the published setting; none of its own if it is the best setting."""
    if not cell.default_seeds:
        return "is the best" if cell.default_finals else NOTHING
    return _scores(cell, len(cell.default_finals), cell.default_seeds, cell.default_dev, cell.default_test)


def _scores(cell: CellSummary, count: int, planned: int, dev: Spread | None, test: Spread | None) -> str:
    if dev is None:
        return f"0/{planned}"
    split, over = ("test", test) if test else ("dev", dev)
    return f"{count}/{planned}, {split} {spread_text(over, cell.header.metric)}"
