"""The same results on a terminal; piped, plain text of at most the console's width."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meltpoint.reports.ensembles import ENSEMBLE_NOTE, members_text
from meltpoint.reports.formats import NOTHING, duration, listed, marks, percent, spread_text, title
from meltpoint.reports.layout import Column, new_table, say, show_groups, stacked, width_of
from meltpoint.reports.matrix import BOLD_NOTE, DIFFERENCE_NOTE, SPREAD_NOTE, Block, Row, Shown
from meltpoint.reports.notes import code_notes, task_notes, trial_notes
from meltpoint.reports.paper_comparison import QUOTED, set_beside
from meltpoint.sweeps.driver.planned_work import planned_work
from meltpoint.sweeps.ledger.records import strays_in_words
from meltpoint.sweeps.machine.services import Check
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.closing import in_words
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.sweeps.specification.tracking_uri import is_database, redacted
from meltpoint.tasks.core.counts import some

if TYPE_CHECKING:  # they import torch, which takes seconds; a table must not wait for that
    from meltpoint.adapters.training.epoch_result import EpochResult
    from meltpoint.sweeps.driver.plan import PlannedCell, SweepPlan
    from meltpoint.sweeps.driver.run import Outcome


def show_summary(summary: SweepSummary, console: Console) -> None:
    """The ❄/🔥 table: a block an encoder, in as many pieces as the console's width asks for."""
    both = set_beside(summary)
    table = both.table
    for block in table.blocks:
        _show_block(f"{summary.name} · {block.encoder}", block, console)
    for number, text in enumerate(table.footnotes, 1):
        say(console, f"{marks([number])} {text}")
    for line in (*task_notes(summary), *trial_notes(summary)):
        say(console, line)
    legend = [SPREAD_NOTE, DIFFERENCE_NOTE, *([BOLD_NOTE] if console.is_terminal else [])]  # a pipe has no bold
    legend += [ENSEMBLE_NOTE] if summary.ensembles else []
    for note in (*both.notes, *legend):
        say(console, note, style="dim")


def _show_block(heading: str, block: Block, console: Console) -> None:
    first = 0
    while first < len(block.tasks):
        size, table = _widest(heading, block, first, console)
        console.print(table)
        first += size


def _widest(heading: str, block: Block, first: int, console: Console) -> tuple[int, Table]:
    """As many of the tasks from `first` on as fit side by side (one at least), and their table."""
    rest = len(block.tasks) - first
    for size, narrow in [(rest, False), *((size, True) for size in range(rest, 1, -1))]:
        table = _matrix_table(heading, block, slice(first, first + size), narrow)
        if width_of(table, console) <= console.width:
            return size, table
    return 1, _matrix_table(heading, block, slice(first, first + 1), narrow=True)


def _matrix_table(heading: str, block: Block, tasks: slice, narrow: bool) -> Table:
    table = new_table(heading)
    table.add_column("mode", no_wrap=True)
    for task, metric in block.tasks[tasks]:
        name = stacked(task) if narrow else task
        table.add_column(Text(f"{name}\n{metric}"), justify="right", no_wrap=True)
    for row in (*block.modes, *block.ensembles):
        _add_matrix_row(table, row, tasks, narrow)
    table.add_section()
    for row in block.differences:
        _add_matrix_row(table, row, tasks, narrow)
    return table


def _add_matrix_row(table: Table, row: Row, tasks: slice, narrow: bool) -> None:
    table.add_row(Text(row.title), *(_entry(shown, narrow) for shown in row.shown[tasks]))


def _entry(shown: Shown, narrow: bool) -> Text:
    label = _on_two_lines(shown.label) if narrow else shown.label
    return Text(label + marks(shown.notes), style="bold" if shown.is_best else "")


def _on_two_lines(text: str) -> str:
    """A score below the name of its split."""
    return text.replace("dev ", "dev\n").replace("test ", "test\n").replace(f" {QUOTED}", f"\n{QUOTED}")


def show_outcome(outcome: Outcome, resources: Resources, again: str, console: Console) -> None:
    """What a sweep that ended left: its table, and on standard error what went wrong and where its files lie.

    Args:
        again: the command that goes on with it.
    """
    talk = Console(stderr=True, highlight=False, soft_wrap=True)
    show_summary(outcome.summary, console)
    for cell in outcome.summary.cells:
        if cell.closed_early:
            talk.print(in_words(cell.header.key, cell.closed_early), markup=False)
    for trouble in outcome.troubles:
        talk.print(f"! {trouble}", markup=False)
    if outcome.state == "stopped":
        talk.print(f"Stopped; what finished is kept. It goes on with:\n  {again}", markup=False)
    talk.print(f"Tables     {outcome.folder / 'report.md'}", markup=False)
    talk.print(f"Exports    {outcome.folder / 'exports'}", markup=False)
    uri = resources.tracking_uri
    where = [] if uri is None else ["--tracking-uri", redacted(uri)]
    where += ["--storage", resources.storage] if uri is None or is_database(uri) else []
    talk.print(f"Dashboard  {shlex.join(['meltpoint', 'ui', *where])}", markup=False)


def show_ensemble(made: Ensemble, sweep: str, console: Console) -> None:
    """What `ensemble` made: its members, its scores over seeds, and what has to be said of them."""
    say(console, f"{made.task}: {members_text(made, sweep)}")
    for split, over in (("test", made.spread("test")), ("dev", made.spread("dev"))):
        if over:
            say(console, f"{split} {made.metric} {spread_text(over)} over {some(over.count, 'seed')}")
    for note in made.notes:
        say(console, note)


