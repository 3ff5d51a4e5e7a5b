"""Best settings of cells and single trials, as `best` and `show` print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import yaml

from meltpoint.reports.formats import searched_names, setting_text
from meltpoint.reports.table_values import STAR
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, spreads_json
from meltpoint.tasks.core.metrics import gain

if TYPE_CHECKING:
    from meltpoint.reports.results import SweepResults


SHORTEST = 4
"""Leading characters of a trial's id that are enough to name it, if no other id begins with them."""


def find_trial(records: Sequence[TrialRecord], sweep: str, word: str) -> TrialRecord:
    """The trial whose id equals a word or begins with it.

    Raises:
        ValueError: none, or several; the message says how to find the ids.
    """
    found = [record for record in records if record.id == word]
    if not found and len(word) >= SHORTEST:
        found = [record for record in records if record.id.startswith(word)]
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"No cell or trial '{word}' in sweep '{sweep}', or several; `meltpoint best {sweep}` lists the cells, and "
        "trial ids are the file names in its trials/."
    )


def best_of_cell(summary: SweepSummary, word: str) -> TrialRecord | None:
    """The best trial of the cell that a word names: `E.M.T`, or parts of it that only one cell has; None otherwise."""
    parts = set(word.split("."))
    found = [cell for cell in summary.cells if cell.name == word]
    found = found or [cell for cell in summary.cells if parts <= {*cell.name.split(".")}]
    if len(found) == 1 and found[0].best is None:
        raise ValueError(
            f"Cell '{found[0].name}' has no finished trial yet; `meltpoint status {summary.name}` shows its trials."
        )
    return found[0].best if len(found) == 1 else None


def trial_lines(record: TrialRecord, summary: SweepSummary) -> list[str]:
    """A trial's record as YAML, with a line for each epoch; the searched parameters and the notes stand apart."""
    cell = next((one for one in summary.cells if one.header.key == record.cell), None)
    searched = [name for name in searched_names(cell.header) if name in record.setting] if cell is not None else []
    facts = record.model_dump(mode="json", exclude_defaults=True, exclude={"setting", "epochs", "storage_notes"})
    facts |= {
        "number": record.number + 1,  # as in `trial_label`
        "searched": {name: record.setting[name] for name in searched},
        "fixed": {name: value for name, value in record.setting.items() if name not in searched},
        "notes": [*record.result_notes(), *record.storage_notes],
        "epochs": [one.in_words() + (" ←" if one.epoch == record.best_epoch else "") for one in record.epochs],
    }  # fmt: skip
    shown = {name: value for name, value in facts.items() if value not in (None, "", [], {})}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=float("inf"))
    return [f"# {'.'.join(record.cell)}", *text.splitlines()]


@dataclass(frozen=True)
class RankedCell:
    """A cell with its rank among the cells of its task.

    Attributes:
        rank, of: its place, from 1, and the number of cells.
        is_recommended: True for the one that every table marks.
    """

    cell: CellSummary
    rank: int
    of: int
    is_recommended: bool

    @property
    def label(self) -> str:
        """`1/3`, or `1/3 ★` if it is recommended, as in MLflow."""
        return f"{self.rank}/{self.of}{f' {STAR}' if self.is_recommended else ''}"


def ranked_cells(results: SweepResults) -> list[RankedCell]:
    """The cells task by task, the best first: by the finals that a recommendation ranks, the others by dev."""
    winners = {id(one.winner.cell) for one in results.recommendations}
    places = {id(one.cell): place for each in results.recommendations for place, one in enumerate(each.standings)}
    found: list[RankedCell] = []
    for task in dict.fromkeys(cell.header.task for cell in results.summary.cells):
        cells = [cell for cell in results.summary.cells if cell.header.task == task]
        cells.sort(key=lambda cell: (places.get(id(cell), len(cells)), -dev_gain(cell.best)))
        found += [RankedCell(cell, rank, len(cells), id(cell) in winners) for rank, cell in enumerate(cells, 1)]
    return found


def dev_gain(record: TrialRecord | None) -> float:
    """A trial's dev score, the higher the better; failed trials come last."""
    return -inf if record is None or record.dev is None else gain(record.metric, record.dev)


def chosen_cells(results: SweepResults, cell: str | None) -> list[RankedCell]:
    """The cells with a name: one, or all without a name, the best of each task first.

    Raises:
        ValueError: there is no such cell, or it has no finished trial yet.
    """
    ranked, summary = ranked_cells(results), results.summary
    if cell is None:
        return ranked
    if (wanted := summary.named(cell)).best is None:
        raise ValueError(f"Cell '{cell}' of sweep '{summary.name}' has no finished trial yet; see `meltpoint status`.")
    return [one for one in ranked if one.cell is wanted]


def best_json(cells: Sequence[RankedCell]) -> list[dict[str, Any]]:
    """The document of `best --json`: a cell without a finished trial has null for its setting."""
    return [
        {"cell": one.cell.name, **cell_figures(one.cell), "rank": one.rank,
         "recommended": one.is_recommended, "trial": one.cell.best and one.cell.best.id,
         "setting": one.cell.best and one.cell.best.setting, "dev": one.cell.best and one.cell.best.dev,
         "seeds": [final.seed for final in one.cell.finals]}
        for one in cells
    ]  # fmt: skip


def best_rows(cells: Sequence[RankedCell]) -> list[dict[str, object]]:
    """One row per cell: its name, rank, scores, and the searched part of the setting."""
    return [
        {"cell": cell.name, "rank": label, "test": spread_text(cell.test, cell.header.metric),
         "best dev": best_dev_text(cell.best), "head": cell.header.head,
         "setting": setting_text(cell.best.setting, searched_names(cell.header)) if cell.best else NOTHING}
        for cell, label in ((one.cell, one.label) for one in cells)
    ]  # fmt: skip


def cell_figures(cell: CellSummary) -> dict[str, Any]:
    """A cell for programs: its parts, best trial, scores over seeds (fractions), sizes and cost; None if unknown."""
    head, best, cost = cell.header, cell.best, cell.cost
    return {
        **{name: getattr(head, name) for name in ("encoder", "mode", "task", "variant", "head", "kind", "metric")},
        "best_dev": best and best.dev, "best_trial": best and best.id, "best_epoch": best and best.best_epoch,
        **spreads_json(cell.dev, cell.test), **spreads_json(cell.default_dev, cell.default_test, "default_"),
        "train_examples": head.train_examples, "dev_examples": head.dev_examples, "train_seconds": cell.seconds,
        "data_fingerprint": head.data_fingerprint, "task_parameters": best and best.task_parameters,
        "gpu_hours": cost.gpu_hours, "peak_memory_bytes": cost.peak_memory_bytes,
        "trained_parameters": cost.trained_parameters, "seconds_of_a_final": cost.seconds_of_a_final,
    }  # fmt: skip
