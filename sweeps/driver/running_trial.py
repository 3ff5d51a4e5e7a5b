"""A running trial: its note, its record, and its limits: GPU memory, the sweep's time budget.

`sweep --time-budget` bounds only the search; finals follow. `tune --time-budget` covers everything from the start of
the command to the kept model (`Resources.budget_began`). Cheap modes then come first, and a trial that would outlast
the budget stops, except the first trial of the cheapest cell: without it, the sweep would have no result.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import common_value
from meltpoint.adapters.training.epochs import best_epoch
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.driver_notes import RunningTrialNote
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import NOTHING_KNOWN, CellKey, Trial, TrialRecord
from meltpoint.sweeps.results.cost import gpu_seconds
from meltpoint.sweeps.search.cell_progress import CellProgress, trial_name
from meltpoint.sweeps.search.locked_test import note_spent_budget
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import declared_test_examples
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.outcome import OutOfMemory, TrialEvent, TrialOutcome, halved
from meltpoint.sweeps.worker.work_order import Order


class MemoryCeilings:
    """The limits of GPU memory that this command has learned, by cell.

    Attributes:
        ceilings: cell → kind of GPU → the largest rows × length to try there (`Order.ceilings`).
        plain_ceilings: the same without gradient checkpointing (`Order.plain_ceilings`).
        alone_from: cell → the smallest batch_size × max_pieces that did not fit a shared GPU; trials from this size get
            a whole one.
    """

    def __init__(self) -> None:
        self.ceilings: dict[CellKey, dict[str, int]] = defaultdict(dict)
        self.plain_ceilings: dict[CellKey, dict[str, int]] = defaultdict(dict)
        self.alone_from: dict[CellKey, int] = {}

    def applied(self, order: Order) -> Order:
        """An order within its cell's memory limits: with the ceilings, and a whole GPU if a share is too small."""
        alone = 0 < order.gpus < 1 and _size(order) >= self.alone_from.get(order.cell, math.inf)
        known = {"ceilings": dict(self.ceilings[order.cell]), "plain_ceilings": dict(self.plain_ceilings[order.cell])}
        return order.model_copy(update={**known, "gpus": 1.0 if alone else order.gpus})

    def learn(self, order: Order, lack: OutOfMemory) -> str:
        """Learn that an order did not fit; returns the next attempt in a few words."""
        if lack.together > 1:
            return "retrying it alone"
        if lack.is_shared:
            self.alone_from[order.cell] = min(_size(order), self.alone_from.get(order.cell, _size(order)))
            return "retrying it on a whole GPU"
        if lack.can_checkpoint:
            _lower(self.plain_ceilings[order.cell], lack.gpu, lack.rows * lack.length - 1)
            return "retrying with gradient checkpointing"
        rows = halved(lack.rows)
        _lower(self.ceilings[order.cell], lack.gpu, rows * lack.length)
        return f"retrying with {rows} of {order.setting['batch_size']} rows at a time and the same gradient"


def _lower(ceilings: dict[str, int], gpu: str, most: int) -> None:
    ceilings[gpu] = min(most, ceilings.get(gpu, most))


def _size(order: Order) -> int:
    """The product in a trial's setting that its memory grows with."""
    return int(common_value(order.setting, "batch_size")) * int(order.setting["max_pieces"])


OF_ORDER = (*Trial.model_fields, "head", "data_fingerprint", "documents_fingerprint", "encoder_fingerprint")
"""The fields that a record copies from its trial's order."""


def note_of(order: Order, began: float, latest: TrialEvent | None) -> RunningTrialNote:
    """A running trial's progress, for `status`.

    Args:
        began: when a worker picked it up, in seconds since 1970.
        latest: its worker's latest event.
    """
    note = RunningTrialNote(id=order.id, name=trial_name(order), began=began, metric=order.metric)
    if latest is None or not latest.percent or not latest.attempt.epochs:
        return note
    last = latest.attempt.epochs[-1]
    dev, epochs = last.dev[order.metric], round(100 * last.epoch / latest.percent)
    seen = {"epoch": last.epoch, "epochs": epochs, "dev": dev if math.isfinite(dev) else None}
    return note.model_copy(update=seen)


