"""Terminal output of results, plans and checks; plain text if piped, no wider than the console."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meltpoint.reports.console_tables import new_table, say, show_rows, stacked, width_of
from meltpoint.reports.findings import advice_lines, delta_lines, gain_lines, size_lines
from meltpoint.reports.formats import QUOTED, duration, listed, marks, symbol, title
from meltpoint.reports.matrix import members_text
from meltpoint.reports.notes import folded_warnings, state_line, task_notes, trial_notes, warning_notes
from meltpoint.reports.results import SweepResults, results_of
from meltpoint.reports.statistics.cost import by_mode, price_text
from meltpoint.reports.table_values import STAR, EncoderBlock, TableEntry, TableRow
from meltpoint.sweeps.machine.services import Check
from meltpoint.sweeps.machine.terminal import Screen
from meltpoint.sweeps.results.cost import planned_work, spread_text
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.tracking_uri import is_database, redacted
from meltpoint.tasks.core.wording import counted, printable, some

if TYPE_CHECKING:  # these import torch, which takes seconds; a table does not need it
    from meltpoint.sweeps.driver.plan import PlannedCell, SweepPlan
    from meltpoint.sweeps.driver.run import Outcome


NARROW = 11
"""The width to which names of tasks are wrapped in a narrow table: about that of `85.1 ± 0.3`."""


def show_summary(
    summary: SweepSummary, console: Console, results: SweepResults | None = None, explain: bool = False
) -> None:  # fmt: skip
    """Print the recommendations, the ❄/🔥 table of each encoder as wide as the console, the cost and the warnings.

    Args:
        results: of the summary, if already computed.
        explain: also print every difference, the gains from tuning, each warning, and notes on the figures.
    """
    results = results or results_of(summary)
    for known, line in zip(results.recommendations, advice_lines(results.recommendations), strict=True):
        advice = Text(printable(line))
        advice.stylize("bold", 0, len(line) - len(" ".join(["", *known.details])))
        console.print(advice, highlight=False)
    if not results.recommendations:
        say(console, f"{summary.name}. {state_line(summary)}", style="bold")
    for block in results.table.blocks:
        say(console, "")
        _show_block(block, f"{summary.name} · {block.encoder}", console, explain)
    rows = [row for block in results.table.blocks for row in _rows(block, explain)]
    shown = {number for row in rows for entry in row.entries for number in entry.notes}
    for number, text in enumerate(results.table.footnotes, 1):
        if number in shown:
            say(console, f"{marks([number])} {text}")
    for line in size_lines(results):
        say(console, line)
    say(console, "")
    for line in (*summary.spec.notes, *_data_lines(summary, explain), *_cost_line(summary)):
        say(console, line)
    for line in warning_notes(summary) if explain else folded_warnings(summary):
        say(console, line, style="yellow")
    if explain:
        _explain(results, console)


def _data_lines(summary: SweepSummary, explain: bool) -> list[str]:
    """The changes to the tasks' splits; without `explain`, one line that names the tasks if their changes differ."""
    lines = task_notes(summary, explain)
    if explain or len(lines) < 2:
        return lines
    return [f"Samples and splits of {', '.join(line.partition(':')[0] for line in lines)}: see --explain."]


def _cost_line(summary: SweepSummary) -> list[str]:
    """`Cost: 43 min of training (❄ 6 min 38 s, 🔥 36 min 22 s), 0.2 GPU-hours.`; nothing before a trial has ended."""
    modes = by_mode(summary, lambda cost: cost.seconds)
    total, hours = sum(modes.values()), sum(cell.cost.gpu_hours for cell in summary.cells)
    if not total:
        return []
    each = ", ".join(f"{symbol(mode)} {duration(seconds)}" for mode, seconds in modes.items())
    rest = [f"{hours:.2g} GPU-hours"] if hours else []
    rest += [price] if (price := price_text(summary)) else []
    return [f"{', '.join([f'Cost: {duration(total)} of training ({each})', *rest])}."]


def _explain(results: SweepResults, console: Console) -> None:
    for heading, lines in (("What the table shows", delta_lines(results)), ("What tuning bought", gain_lines(results))):
        if lines:
            say(console, "")
            say(console, heading, style="bold")
        for line in lines:
            say(console, line)
    say(console, "")
    for line in (*trial_notes(results.summary), *results.legend):
        say(console, line, style="dim")


