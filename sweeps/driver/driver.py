"""The driver's side of a running sweep: hands out orders, keeps the ledger, MLflow, the checkpoints and the clock."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meltpoint.adapters import modes
from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.ledger import Ledger, cache_folder
from meltpoint.sweeps.ledger.losses import RETRIES, TOGETHER_AFTER, Loss
from meltpoint.sweeps.ledger.records import Cause, CellKey, EpochRecord, HardwareRecord, TrialRecord
from meltpoint.sweeps.search.closing import note_spent_budget
from meltpoint.sweeps.search.planner import CellProgress, Planner, Proposal
from meltpoint.sweeps.search.selection import best_final, finals_of
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.finalist_scoring import Scorer
from meltpoint.sweeps.worker.work_order import Order, WorkOrder


@dataclass
class RunningTrial:
    """A trial under way: what its worker has said so far."""

    order: Order
    proposal: Proposal
    began: float
    epochs: list[EpochRecord] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class SweepConductor:
    """One process drives a sweep; this is what it knows and does while Ray's workers train.

    Attributes:
        deadline: `clock()` at which the search ends; set when the first trial is handed out, None before and without
            a budget.
        is_done: whether every trial was trained; False after Ray returns means Ctrl-C.
        slots: how many workers there are, once Ray has said so.
        orders: the orders that lie at Ray, by their first trial → whether a worker took them up.
        losses: trial → how many times it was lost.
        restored: finalists that were trained again because their weights were damaged.
        without_run: the records that were written before MLflow had said which run is their trial's, by trial.
        shares: cell → the share of a GPU that its trials get, once measured; only with `--gpus-per-trial auto`.
    """

    def __init__(
        self, planner: Planner, ledger: Ledger, tracker: Tracker, progress: Progress, scorer: Scorer,
        resources: Resources, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.planner, self.ledger, self.tracker, self.progress, self.scorer = planner, ledger, tracker, progress, scorer
        self.resources, self.clock = resources, clock
        self.deadline: float | None = None
        self.live: dict[str, RunningTrial] = {}
        self.waiting: dict[str, RunningTrial] = {}  # handed to Ray, not yet taken up by a worker
        self.orders: dict[str, bool] = {}
        self.losses: Counter[str] = Counter()
        self.restored: set[str] = set()
        self.without_run: dict[str, TrialRecord] = {}
        self.is_done = False
        self.slots = 1
        self.shares: Mapping[CellKey, float] = {}
        self.failure: Exception | None = None

    # What Ray asks.

    def next_order(self) -> WorkOrder | str:
        """The planner's next trials as an order; "wait", or "done" once nothing is left to train.

        One order waits for each worker that has none, and one where all have: the later a trial is asked for, the more
        its searcher knows.
        """
        if self.deadline is None and self.resources.time_budget_seconds is not None:
            self.deadline = self.clock() + self.resources.time_budget_seconds
        self._watch_clock()
        self._answer_finals()
        if sum(not taken for taken in self.orders.values()) >= max(1, self.slots - sum(self.orders.values())):
            return "wait"
        proposals = self.planner.next_together(self.slots, mixes_seeds=self.resources.gpus != 0)
        if isinstance(proposals, str):
            self.is_done = proposals == "done"
            if self.resources.address is None:
                self.scorer.prepare()
            return proposals
        work = WorkOrder(orders=tuple(self._take_up(proposal) for proposal in proposals))
        self.orders[work.first.id] = False
        return work

    def _take_up(self, proposal: Proposal) -> Order:
        order = self.order(proposal, self._gpus(proposal.cell))
        order = order.model_copy(update={"attempt": self.losses[proposal.id]})
        self.ledger.start(order.as_json())
        self.waiting[order.id] = RunningTrial(order, proposal, time.time())
        return order

    def on_start(self, work: WorkOrder) -> None:
        """A worker took the order up."""
        self.orders[work.first.id] = True
        now = time.time()  # the same for all: so a reader of the ledger knows which trials had one worker
        for order in work.orders:
            live = self.waiting.pop(order.id)
            live.began = now
            self.tracker.begin(live.proposal, code_version())
            self.live[order.id] = live
            self.progress.on_start(live.proposal)

    def on_event(self, event: dict[str, Any]) -> None:
        """A worker's event about one trial: ready, epoch or outcome."""
        live = self.live.get(event["trial"])
        if live is None:
            return
        if event["event"] == "ready":
            live.ready = event["body"]
        elif event["event"] == "epoch":
            epoch = EpochRecord.model_validate(event["body"])
            live.epochs.append(epoch)
            self.tracker.epoch(live.order.id, epoch)
            self.progress.epoch(live.proposal, epoch)
        else:
            self._hear_outcome(live, event["body"])

    def _hear_outcome(self, live: RunningTrial, body: dict[str, Any]) -> None:
        live.notes += body["notes"]
        if body["status"] == "failed":
            self._lose(live, Loss(body["cause"], body["error"]))
        else:
            self._keep(live, body["status"], error=body["error"], best_epoch=body["best_epoch"])

    def on_lost(self, work: WorkOrder, loss: Loss | None) -> None:
        """An order left Ray: those of its trials that have no outcome were stopped by a rule or lost with their worker.

        Its worker may have died before it took the order up: then the trials are still waiting.
        """
        self.orders.pop(work.first.id, None)
        for order in work.orders:
            live = self.waiting.pop(order.id, None) or self.live.get(order.id)
            if live is None or live.order != order:  # it has its outcome, or runs again already
                continue
            if loss is not None:
                self._lose(live, loss)
            else:
                self._stop(live)

    def _stop(self, live: RunningTrial) -> None:
        """A rule stopped a trial."""
        if live.epochs:
            why = "stopped by the time budget" if self._is_over(live.order) else "stopped early: its rung was lost"
            self._keep(live, "stopped", error=why)
        else:
            self._abandon(live)

    def _lose(self, live: RunningTrial, loss: Loss) -> None:
        """A trial has no result: it is tried again where the loss is no fault of its setting's, else it failed."""
        self.losses[live.order.id] += 1
        count, retries = self.losses[live.order.id], RETRIES[loss.cause]
        if count > retries:
            if loss.cause == "disk":
                raise OSError(errno.ENOSPC, loss.error, live.order.checkpoint)
            self._keep(live, "failed", error=loss.error, cause=loss.cause)
            return
        self.live.pop(live.order.id, None)
        self.tracker.abandon(live.order.id)
        self.progress.lost(live.proposal, f"{loss.error}; it is tried again ({count} of {retries})")
        self.planner.retry(live.proposal, alone=loss.cause == "memory" or count > TOGETHER_AFTER)

    def wants_stop(self, work: WorkOrder) -> bool:
        """The time budget ends running search trials at their next epoch, once their cell has one that finished."""
        return self._is_over(work.first)

    def _is_over(self, order: Order) -> bool:
        spent = order.role == "search" and self.planner.closed_for_search
        return spent and self.planner.cells[order.cell].best is not None

    def early_stopping(self, work: WorkOrder) -> EarlyStopping | None:
        """The rule of the order's cell."""
        return self.planner.cells[work.first.cell].cell.space.early_stopping

    def tick(self) -> None:
        """Between events: finals that are answered, runs and scores that came in, the clock, the screen."""
        self._watch_clock()
        self._answer_finals()
        self._complete_records()
        self.score(timeout_seconds=0.0)

    def score(self, timeout_seconds: float) -> bool:
        """Send finalists to be scored and keep the scores that came in; whether any is still out."""
        self._score_finalists()
        for record in self.scorer.collect(timeout_seconds):
            self._replace(record)
        while self.scorer.damaged:
            self._train_again(*self.scorer.damaged.pop())
        self.progress.refresh()
        return bool(self.scorer.pending)

    def _train_again(self, final: TrialRecord, why: str) -> None:
        """A finalist's weights are not those of its record: it is trained again, once a command, and then scored."""
        if final.id in self.restored:
            self.scorer.troubles[final.id] = f"{why}, after it was trained again"
            self.scorer.submitted.add(final.id)
            return
        self.restored.add(final.id)
        self.ledger.drop_checkpoint(final.id)
        self.progress.lost(self.planner.retrain(final), f"{why}; it is trained again")

    # What it does.

    def interrupted(self) -> None:
        """Ctrl-C: let go of what runs; the started notes make it run again."""
        for live in [*self.live.values()]:
            self._abandon(live)

    def _abandon(self, live: RunningTrial) -> None:
        self.live.pop(live.order.id, None)
        self.planner.abandon(live.order.id)
        self.tracker.abandon(live.order.id)

    def order(self, proposal: Proposal, gpus: float) -> Order:
        """What a worker is told of a trial that gets so many GPUs."""
        cell = proposal.cell
        return Order(
            id=proposal.id, number=proposal.number, role=proposal.role, encoder=cell.encoder, mode=cell.mode,
            task=cell.task_name, head=cell.head, variant=cell.variant, seed=proposal.seed, setting=proposal.setting,
            data=cell.data, metric=cell.metric, data_fingerprint=cell.data_fingerprint,
            documents_fingerprint=cell.documents_fingerprint, encoder_fingerprint=cell.encoder_fingerprint,
            checkpoint=str(self.ledger.checkpoint(proposal.id)), cpus=self.resources.cpus, gpus=gpus,
            cache=str(cache_folder(self.ledger.folder.parent)), cache_bytes=self.resources.cache_bytes,
            cache_overflow=self.resources.cache_overflow,
        )  # fmt: skip

    def _gpus(self, cell: OpenCell) -> float:
        gpus = self.resources.gpus
        return self.shares[cell.key] if gpus == "auto" else gpus

    def _keep(
        self,
        live: RunningTrial,
        status: str,
        error: str | None,
        best_epoch: int | None = None,
        cause: Cause | None = None,
    ) -> None:
        """Write the trial's record, then let the study, MLflow and the screen know."""
        record = self._record(live, status, error, best_epoch).model_copy(update={"cause": cause})
        self._write(record)
        self.live.pop(record.id, None)
        progress = self.planner.cells[record.cell]
        before = progress.best
        self.planner.end(record)
        self.tracker.end(record)
        self.progress.ended(record)
        self._drop_losers(progress, [record] if before is None else [record, before])

    def _write(self, record: TrialRecord) -> None:
        """Write a record with its MLflow run's id, or without one while MLflow has not said it."""
        run = self.tracker.run_of(record.id) or record.mlflow_run_id
        record = record.model_copy(update={"mlflow_run_id": run})
        if run is None:
            self.without_run[record.id] = record
        else:
            self.without_run.pop(record.id, None)
        self.ledger.write(record)

    def _complete_records(self) -> None:
        """Write the records again whose runs are known now; what is left at the sweep's end is `run.note_runs`' part.

        Trials begin in MLflow in their order, so while the oldest of these has no run, the others will not have one.
        """
        while (record := next(iter(self.without_run.values()), None)) and self.tracker.run_of(record.id):
            self._write(record)

    def _record(self, live: RunningTrial, status: str, error: str | None, best_epoch: int | None) -> TrialRecord:
        order, task = live.order, live.proposal.cell.task
        best = next((epoch for epoch in live.epochs if epoch.epoch == best_epoch), None)
        if best is None and live.epochs:
            best = max(live.epochs, key=lambda epoch: (epoch.dev[task.metric], -epoch.epoch))
        return TrialRecord(
            id=order.id, number=order.number, encoder=order.encoder, mode=order.mode, task=order.task, head=order.head,
            variant=order.variant, role=order.role, seed=order.seed, setting=order.setting,
            status=status, metric=task.metric,  # type: ignore[arg-type]
            dev=best.dev[task.metric] if best else None, dev_metrics=best.dev if best else {},
            best_epoch=best.epoch if best else None, epochs=live.epochs, error=error,
            hardware=HardwareRecord(**live.ready["hardware"]) if live.ready else None, attempts=order.attempt + 1,
            input_notes=[*live.ready.get("input_notes", []), *live.notes], data_fingerprint=order.data_fingerprint,
            documents_fingerprint=order.documents_fingerprint, encoder_fingerprint=order.encoder_fingerprint,
            code_version=code_version(), started_at=live.began, seconds=time.time() - live.began,
            trained_together=live.ready.get("trained_together", 1), task_parameters=live.ready.get("task_parameters"),
        )  # fmt: skip

    def _watch_clock(self) -> None:
        if self.deadline is not None and self.clock() >= self.deadline and not self.planner.closed_for_search:
            self.planner.close_search()
            note_spent_budget(self.ledger, self.resources.time_budget_seconds or 0.0)
            self.progress.say("The time budget is spent: no new search trial begins; finals follow.")

    def _answer_finals(self) -> None:
        """A final with the search's own seed is the search trial itself: the same run, so it is not run twice."""
        for progress in self.planner.cells.values():
            for proposal in self.planner.missing_finals(progress):
                source = self.planner.answer(progress, proposal)
                if source is not None and self.ledger.checkpoint(source.id).exists():
                    self._answer(proposal, source)

    def _answer(self, proposal: Proposal, source: TrialRecord) -> None:
        self.tracker.begin(proposal, source.code_version)
        for epoch in source.epochs:
            self.tracker.epoch(proposal.id, epoch)
        self.ledger.checkpoint(source.id).replace(self.ledger.checkpoint(proposal.id))
        changes = {"id": proposal.id, "role": "final", "number": proposal.number, "answered_by": source.id}
        record = source.model_copy(update={**changes, "mlflow_run_id": None})
        self._write(record)
        self.planner.end(record)
        self.tracker.end(record)

    def _drop_losers(self, progress: CellProgress, candidates: list[TrialRecord]) -> None:
        """Delete weights that cannot win any more: all but the best search trial's, until the finals have theirs.

        Args:
            candidates: the trial that ended and the one that was best before it; the others lost long ago.
        """
        best = progress.best
        for record in candidates:
            answered = any(final.answered_by == record.id for final in progress.finals.values())
            if record.role == "search" and (best is None or record.id != best.id or answered):
                self.ledger.drop_checkpoint(record.id)

    def _score_finalists(self) -> None:
        """Send a cell's finals to be scored once all of them are trained: together where they share the encoder."""
        for progress in self.planner.cells.values():
            under_way = [*progress.running.values(), *progress.again]
            if self.planner.missing_finals(progress) or any(p.role == "final" for p in under_way):
                continue
            finals = finals_of(progress.best, progress.finals.values())
            new = [final for final in finals if final.test is None and not self.scorer.has(final.id)]
            if not new or not progress.searched:
                continue
            together = [new] if not modes.get(progress.cell.mode).trains_encoder else [[final] for final in new]
            for group in together:
                self.scorer.submit([self._order_of(progress.cell, final) for final in group], group)

    def _order_of(self, cell: OpenCell, record: TrialRecord) -> Order:
        order = self.order(self.planner.proposal_of(record), self._gpus(cell))
        return order.model_copy(update={"test_fingerprint": self._test_of(record)})

    def _test_of(self, record: TrialRecord) -> str:
        """The fingerprint of the test split that finals like this one were scored on; "" before any was."""
        alike = [p.finals.values() for p in self.planner.cells.values() if p.cell.task_name == record.task]
        known = (
            final.test_fingerprint for finals in alike for final in finals
            if final.id != record.id and bool(final.documents_fingerprint) == bool(record.documents_fingerprint)
        )  # fmt: skip
        return next(filter(None, known), "")

    def _replace(self, record: TrialRecord) -> None:
        """A finalist came back with its test scores."""
        before = self._test_of(record)
        if before and record.test_fingerprint not in (None, before):  # scored beside the other one: neither knew
            self.scorer.refuse(record, "the test split changed while finals were scored; put the old one back")
            return
        self._write(record)
        self.planner.end(record)
        self.tracker.end(record)
        self.progress.scored(record)
        progress = self.planner.cells[record.cell]
        finals = finals_of(progress.best, progress.finals.values())
        if all(final.test is not None for final in finals):
            keep = best_final(finals)
            for final in finals:
                if keep is None or final.id != keep.id:
                    self.ledger.drop_checkpoint(final.id)