def record_of(
    order: Order, began: tuple[float, float], latest: TrialEvent | None, outcome: TrialOutcome
) -> TrialRecord:  # fmt: skip
    """The ledger's record of a trial that has ended; an interrupted trial gets none.

    Args:
        began: when a worker picked it up, in seconds since 1970 and on the monotonic clock.
        latest: its worker's latest event.
    """
    metric, event = order.metric, latest or TrialEvent(trial=order.id)
    attempt, seconds = event.attempt, event.seconds
    if outcome.cause in ("worker", "memory"):
        # The use between a worker's last report and its loss is unknown, and so is the total.
        attempt, seconds = attempt.model_copy(update=dict(NOTHING_KNOWN)), None
    best = best_epoch(attempt.epochs, metric, modes.get(order.mode).phases(order.setting)[-1].name)
    return TrialRecord(
        **{name: getattr(order, name) for name in OF_ORDER}, **dict(attempt),
        status=outcome.status,  # type: ignore[arg-type]
        cause=outcome.cause, error=outcome.error, metric=metric, dev=best.dev[metric] if best else None,
        dev_metrics=best.dev if best else {}, best_epoch=best.epoch if best else None, attempts=order.attempt + 1,
        code_version=code_version(), started_at=began[0],
        # By the worker's clock: a suspended driver hears of a trial's end only when it runs again.
        seconds=time.monotonic() - began[1] if seconds is None else seconds,
    )  # fmt: skip


def write_record(ledger: Ledger, tracker: Tracker, record: TrialRecord) -> TrialRecord:
    """Write a record with its MLflow run's id, if MLflow has reported it; `run.note_runs` adds it later otherwise.

    Returns:
        The record with that id.
    """
    written = record.model_copy(update={"mlflow_run_id": tracker.run_of(record.id) or record.mlflow_run_id})
    ledger.write(written)
    return written


FINALS_SLACK = 1.2
"""Reserved for finals, as a multiple of their expected seconds: a final begins only if all of it fits."""
CLOSING_SECONDS = 20.0
"""Reserved for the report, the recommended model and the start of the process that scores test."""


