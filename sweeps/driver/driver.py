"""The driver of a running sweep: hands out orders, and follows each trial from its order to its end."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Mapping

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.driver.finals import Finals
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.driver.running_trial import MemoryCeilings, TimeBudget, note_of, record_of, write_record
from meltpoint.sweeps.ledger.driver_notes import RunningTrials, note
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import FINAL_ROLES, CellKey, Trial
from meltpoint.sweeps.machine.signals import raise_requested
from meltpoint.sweeps.on_ray.cluster_capacity import ClusterShare
from meltpoint.sweeps.on_ray.workers import Scorer
from meltpoint.sweeps.search.cell_progress import searches_layers
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.storage.files import cache_folder
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.outcome import (
    INTERRUPTED,
    RETRIES,
    TOGETHER_AFTER,
    TrialEvent,
    TrialOutcome,
)
from meltpoint.sweeps.worker.work_order import Order, WorkOrder

NOTE_SECONDS = 20.0
"""Interval between notes of the running trials."""


class SweepDriver:
    """The state of the one process that drives a sweep, and its work while Ray's workers train.

    Attributes:
        budget: when the search ends, and which trials stop.
        is_done: whether every trial was trained; False after Ray returns means Ctrl-C.
        slots: number of workers, once Ray reports it; follows the cluster and the sweep's share of it.
        share: the sweep's share of the cluster; None until Ray reports it.
        orders: first trial of each order that Ray has → whether a worker has picked the order up.
        waiting: trials handed to Ray that no worker has picked up.
        running: trials that a worker has picked up.
        began: trial → when it was handed out, then picked up: in seconds since 1970, and on the monotonic clock.
        latest: trial → its worker's latest event.
        losses: trial → number of times it was lost.
        shrinks: trial → number of times it did not fit a GPU's memory; not counted as a loss either.
        handed_out: trial → number of times it was handed out.
        shares: cell → the share of a GPU that its trials get, once measured; only with `--gpus-per-trial auto`.
        failure: an error in the driver (such as a full disk), which Tune would bury in its own text.
        stop: the request or interrupt that ended the sweep early; None if none did.
        running_noted_at: `clock()` at the last note of the running trials.
    """

    def __init__(
        self, planner: Planner, ledger: Ledger, tracker: Tracker, progress: Progress, scorer: Scorer,
        resources: Resources, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.planner, self.ledger, self.tracker, self.progress = planner, ledger, tracker, progress
        self.resources, self.clock = resources, clock
        self.finals = Finals(planner, ledger, tracker, progress, scorer, self._order)
        self.memory = MemoryCeilings()
        self.budget = TimeBudget(planner, ledger, progress, resources, lambda: self.clock())
        self.waiting: dict[str, Order] = {}
        self.running: dict[str, Order] = {}
        self.began: dict[str, tuple[float, float]] = {}
        self.latest: dict[str, TrialEvent] = {}
        self.orders: dict[str, bool] = {}
        self.losses: Counter[str] = Counter()
        self.shrinks: Counter[str] = Counter()
        self.handed_out: Counter[str] = Counter()
        self.is_done = False
        self.slots = 1
        self.share: ClusterShare | None = None
        self.shares: Mapping[CellKey, float] = {}
        self.failure: Exception | None = None
        self.stop: KeyboardInterrupt | None = None
        self.running_noted_at = float("-inf")

    # A trial's path: handed out, picked up by a worker, its epochs, its end.

    def next_order(self) -> WorkOrder | str:
        """The planner's next trials as an order; "wait", or "done" once nothing is left to train.

        One order waits for each idle worker, and one if all are busy: the later a trial is proposed, the more results
        its searcher can use.
        """
        self.budget.begin()
        raise_requested()
        self.budget.watch()
        if not self._has_place():  # called after each event, so the slower checks come later
            return "wait"
        self.finals.answer()
        proposals = self.planner.next_together(self.slots)
        if isinstance(proposals, str):
            self.is_done = proposals == "done"
            return proposals
        work = tuple(self._hand_out(trial) for trial in proposals)
        self.orders[work[0].id] = False
        return work

    def _has_place(self) -> bool:
        """True if another order may be handed to Ray."""
        self._follow_cluster()
        if self.share is not None and self.share.part.is_limited:
            return len(self.orders) < self.share.part.places
        most = None if self.share is None else self.share.part.most
        if most is not None and len(self.orders) >= most:
            return False  # an order that waits would make a growing cluster grow
        running = sum(self.orders.values())
        return len(self.orders) - running < max(1, self.slots - running)

    def has_enough(self) -> bool:
        """True if idle workers would only take the places that `--max-workers` leaves to others."""
        part = self.share.part if self.share is not None else None
        return part is not None and part.is_limited and len(self.orders) >= part.places

    def _follow_cluster(self) -> None:
        """Track the nodes that join or leave the cluster."""
        if self.share is None:
            return
        before, part = self.share.part, self.share.now()
        self.slots = max(1, part.places)
        if part != before:
            self.note_part()
        if part.news != before.news:
            self.progress.say(f"The sweep may use {part}.")

    def note_part(self) -> None:
        """Record the sweep's part of the cluster for `status`."""
        if self.share is not None and self.ledger.attempt:
            note(self.ledger.drivers, self.ledger.attempt, self.share.part)

    def _hand_out(self, trial: Trial) -> Order:
        """The order for a trial that starts now."""
        numbers = {
            "attempt": self.losses[trial.id] + self.shrinks[trial.id],
            "handed_out": self.handed_out[trial.id],
            "ends_at": self.budget.ends_at(trial),
        }
        self.handed_out[trial.id] += 1
        order = self._order(trial).model_copy(update=numbers)
        self.ledger.start(order.as_json())
        if trial.role in FINAL_ROLES:
            self.finals.scorer.prepare(order)
        self.waiting[order.id], self.began[order.id] = order, (time.time(), time.monotonic())
        return order

    def on_start(self, work: WorkOrder) -> None:
        """Mark an order as picked up by a worker."""
        self.orders[work[0].id] = True
        now = time.time(), time.monotonic()  # one time for all: the ledger then shows which trials shared a worker
        for order in work:
            self.running[order.id] = self.waiting.pop(order.id)
            self.began[order.id] = now
            self.tracker.begin(order, code_version(), now[0])
            self.progress.on_start(order)

    def on_event(self, event: TrialEvent) -> None:
        """Handle a worker's event about one trial."""
        order = self.running.get(event.trial)
        if order is None:
            return
        before, self.latest[order.id] = self.latest.get(order.id), event
        if event.attempt.hardware is not None and (before is None or before.attempt.hardware is None):
            self.progress.resumed(order, event.attempt.resumed_after_epochs, event.attempt.storage_notes)
        if event.epoch is not None:
            self.tracker.epoch(order.id, event.epoch)
            self.progress.epoch(order, order.metric, event.epoch)
        if event.outcome is not None:
            self.on_end(order, event.outcome)

    def on_order_end(self, work: WorkOrder, outcome: TrialOutcome) -> None:
        """Handle an order that left Ray, perhaps before a worker picked it up.

        Args:
            outcome: for those of its trials that have no outcome yet.
        """
        self.orders.pop(work[0].id, None)
        for order in work:
            self.on_end(order, outcome)

    def interrupted(self) -> None:
        """Drop the running trials after Ctrl-C or an error; because of their start notes, they run again on resume."""
        for order in [*self.running.values()]:
            self.on_end(order, INTERRUPTED)

    def on_end(self, order: Order, outcome: TrialOutcome) -> None:
        """End one attempt at a trial: every ending comes through here (`TrialOutcome` lists them).

        Raises:
            OSError: a worker found no disk space; the trial runs again on resume.
        """
        if (self.waiting.get(order.id) or self.running.get(order.id)) != order:  # it has ended, and may run again
            return
        trial, event = order.id, self.latest.get(order.id)
        has_result = event is not None and bool(event.attempt.epochs) and order.role == "search"
        if outcome.status == "interrupted" or (outcome.status == "stopped" and not has_result):
            self.planner.abandon(trial)
            self.tracker.abandon(trial)
        elif outcome.status == "restarted":
            self._retry(order, str(outcome.error), alone=False)
        elif outcome.out_of_memory is not None:
            self.shrinks[trial] += 1
            self._retry(order, f"{outcome.error}; {self.memory.learn(order, outcome.out_of_memory)}", alone=True)
        elif outcome.cause == "disk":
            raise OSError(errno.ENOSPC, str(outcome.error), str(self.ledger.folder))
        elif outcome.cause is not None and self.losses[trial] < (retries := RETRIES[outcome.cause]):
            self.losses[trial] = count = self.losses[trial] + 1
            alone = outcome.cause == "memory" or count > TOGETHER_AFTER
            self._retry(order, f"{outcome.error}; retry {count} of {retries}", alone)
        else:
            self._keep(order, outcome)
        for kept in (self.waiting, self.running, self.began, self.latest):
            kept.pop(trial, None)

    def _retry(self, order: Order, why: str, alone: bool) -> None:
        """Run a trial again that ended through no fault of its setting."""
        self.tracker.abandon(order.id)
        self.progress.lost(order, why)
        self.planner.retry(order, alone=alone)

    def _keep(self, order: Order, outcome: TrialOutcome) -> None:
        """Write the trial's record, then notify the study, MLflow and the screen."""
        record = record_of(order, self.began[order.id], self.latest.get(order.id), outcome)
        kept = write_record(self.ledger, self.tracker, record)
        progress = self.planner.cells[record.cell]
        before = progress.best
        ended = self.planner.end(kept)
        self.tracker.end(kept)
        self.progress.ended(record)
        for one in ended:
            self.progress.say(f"{'.'.join(one.cell.key)}: {one.early_end}.")
        self.finals.drop_losers(progress, [record] if before is None else [record, before])

    # Ray's other calls.

    def wants_stop(self, work: WorkOrder) -> bool:
        """True if the time budget ends a running order at its next epoch."""
        return self.budget.stops(work[0], self.latest.get(work[0].id))

    def begins_too_late(self, work: WorkOrder) -> bool:
        """True if a search trial begins after a budget has ended the search, and its cell has a result."""
        is_over = self.planner.closed_for_search and work[0].role == "search"
        return is_over and self.planner.cells[work[0].cell].best is not None

    def early_stopping(self, work: WorkOrder) -> EarlyStopping | None:
        """The rule of the order's cell."""
        return self.planner.cells[work[0].cell].cell.space.early_stopping

    def tick(self) -> None:
        """Do the work due between events: reused finals, new scores, the time budget, the screen."""
        raise_requested()
        self.budget.watch()
        self._follow_cluster()
        self._note_running()
        self.finals.answer()
        self.score(timeout_seconds=0.0)

    def _note_running(self) -> None:
        """Record the running trials for `status`, every `NOTE_SECONDS`."""
        if self.ledger.attempt and self.clock() - self.running_noted_at >= NOTE_SECONDS:
            trials = tuple(
                note_of(order, self.began[order.id][0], self.latest.get(order.id)) for order in self.running.values()
            )
            running = RunningTrials(noted_at=time.time(), trials=trials)
            note(self.ledger.drivers, self.ledger.attempt, running)
            self.running_noted_at = self.clock()

    def score(self, timeout_seconds: float) -> bool:
        """Submit finalists for scoring and keep the scores that arrived; True while any is pending."""
        is_out = self.finals.score(timeout_seconds)
        self.progress.refresh()
        return is_out

    # Orders.

    def _order(self, trial: Trial) -> Order:
        """The order for a trial, on its cell's share of a GPU and within its cell's memory limits."""
        gpus = self.resources.gpus_per_trial
        return self.memory.applied(self.order(trial, self.shares[trial.cell] if gpus == "auto" else gpus))

    def order(self, trial: Trial, gpus: float) -> Order:
        """The order for a trial on `gpus` GPUs."""
        cell = self.planner.cells[trial.cell].cell
        return Order(
            **dict(Trial.of(trial)), encoder_word=cell.encoder_word, head=cell.head, data=cell.data,
            metric=cell.metric, data_fingerprint=cell.data_fingerprint,
            documents_fingerprint=cell.documents_fingerprint, encoder_fingerprint=cell.encoder_fingerprint,
            checkpoint=str(self.ledger.checkpoint(trial.id)), cpus=self.resources.cpus_per_trial, gpus=gpus,
            cache=cache_folder(self.ledger.folder.parent, self.resources.cache_dir),
            cache_bytes=self.resources.cache_budget, cache_overflow=self.resources.cache_overflow,
            caches_all_layers=searches_layers(cell),
            code_version="" if self.resources.address is None else code_version(),
            driver_attempt=self.ledger.attempt, saving_share=self.resources.saving_share,
        )  # fmt: skip
