"""The lines of `plan` under its table: the sizes of the data, what is searched in each mode, and notes on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meltpoint.reports.formats import title
from meltpoint.tasks.core.wording import counted

if TYPE_CHECKING:  # torch, which takes seconds
    from meltpoint.sweeps.driver.plan import PlannedCell


def data_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line a task: `sst2: 6 920 examples to train on, 872 of dev, 1 821 of test`."""
    for task in dict.fromkeys(cell.task for cell in cells):
        cell = next(one for one in cells if one.task == task)
        unopened = "no test split" if cell.test_state == "absent" else "test is not opened"
        test = unopened if cell.test_examples is None else f"{counted(cell.test_examples)} of test"
        sizes = f"{counted(cell.train_examples)} examples to train on, {counted(cell.dev_examples)} of dev"
        yield f"{task}: {sizes}, {test}"


def space_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line for each mode, head and space; with the tasks where a mode has several."""
    spaces: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        ranges = ", ".join(f"{name} {text}" for name, text in cell.searched.items()) or "nothing"
        spaces.setdefault((cell.mode, cell.head, ranges), []).append(cell.task)
    modes = [mode for mode, _, _ in spaces]
    for (mode, head, ranges), tasks in spaces.items():
        where = f" on {', '.join(dict.fromkeys(tasks))}" if modes.count(mode) > 1 else ""
        yield f"searched in {title(mode)}, {head}{where}: {ranges}"


def note_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """One line for each note of a task; with the modes where not all of its cells have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for note in cell.notes:
            found.setdefault((cell.task, note), []).append(title(cell.mode))
    every = {task: {title(cell.mode) for cell in cells if cell.task == task} for task, _ in found}
    for (task, note), modes in found.items():
        some = dict.fromkeys(modes)
        where = "" if set(some) == every[task] else f", {', '.join(some)}"
        yield f"{task}{where}: {note}"
