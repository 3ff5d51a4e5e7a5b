"""The status of a sweep on the terminal, also while it runs."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console

from meltpoint.reports.console_tables import say, say_lines, show_rows
from meltpoint.reports.formats import duration, title
from meltpoint.reports.notes import code_notes, growth_notes, searched_again, warning_notes
from meltpoint.sweeps.ledger.driver_notes import RunningTrials
from meltpoint.sweeps.ledger.records import strays_in_words
from meltpoint.sweeps.results.cost import best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.locked_test import openings_in_words
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some

MOST_ERRORS = 20
"""Most failed trials of a cell that have a line."""
RUNNING_SHOWN = 8
"""Most running trials that have a line."""


def show_status(summary: SweepSummary, console: Console) -> None:
    """Print counts, best dev and finals of each cell; then the state, and the causes of failed trials."""
    for encoder, cells in groupby(summary.cells, lambda cell: cell.header.encoder):
        show_rows([_row(cell, summary) for cell in cells], console, encoder, ("done", "best dev"))
    done = sum(cell.is_done for cell in summary.cells)
    early = sum(cell.closed_early is not None for cell in summary.cells)
    suffix = f", {early} closed early" if early else ""
    said = [f"{summary.name}: {summary.state}, {done} of {some(len(summary.cells), 'cell')} done{suffix}."]
    if summary.time_left is not None:
        left = summary.time_left
        ended = f"the {left.trials} that ended" if left.trials > 1 else "the one that ended"
        said += [f"A{str(left)[1:]}, if trials keep taking as long as {ended}, {left.at_a_time:.2g} at a time."]
    said += [] if summary.part is None else [f"It may use {summary.part}."]
    said += [] if summary.running is None else running_lines(summary.running)
    said += [strays_in_words(summary.strays)] if summary.strays else []
    for line in said:
        say(console, line)
    for line in warning_notes(summary):
        say(console, line, style="yellow")
    opened = [openings_in_words(summary.openings)] if summary.openings else []
    for line in (*code_notes(summary), *growth_notes(summary), *opened):
        say(console, line)
    for cell in summary.cells:
        if cell.closed_early:
            line = f"{'.'.join(cell.header.key)}: closed after {cell.closed_early}, since {cell.closed_early.cause}"
            say_lines([line], console)
        if cell.early_end is not None:
            say(console, f"{'.'.join(cell.header.key)}: {cell.early_end}.")
        if cell.test_round > 1:
            say(console, f"{'.'.join(cell.header.key)}: {searched_again(cell.test_round)}.")
        say_lines(error_lines(cell), console)


def _row(cell: CellSummary, summary: SweepSummary) -> dict[str, object]:
    head, counts = cell.header, cell.counts
    return {
        "mode": title(head.mode), "task": head.task, "variant": head.variant,
        "done": f"{counts['finished']}/{counts['planned']}", "others": _others(cell),
        "best dev": best_dev_text(cell.best),
        "finals": _finals(cell, summary.seeds_of(cell)),
    }  # fmt: skip


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


def error_lines(cell: CellSummary) -> list[str]:
    """A line for each failed trial of a cell, and the number of those beyond `MOST_ERRORS`."""
    name, more = ".".join(cell.header.key), len(cell.errors) - MOST_ERRORS
    lines = [f"✗ {name} {' '.join(error.split())}" for error in cell.errors[:MOST_ERRORS]]
    return [*lines, *([f"✗ {name} {some(more, 'more error')}"] if more > 0 else [])]


def _others(cell: CellSummary) -> str:
    missing = "not run" if cell.closed_early else "missing"
    names = {"stopped": "stopped", "failed": "failed", "running": "running", "missing": missing}
    return ", ".join(f"{cell.counts[state]} {name}" for state, name in names.items() if cell.counts[state])


def _finals(cell: CellSummary, planned: int) -> str:
    split, over = ("test", cell.test) if cell.test else ("dev", cell.dev)
    return f"{len(cell.finals)}/{planned}" + (f", {split} {spread_text(over, cell.header.metric)}" if over else "")