def show_plan(planned: SweepPlan, console: Console) -> None:
    """What a sweep would do: a line a cell, the total, and the time it will take."""
    columns: list[Column[PlannedCell]] = [
        Column("mode", lambda cell: title(cell.mode), narrow=str, is_whole=True),
        Column("task", lambda cell: cell.task),
        Column("head", lambda cell: cell.head),
        Column("trials", lambda cell: str(cell.trials - cell.finals), is_figure=True),
        Column("finals", lambda cell: str(cell.finals), is_figure=True),
        Column("answered", lambda cell: str(cell.answered), is_figure=True),
        Column("one worker", lambda cell: duration(cell.estimated_seconds), is_figure=True),
    ]
    if any(cell.variant for cell in planned.cells):
        columns.insert(2, Column("variant", lambda cell: cell.variant))
    show_groups(planned.cells, lambda cell: cell.encoder, columns, console)
    say(
        console,
        f"{planned_work(len(planned.cells), planned.trials - planned.finals, planned.finals)}; the ledger answers "
        f"{planned.answered}; about {duration(planned.estimated_seconds)} on {some(planned.workers, 'worker')}.",
    )
    for note in planned.notes:
        say(console, note, style="dim")


def show_status(summary: SweepSummary, console: Console) -> None:
    """Counts, best dev and finals of each cell; then the state, and the error of each failed trial in one line."""
    columns: list[Column[CellSummary]] = [
        Column("mode", lambda cell: title(cell.header.mode), narrow=str, is_whole=True),
        Column("task", lambda cell: cell.header.task),
        Column("done", lambda cell: f"{cell.counts['finished']}/{cell.counts['planned']}", is_figure=True),
        Column("others", _others),
        Column("best dev", _best_dev, is_figure=True),
        Column("finals", lambda cell: _finals(cell, summary.seeds_of(cell)), narrow=_on_two_lines),
    ]
    if summary.has_variants:
        columns.insert(2, Column("variant", lambda cell: cell.header.variant))
    show_groups(summary.cells, lambda cell: cell.header.encoder, columns, console)
    done = sum(cell.is_done for cell in summary.cells)
    early = sum(cell.closed_early is not None for cell in summary.cells)
    said = f", {early} closed early" if early else ""
    say(console, f"{summary.name}: {summary.state}, {done} of {some(len(summary.cells), 'cell')} done{said}.")
    if summary.strays:
        say(console, strays_in_words(summary.strays))
    for line in code_notes(summary):
        say(console, line)
    for line in code_notes(summary):
        say(console, line)
    for cell in summary.cells:
        if cell.closed_early:
            line = f"{'.'.join(cell.header.key)}: closed after {cell.closed_early}, since {cell.closed_early.cause}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for error in cell.errors:
            line = f"✗ {'.'.join(cell.header.key)} {' '.join(error.split())}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)  # one error, one line, also for grep


def _others(cell: CellSummary) -> str:
    names = {word: word for word in ("stopped", "failed", "running", "missing")}
    names["missing"] = "not run" if cell.closed_early else "missing"
    return ", ".join(f"{cell.counts[word]} {name}" for word, name in names.items() if cell.counts[word])


def _best_dev(cell: CellSummary) -> str:
    return NOTHING if cell.best is None or cell.best.dev is None else percent(cell.best.dev)


def _finals(cell: CellSummary, planned: int) -> str:
    if cell.dev is None:
        return f"0/{planned}"
    split, over = ("test", cell.test) if cell.test else ("dev", cell.dev)
    return f"{len(cell.finals)}/{planned}, {split} {spread_text(over)}"


def show_epoch(epoch: EpochResult, console: Console) -> None:
    """An epoch of `train`, on one line."""
    shown = ", ".join(f"{name} {value:.4f}" for name, value in epoch.dev.items())
    console.print(f"epoch {epoch.epoch} ({epoch.phase}): train loss {epoch.train_loss:.4f}, dev {shown}")


def show_rows(rows: Sequence[Mapping[str, object]], console: Console) -> None:
    """What `list` lists: a table where it fits, else a paragraph an entry."""
    keys = list(dict.fromkeys(key for row in rows for key in row if _value(row[key])))  # no column without a word
    table = new_table()
    for key in keys:
        table.add_column(Text(key.replace("_", " ")), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_value(row.get(key))) for key in keys))
    if width_of(table, console) <= console.width:
        console.print(table)
        return
    for row in rows:
        _show_paragraph(row, console)


def _show_paragraph(row: Mapping[str, object], console: Console) -> None:
    """The first value as a heading, the others below it, each behind its key."""
    (_, name), *others = row.items()
    say(console, _value(name), style="bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in others:
        text = "\n".join(value) if _is_phrases(value) else _value(value)
        if text:
            grid.add_row("", Text(key.replace("_", " ")), Text(text))
    console.print(grid)


def _is_phrases(value: object) -> TypeGuard[list[str]]:
    """Whether a value is a list whose items want a line each."""
    return isinstance(value, list) and any(isinstance(item, str) and " " in item for item in value)


def _value(value: object) -> str:
    """A value of a row as one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_value(one) for one in value)
    return " ".join(str(value).split())


def show_checks(checks: Sequence[Check], console: Console) -> None:
    """What `doctor` found, a line a check, and under each lack what to do about it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checks:
        mark = Text("✓", style="green") if check.ok else Text("✗", style="bold red")
        grid.add_row(mark, Text(check.name), Text(check.detail))
        if check.remedy:
            grid.add_row("", "", Text(f"→ {check.remedy}", style="yellow"))
    console.print(grid)
    bad = [check.name for check in checks if not check.ok]
    say(console, f"{len(bad)} of {len(checks)} need attention: {listed(bad)}." if bad else "All is well.")
