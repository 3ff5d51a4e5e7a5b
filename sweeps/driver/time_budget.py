"""The time budget of a running sweep: when its search ends, which trials stop, which finals are left out.

`sweep --time-budget` bounds the search alone; its finals follow. `tune --time-budget` covers everything from the start
of the command to the kept model (`Resources.budget_began`): then cheap modes begin, and a trial that would outlast the
budget stops wherever it is, except the first trial of the cheapest cell, without which there would be no result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from meltpoint.adapters import modes
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.driver.running_trial import RunningTrial
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.cell_progress import CellProgress, Proposal
from meltpoint.sweeps.search.closing import note_spent_budget
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import declared_test_examples
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker.work_order import Order

CLOSING_SECONDS = 20.0
"""Kept for the report, the recommended model and the start of the process that scores test."""


class TimeBudget:
    """The time budget of one command; without `--time-budget` it bounds nothing.

    Args:
        clock: monotonic seconds.

    Attributes:
        covers_all: whether finals, test and report have to fit, too.
        deadline: `clock()` at which the search (or everything) ends; set when the first trial is handed out, None
            before and without a budget.
    """

    def __init__(
        self, planner: Planner, ledger: Ledger, progress: Progress, resources: Resources, clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self.planner, self.ledger, self.progress, self.clock = planner, ledger, progress, clock
        self.seconds, self.began = resources.time_budget, resources.budget_began
        self.covers_all = self.seconds is not None and self.began is not None
        self.deadline: float | None = None
        planner.cheapest_first = self.covers_all

    @property
    def cells(self) -> Collection[CellProgress]:
        """The progress of every cell."""
        return self.planner.cells.values()

    @property
    def has_left_trials_out(self) -> bool:
        """True if a budget that covers all has ended the search."""
        return self.covers_all and self.planner.closed_for_search

    def begin(self) -> None:
        """Count from now on, unless it counts already."""
        if self.deadline is not None or self.seconds is None:
            return
        self.deadline = end = (self.clock() if self.began is None else self.began) + self.seconds
        if self.covers_all:
            self.progress.remaining.most = lambda: max(0.0, end - self.clock())

    def watch(self) -> None:
        """End the search, and leave out finals, once there is no time for them."""
        if self.deadline is None:
            return
        if self.covers_all:
            for cell in self.cells:
                cell.finals_cut = self._left() < self.progress.remaining.seconds_of_trial(cell.cell.key)
        if not self.planner.closed_for_search and self._left() <= self._of_finals():
            self.planner.close_search()
            note_spent_budget(self.ledger, self.seconds or 0.0)
            self.progress.say("The time budget is spent: no new search trial begins; finals follow.")

    def ends_at(self, proposal: Proposal) -> float | None:
        """The time at which a trial stops, in seconds since 1970; None where no result would be left without it."""
        if self.deadline is None or not self.covers_all:
            return None
        progress = self.planner.cells[proposal.cell.key]
        if proposal.role == "search":
            is_cheapest = progress.work == min(cell.work for cell in self.cells)
            is_needed = is_cheapest and not self._has_result()
        else:
            is_needed = not progress.finals
        return None if is_needed else time.time() + self._left()

    def stops(self, order: Order, trial: RunningTrial | None) -> bool:
        """True if a search trial ends at this epoch, because there is a finished trial to continue with.

        Where only the search is bounded, its own cell has to have one. Where all is, any cell's will do, and a trial
        that would outlast the budget ends at once and leaves its place to others.
        """
        if order.role != "search" or self.deadline is None:
            return False
        if not self.covers_all or self.planner.cells[order.cell].best is not None:
            return self.planner.closed_for_search and self.planner.cells[order.cell].best is not None
        if order.ends_at is None and not self._has_result():
            return False
        to_go = 0.0 if trial is None or not trial.percent else (trial.seconds or 0.0) * (100 / trial.percent - 1)
        return self.planner.closed_for_search or to_go > self._left()

    def _has_result(self) -> bool:
        return any(cell.best is not None for cell in self.cells)

    def _left(self) -> float:
        """The seconds that training may still take: where all is covered, without those of test and the report."""
        assert self.deadline is not None, "asked once it counts"
        return self.deadline - self.clock() - (self._of_closing() if self.covers_all else 0.0)

    def _of_finals(self) -> float:
        """The seconds that finals will take; 0 where only the search is bounded."""
        with_result = [cell for cell in self.cells if cell.best is not None] if self.covers_all else []
        finals = self.progress.remaining.estimate(with_result, is_searching=False) if with_result else None
        return finals.seconds if finals else 0.0

    def _of_closing(self) -> float:
        """The seconds that test scores and the report will take.

        A row of test costs as much as one of dev did in the first epoch, in which a frozen encoder reads it, too.
        """
        seconds = CLOSING_SECONDS
        for cell in self.cells:
            if cell.best is None:
                continue
            rows = declared_test_examples(cell.cell) or cell.cell.train_examples + cell.cell.dev_examples
            passes = cell.cell.seeds if modes.get(cell.cell.mode).trains_encoder and not cell.finals_cut else 1
            row_seconds = cell.best.epochs[0].dev_seconds * cell.best.trained_together / cell.cell.epoch_dev_examples
            seconds += passes * rows * row_seconds
        return seconds
