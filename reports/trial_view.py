"""Views of a plan and of one trial on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import duration, searched_names, title, value_text
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import counted, some

if TYPE_CHECKING:
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


SHORTEST = 4
"""Characters of a trial's id that name it, where no other trial's id begins so."""


def find_trial(records: Sequence[TrialRecord], sweep: str, word: str) -> TrialRecord:
    """The trial whose id is a word or begins with it.

    Raises:
        ValueError: none, or several; the message says how to find the ids.
    """
    found = [record for record in records if record.id == word]
    if not found and len(word) >= SHORTEST:
        found = [record for record in records if record.id.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{some(len(found), 'trial')} of '{sweep}' begin with '{word}': {', '.join(r.id for r in found[:4])}; "
            "write more."
        )
    raise ValueError(
        f"No cell or trial '{word}' in sweep '{sweep}', or several; `meltpoint best {sweep}` prints the cells, and ids "
        "of trials are the names of the files in its trials/."
    )


def best_of_cell(summary: SweepSummary, word: str) -> TrialRecord | None:
    """The best trial of the cell that a word names: `E.M.T`, or parts of it that only one cell has; None otherwise."""
    names = {cell_name(*cell.header.key): cell for cell in summary.cells}
    wanted = set(word.split("."))
    found = [names[word]] if word in names else [cell for name, cell in names.items() if wanted <= {*name.split(".")}]
    return found[0].best if len(found) == 1 else None


def trial_lines(record: TrialRecord, summary: SweepSummary) -> list[str]:
    """The description of a trial, one fact a line, then a line an epoch."""
    cell = next((one for one in summary.cells if one.header.key == record.cell), None)
    return [
        f"{record.id}: {_what(record)} of {'.'.join(record.cell)} ({title(record.mode)}, head {record.head})",
        *_outcome(record, cell), *_setting_lines(record, cell), *_run_lines(record), *_epoch_lines(record),
    ]  # fmt: skip


def _what(record: TrialRecord) -> str:
    if record.role == "search":
        origin = f", suggested by: {record.suggested_by}" if record.suggested_by else ""
        return f"search trial {record.number + 1}, seed {record.seed}{origin}"
    name = "final" if record.role == "final" else "final of the published setting"
    return f"{name}, seed {record.seed}"


def _outcome(record: TrialRecord, cell: CellSummary | None) -> Iterator[str]:
    best = cell is not None and cell.best is not None and cell.best.id == record.id
    scores = "" if record.dev is None else f", dev {record.metric} {score_text(record.dev, record.metric)}"
    scores += f" in epoch {record.best_epoch} of {record.epoch_count}" if record.best_epoch else ""
    yield f"{record.status}{scores}{', the best of its cell' if best else ''}"
    if record.test:
        yield "test: " + ", ".join(f"{name} {score_text(value, name)}" for name, value in record.test.items())
    if record.error:
        yield f"error ({record.cause or 'setting'}): {' '.join(record.error.split())}"


def _setting_lines(record: TrialRecord, cell: CellSummary | None) -> Iterator[str]:
    """The searched parameters, then the others."""
    searched = searched_names(cell.header) if cell is not None else []
    first = {name: record.setting[name] for name in searched if name in record.setting}
    yield f"searched: {_values(first) or 'nothing'}"
    yield f"fixed: {_values({name: value for name, value in record.setting.items() if name not in first})}"


def _values(setting: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in setting.items())


def _run_lines(record: TrialRecord) -> Iterator[str]:
    together = f", beside {record.trained_together - 1} others" if record.trained_together > 1 else ""
    attempts = f", attempt {record.attempts}" if record.attempts > 1 else ""
    shared = f", answered by {record.answered_by}" if record.answered_by else ""
    yield f"ran {duration(record.seconds)}{together}{attempts}{shared}"
    machine = record.hardware
    if machine is not None:
        yield f"on {machine.name} ({machine.device}, {machine.precision}), {machine.host}"
    yield f"code {record.code_version}, data {record.data_fingerprint}"
    if record.mlflow_run_id:
        yield f"MLflow run {record.mlflow_run_id}"
    yield from (f"note: {note}" for note in (*record.result_notes(), *record.input_notes, *record.storage_notes))


def _epoch_lines(record: TrialRecord) -> Iterator[str]:
    for epoch in record.epochs:
        shown = ", ".join(f"{name} {score_text(value, name)}" for name, value in epoch.dev.items())
        mark = " ←" if epoch.epoch == record.best_epoch else ""
        yield f"epoch {epoch.epoch} ({epoch.phase}): train loss {epoch.train_loss:.4f}, dev {shown}{mark}"
