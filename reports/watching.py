"""Following a running sweep from another terminal: its status again and again, until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meltpoint.reports.formats import symbol
from meltpoint.reports.layout import say_lines
from meltpoint.reports.status_view import show_status
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.machine.terminal import Screen
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some

INTERVAL_SECONDS = 2.0
"""Between two looks: a ledger of a hundred thousand trials takes about as long to read."""


def watch(
    read: Callable[[], SweepSummary], console: Console, wait: Callable[[float], None] = time.sleep
) -> SweepSummary:  # fmt: skip
    """Show a sweep's status until no process drives it.

    A terminal shows the table of `status`, renewed; a pipe gets a line whenever something has changed.

    Args:
        read: gives the sweep as it is now.
        wait: waits some seconds between two looks.

    Returns:
        The sweep as it ended.
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
