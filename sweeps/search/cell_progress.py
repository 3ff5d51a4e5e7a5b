"""A cell's progress through its search and finals, and the names of its trials."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from meltpoint.adapters.hyperparameters import Value
from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.selection import best_of
from meltpoint.sweeps.search.study import Study
from meltpoint.sweeps.specification.cells import OpenCell, cell_name


def trial_label(trial: Trial) -> str:
    """A trial's name within its cell: `trial 3` (from 1, as `show` counts), `final, seed 1`, `default, seed 1`."""
    return f"trial {trial.number + 1}" if trial.role == "search" else f"{trial.role}, seed {trial.seed}"


def trial_name(trial: Trial) -> str:
    """A trial's name in the sweep's output: its cell's name, then `trial_label`."""
    return f"{cell_name(*trial.cell)} {trial_label(trial)}"


@dataclass
class CellProgress:
    """The progress of a cell.

    Attributes:
        cell: the cell.
        target: number of planned search trials: `--trials`, or the number of points of a smaller space.
        study: the cell's searcher.
        work: relative duration of one of its trials (`work_of`).
        search, finals, defaults: trial id → record, for trials that ended, by role.
        running: trial id → trial, for trials that have begun and not ended.
        again: interrupted or lost trials, which run again before any new one.
        cut: whether the search ended before `target`, by the time budget or because the cell is closed.
        finals_cut: whether the time budget allows only the first final.
        published: the space's published setting, complete; `published_trial` is the identity of its search trial.
        planned_defaults: the finals of the published setting; empty if not planned.
        planned_finals: the finals of the search trial `planned_for`, the best one when they were last planned.
        best: the best finished search trial so far; stored, since searching thousands of records for it takes time.
    """

    cell: OpenCell
    target: int
    study: Study
    work: float
    search: dict[str, TrialRecord] = field(default_factory=dict)
    finals: dict[str, TrialRecord] = field(default_factory=dict)
    defaults: dict[str, TrialRecord] = field(default_factory=dict)
    running: dict[str, Trial] = field(default_factory=dict)
    again: list[Trial] = field(default_factory=list)
    cut: bool = False
    finals_cut: bool = False
    published: dict[str, Value] = field(default_factory=dict)
    published_trial: str = ""
    planned_defaults: tuple[Trial, ...] = ()
    planned_for: str = ""
    planned_finals: tuple[Trial, ...] = ()
    best: TrialRecord | None = field(init=False)
    _ended_numbers: set[int] = field(init=False)
    _first_open: int = 0  # all numbers below it belong to trials that ended

    def __post_init__(self) -> None:
        self.best = best_of(self.search.values())
        self._ended_numbers = {record.number for record in self.search.values()}

    def ended(self, record: TrialRecord) -> None:
        """Add the record of a trial that ended, or replace a changed one."""
        self.running.pop(record.id, None)
        if record.role == "search":
            is_new = record.id not in self.search
            self.search[record.id] = record
            self._ended_numbers.add(record.number)
            # A new record is compared with the best one only; after a change, any other record may be the best.
            rivals = filter(None, (record, self.best)) if is_new else self.search.values()
            self.best = best_of(rivals)
        else:
            (self.finals if record.role == "final" else self.defaults)[record.id] = record

    @property
    def finalists(self) -> list[TrialRecord]:
        """The finals of the best and the published setting, which are scored on test."""
        return [*self.finals.values(), *self.defaults.values()]

    @property
    def wanted_defaults(self) -> tuple[Trial, ...]:
        """The finals of the published setting to run; none once it is found to be the best one."""
        is_best = self.searched and self.best is not None and self.best.setting == self.published
        return () if is_best else self.planned_defaults

    @property
    def unscored(self) -> list[TrialRecord]:
        """The finished finals without a test score; those of the published setting only if wanted."""
        wanted = {trial.id for trial in self.wanted_defaults}
        ended = [*self.finals.values(), *(record for record in self.defaults.values() if record.id in wanted)]
        return [record for record in ended if record.status == "finished" and record.test is None]

    @property
    def begun(self) -> int:
        """The number of search trials that have ended, are running, or will run again."""
        under_way = [*self.running.values(), *self.again]
        return len(self.search) + sum(trial.role == "search" for trial in under_way)

    @property
    def free_number(self) -> int:
        """The lowest number that no search trial has: a lost record's, or the next one."""
        while self._first_open in self._ended_numbers:
            self._first_open += 1
        under_way = {p.number for p in (*self.running.values(), *self.again) if p.role == "search"}
        later = itertools.count(self._first_open)
        return next(number for number in later if number not in self._ended_numbers and number not in under_way)

    @property
    def due_again(self) -> list[Trial]:
        """The trials that run again. Search trials do not, once the search is cut and the cell has a result."""
        is_over = self.cut and self.best is not None
        return [trial for trial in self.again if trial.role != "search" or not is_over]

    @property
    def searched(self) -> bool:
        """True if the search is over."""
        under_way = [*self.running.values(), *self.due_again]
        return not any(p.role == "search" for p in under_way) and (len(self.search) >= self.target or self.cut)