class TimeBudget:
    """The time budget of one command, and the GPU-hours of the sweep; without these options it bounds nothing.

    Args:
        clock: monotonic seconds.

    Attributes:
        covers_all: whether finals, test and report must also fit.
        deadline: `clock()` at which the search (or everything) ends; set when the first trial is handed out, None
            before and without a budget.
    """

    def __init__(
        self, planner: Planner, ledger: Ledger, progress: Progress, resources: Resources, clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self.planner, self.ledger, self.progress, self.clock = planner, ledger, progress, clock
        self.cells = planner.cells.values()
        self.seconds, self.began = resources.time_budget, resources.budget_began
        self.gpu_hours, self._ended, self._spent_hours = resources.max_gpu_hours, 0, 0.0
        self.covers_all = self.seconds is not None and self.began is not None
        self.is_on_cluster = resources.address is not None
        self.deadline: float | None = None
        planner.cheapest_first = self.covers_all

    @property
    def has_left_trials_out(self) -> bool:
        """True if a budget that covers all has ended the search."""
        return self.covers_all and self.planner.closed_for_search

    def begin(self) -> None:
        """Start the clock, unless it already runs."""
        if self.deadline is not None or self.seconds is None:
            return
        self.deadline = end = (self.clock() if self.began is None else self.began) + self.seconds
        if self.covers_all:
            self.progress.remaining.most = lambda: max(0.0, end - self.clock())

    def watch(self) -> None:
        """End the search, and leave out finals, once no time or GPU-hours are left for them."""
        if self.gpu_hours is not None and self._has_spent_gpu_hours(self.gpu_hours):
            self._end_search(f"{self.gpu_hours:g} GPU-hours are")
        if self.deadline is None:
            return
        if self.covers_all:
            for cell in self.cells:
                cell.finals_cut = self._left(cell) < self.progress.remaining.seconds_of_trial(cell.cell.key)
        has_begun = any(cell.search or cell.running for cell in self.cells)
        if self._left() <= self._of_finals() and (has_begun or not self.covers_all):  # one trial runs in any case
            self._end_search("time budget is")

    def _end_search(self, spent: str) -> None:
        if not self.planner.closed_for_search:
            searching = [cell for cell in self.cells if not cell.cut]
            self.planner.close_search()
            if any(cell.cut for cell in searching):
                note_spent_budget(self.ledger, self.seconds or 0.0)
                self.progress.say(f"The {spent} spent: no new search trial begins; finals follow.")

    def _has_spent_gpu_hours(self, most: float) -> bool:
        """True if the ended search trials, of earlier commands too, took so many GPU-hours."""
        ended = sum(len(cell.search) for cell in self.cells)
        if ended > self._ended:  # not at each event: a large sweep has a hundred thousand records
            self._ended = ended
            searched = [record for cell in self.cells for record in cell.search.values()]
            self._spent_hours = gpu_seconds(record for record in searched if record.answered_by is None) / 3600
        return self._spent_hours >= most

    def ends_at(self, trial: Trial) -> float | None:
        """The time at which a trial must stop, in seconds since 1970; None if unbounded, or needed for any result."""
        if self.deadline is None or not self.covers_all or self.is_on_cluster:  # whose machines' clocks may differ
            return None
        progress = self.planner.cells[trial.cell]
        if trial.role == "search":
            is_cheapest = progress.work == min(cell.work for cell in self.cells)
            is_needed = is_cheapest and not self._has_result()
        else:
            is_needed = not progress.finals
        return None if is_needed else time.time() + self._left()

    def stops(self, order: Order, latest: TrialEvent | None) -> bool:
        """True if a search trial stops at this epoch because a finished trial can take its place.

        If the budget bounds only the search, the trial's own cell needs a finished one. If it covers everything, one
        of any cell will do, and a trial that would outlast the budget stops at once and frees its worker.
        """
        if order.role != "search" or self.deadline is None:
            return False
        if not self.covers_all or self.planner.cells[order.cell].best is not None:
            return self.planner.closed_for_search and self.planner.cells[order.cell].best is not None
        if order.ends_at is None and not self._has_result():
            return False
        return self.planner.closed_for_search or seconds_to_go(latest) > self._left()

    def _has_result(self) -> bool:
        return any(cell.best is not None for cell in self.cells)

    def _left(self, uncut: CellProgress | None = None) -> float:
        """The seconds left for training; if the budget covers everything, less the time for test and the report.

        Args:
            uncut: a cell of which all finals count, also if they are cut.
        """
        assert self.deadline is not None, "called once the clock runs"
        return self.deadline - self.clock() - (self._of_closing(uncut) if self.covers_all else 0.0)

    def _of_finals(self) -> float:
        """The seconds that finals will take; 0 if only the search is bounded."""
        with_result = [cell for cell in self.cells if cell.best is not None] if self.covers_all else []
        finals = self.progress.remaining.estimate(with_result, is_searching=False) if with_result else None
        return FINALS_SLACK * finals.seconds if finals else 0.0

    def _of_closing(self, uncut: CellProgress | None) -> float:
        """The seconds that test scores and the report will take.

        A test row costs as much as a dev row did in a first epoch, in the first trial of which a frozen encoder also
        reads it.
        """
        seconds = CLOSING_SECONDS
        row_seconds: dict[tuple[str, str], float] = {}
        for cell in self.cells:
            key = cell.cell.encoder, cell.cell.task_name
            each = [one.epochs[0].dev_seconds * one.trained_together for one in cell.search.values() if one.epochs]
            slowest = max(each, default=0.0) / cell.cell.epoch_dev_examples
            row_seconds[key] = max(row_seconds.get(key, 0.0), slowest)
        for cell in self.cells:
            if cell.best is None:
                continue
            rows = declared_test_examples(cell.cell) or cell.cell.train_examples + cell.cell.dev_examples
            is_whole = cell is uncut or not cell.finals_cut
            passes = cell.cell.seeds if modes.get(cell.cell.mode).trains_encoder and is_whole else 1
            seconds += passes * rows * row_seconds[cell.cell.encoder, cell.cell.task_name]
        return seconds


def seconds_to_go(latest: TrialEvent | None) -> float:
    """The seconds that a trial needs for the rest of its schedule, at its latest epoch's pace; 0 while unknown.

    The first epoch on a frozen encoder says nothing: it may include the encoder's pass over the data.
    """
    if latest is None or not latest.percent:
        return 0.0
    epochs = latest.attempt.epochs
    if len(epochs) == 1 and epochs[0].encoder_frozen:
        return 0.0
    own = [epoch.train_seconds + epoch.dev_seconds for epoch in epochs]
    pace = len(own) * own[-1] / sum(own) if sum(own) else 1.0
    return pace * (latest.seconds or 0.0) * (100 / latest.percent - 1)