def _rows(block: EncoderBlock, explain: bool) -> Sequence[TableRow]:
    return block.rows if explain else (*block.modes, *block.ensembles)


def _show_block(block: EncoderBlock, heading: str, console: Console, explain: bool) -> None:
    """Print an encoder's table; where it is too wide, narrow, and in parts of as many tasks as fit."""
    rows = _rows(block, explain)
    first, count = 0, len(block.tasks)
    while first < count:
        for size, narrow in [(count - first, False), *((size, True) for size in range(count - first, 0, -1))]:
            table = new_table(heading)
            table.add_column("mode", no_wrap=True)
            for task, metric in block.tasks[first : first + size]:
                name = stacked(task, NARROW) if narrow else task
                table.add_column(Text(f"{name}\n{metric}"), justify="right", no_wrap=True)
            for row in rows:
                table.add_row(Text(row.title), *(_entry(one, narrow) for one in row.entries[first : first + size]))
            if width_of(table, console) <= console.width:
                break
        console.print(table)
        first += size


def _entry(shown: TableEntry, narrow: bool) -> Text:
    label = _on_two_lines(shown.label).replace(f"{STAR} ", STAR) if narrow else shown.label
    return Text(label + marks(shown.notes))


def show_outcome(
    outcome: Outcome, resources: Resources, again: str, console: Console, results: SweepResults | None = None
) -> None:  # fmt: skip
    """Print a sweep's recommendations and table; on standard error, its problems and the next commands.

    Args:
        again: the command that resumes the sweep.
        results: of the outcome's summary, if already computed.
    """
    stderr = Screen(stderr=True, soft_wrap=True)
    show_summary(outcome.summary, console, results)
    for trouble in outcome.troubles:
        stderr.print(printable(f"! {trouble}"))
    if outcome.state == "stopped":
        why = f" ({outcome.stop})" if outcome.stop is not None and str(outcome.stop) else ""
        stderr.print(f"Stopped{why}; finished trials are kept. Resume it with:\n  {again}")
    if outcome.state == "done":
        stderr.print(f"Page  {outcome.folder / 'report.html'}")
    for head, command in zip(("Next ", "     "), _next(outcome, resources), strict=True):
        stderr.print(f"{head} {command}")


def _next(outcome: Outcome, resources: Resources) -> tuple[str, str]:
    """Two next commands: use the sweep's model, or show the sweep in MLflow's dashboard; and explain its table."""
    name, uri = outcome.summary.name, resources.tracking_uri
    storage = [] if resources.storage == "runs" else ["--storage", resources.storage]
    told = [] if uri is None else ["--tracking-uri", redacted(uri)]
    place = storage if uri is None or is_database(uri) else []
    first = shlex.join(["meltpoint", "ui", name, *told, *place])
    if (outcome.folder / "model").is_dir():
        first = shlex.join(["meltpoint", "predict", name, "FILE", *storage])
    elif outcome.dashboard:
        first = outcome.dashboard
    return first, shlex.join(["meltpoint", "report", name, "--explain", *storage])


def show_ensemble(made: Ensemble, sweep: str, console: Console) -> None:
    """Print an ensemble: its members, its scores over seeds, and its notes."""
    say(console, f"{made.task}: {members_text(made, sweep)}")
    for split, over in (("test", made.spread("test")), ("dev", made.spread("dev"))):
        if over:
            say(console, f"{split} {made.metric} {spread_text(over, made.metric)} over {some(over.count, 'seed')}")
    for note in made.notes:
        say(console, note)


def show_plan(planned: SweepPlan, console: Console, verbose: bool = True) -> None:
    """Print a plan: its modes, the total and some notes; `verbose`: each cell, its search space, and all notes."""
    cells = planned.cells
    if verbose:
        for encoder, group in groupby(cells, lambda cell: cell.encoder):
            show_rows([_planned_row(cell, planned) for cell in group], console, encoder, FIGURES)
    else:
        modes = dict.fromkeys(cell.mode for cell in cells)
        show_rows([_planned_mode(mode, cells) for mode in modes], console, "Plan", FIGURES)
    may_end_early = planned.least_seconds < planned.estimated_seconds
    work = planned_work(len(cells), planned.search_trials, planned.finals, planned.defaults, may_end_early)
    least = f"{duration(planned.least_seconds)} to " if may_end_early else ""
    taken = f"about {least}{duration(planned.estimated_seconds)} on {some(planned.workers, 'worker')}"
    say(console, f"{work}; the ledger answers {planned.answered}; {taken}.")
    spaces = space_lines(cells) if verbose else ()
    lines = [*data_lines(cells), *spaces, *note_lines(cells), *planned.lengths, *planned.notes]
    for line in lines if verbose else lines[:SHORT_PLAN]:
        say(console, line, style="dim")
    if not verbose:
        more = f"{len(lines) - SHORT_PLAN} more notes and " if len(lines) > SHORT_PLAN else ""
        say(console, f"--verbose has {more}each cell and its search space.", style="dim")


FIGURES = ("trials", "search trials", "finals", "defaults", "done", "cells", "one worker")
SHORT_PLAN = 4
"""Most notes of a plan that is not verbose."""


def _planned_row(cell: PlannedCell, planned: SweepPlan) -> dict[str, object]:
    return {
        "mode": title(cell.mode), "task": cell.task, "variant": cell.variant, "head": cell.head,
        "trials": cell.search_trials, "finals": cell.finals, "defaults": cell.defaults if planned.defaults else "",
        "done": cell.answered, "one worker": duration(cell.estimated_seconds),
    }  # fmt: skip


def _planned_mode(mode: str, cells: Sequence[PlannedCell]) -> dict[str, object]:
    own = [cell for cell in cells if cell.mode == mode]
    heads = list(dict.fromkeys(cell.head for cell in own))
    return {
        "mode": title(mode), "heads": heads[0] if len(heads) == 1 else some(len(heads), "head"), "cells": len(own),
        "search trials": sum(cell.search_trials for cell in own),
        "finals": sum(cell.finals + cell.defaults for cell in own),
        "one worker": duration(sum(cell.estimated_seconds for cell in own)),
    }  # fmt: skip


def data_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line per task: `sst2: 6 920 training examples, 872 dev, 1 821 test`."""
    for task in dict.fromkeys(cell.task for cell in cells):
        cell = next(one for one in cells if one.task == task)
        unopened = "no test split" if cell.test_state == "absent" else "test is not opened"
        test = unopened if cell.test_examples is None else f"{counted(cell.test_examples)} test"
        sizes = f"{counted(cell.train_examples)} training examples, {counted(cell.dev_examples)} dev"
        yield f"{task}: {sizes}, {test}"


def space_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line for each mode, head and space; with the tasks if a mode has several."""
    spaces: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        ranges = ", ".join(f"{name} {text}" for name, text in cell.searched.items()) or "nothing"
        spaces.setdefault((cell.mode, cell.head, ranges), []).append(cell.task)
    modes = [mode for mode, _, _ in spaces]
    for (mode, head, ranges), tasks in spaces.items():
        where = f" on {', '.join(dict.fromkeys(tasks))}" if modes.count(mode) > 1 else ""
        yield f"searched in {title(mode)}, {head}{where}: {ranges}"


def note_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line for each note of a task; with the modes if only some of its cells have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for note in cell.notes:
            found.setdefault((cell.task, note), []).append(title(cell.mode))
    every = {task: {title(cell.mode) for cell in cells if cell.task == task} for task, _ in found}
    for (task, note), modes in found.items():
        own = dict.fromkeys(modes)
        where = "" if set(own) == every[task] else f", {', '.join(own)}"
        yield f"{task}{where}: {note}"


def show_checks(checks: Sequence[Check], console: Console, verbose: bool = False) -> None:
    """Print the results of `doctor`: a line for each failed check, with its remedy; `verbose`: passed ones too."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in (check for check in checks if verbose or not check.ok):
        mark = Text("✓", style="green") if check.ok else Text("✗", style="bold red")
        grid.add_row(mark, Text(check.name), Text(check.detail))
        if check.remedy:
            grid.add_row("", "", Text(f"→ {check.remedy}", style="yellow"))
    if grid.rows:
        console.print(grid)
    bad = [check.name for check in checks if not check.ok]
    say(console, f"{len(bad)} of {len(checks)} need attention: {listed(bad)}." if bad else "All is well.")


def _on_two_lines(text: str) -> str:
    """A score with its split on a line above it, and its interval on a line below."""
    for where, broken in (("dev ", "dev\n"), ("test ", "test\n"), (f" {QUOTED}", f"\n{QUOTED}"), (" [", "\n[")):
        text = text.replace(where, broken)
    return text
