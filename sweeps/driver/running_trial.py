"""A trial between its hand-out and its end, as the driver knows it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from meltpoint.adapters import modes
from meltpoint.adapters.training.epochs import best_epoch
from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord
from meltpoint.sweeps.ledger.resource_use import NOTHING_KNOWN, ResourceUse
from meltpoint.sweeps.ledger.running_trials import RunningTrialNote
from meltpoint.sweeps.search.cell_progress import Proposal, trial_name
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.worker.events import Started
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import Order


@dataclass
class RunningTrial:
    """One attempt at a trial.

    Attributes:
        began: when it was handed out, then when a worker took it up, in seconds since 1970.
        resource_use: what it has used so far, as its worker last said.
        seconds: of its worker so far, as it last said; None before, and where it does not say.
        counted_from: `began` on the monotonic clock, for a trial whose worker cannot say how long it took.
        percent: how much of its schedule is trained, 0 to 100, as its worker last said.
        started: its worker's first event; None before.
        epochs: those that its worker has reported so far.
    """

    order: Order
    proposal: Proposal
    began: float
    started: Started | None = None
    epochs: list[EpochRecord] = field(default_factory=list)
    resource_use: ResourceUse | None = None
    seconds: float | None = None
    counted_from: float = field(default_factory=time.monotonic)
    percent: float = 0.0

    def take_up(self, at: float) -> None:
        """Count from now on: a worker took it up.

        Args:
            at: now, in seconds since 1970; the same for all trials of an order.
        """
        self.began, self.counted_from = at, time.monotonic()

    def note(self) -> RunningTrialNote:
        """Its progress, for `status`."""
        name, metric = trial_name(self.proposal), self.proposal.cell.task.metric
        if not self.epochs or not self.percent:
            return RunningTrialNote(id=self.order.id, name=name, began=self.began, metric=metric)
        last = self.epochs[-1]
        dev = last.dev[metric]
        return RunningTrialNote(
            id=self.order.id, name=name, began=self.began, epoch=last.epoch,
            epochs=round(100 * last.epoch / self.percent), metric=metric, dev=dev if math.isfinite(dev) else None,
        )  # fmt: skip

    def record(self, outcome: TrialOutcome) -> TrialRecord:
        """The ledger's record of the trial, now that it ended; not of one that was interrupted."""
        order, started, metric = self.order, self.started, self.proposal.cell.task.metric
        last_phase = modes.get(order.mode).phases(order.setting)[-1].name
        best = best_epoch(self.epochs, metric, last_phase)
        # What a worker used between its last word and its loss is not known, so that nothing is.
        is_lost = outcome.cause in ("worker", "memory")
        use = NOTHING_KNOWN if is_lost else self.resource_use or NOTHING_KNOWN
        # By the worker's clock: a driver that was halted hears of a trial's end when it runs again.
        seconds = None if is_lost else self.seconds
        return TrialRecord(
            id=order.id, number=order.number, encoder=order.encoder, mode=order.mode, task=order.task, head=order.head,
            variant=order.variant, role=order.role, seed=order.seed, setting=order.setting,
            suggested_by=order.suggested_by,
            status=outcome.status, metric=metric,  # type: ignore[arg-type]
            dev=best.dev[metric] if best else None, dev_metrics=best.dev if best else {},
            best_epoch=best.epoch if best else None, epochs=self.epochs, error=outcome.error,
            hardware=started.hardware if started else None, attempts=order.attempt + 1, cause=outcome.cause,
            input_notes=list(started.input_notes) if started else [], storage_notes=list(outcome.notes),
            data_fingerprint=order.data_fingerprint, documents_fingerprint=order.documents_fingerprint,
            encoder_fingerprint=order.encoder_fingerprint, code_version=code_version(),
            started_at=self.began, seconds=time.monotonic() - self.counted_from if seconds is None else seconds,
            trained_together=started.trained_together if started else 1,
            task_parameters=started.task_parameters if started else None,
            trained_parameters=started.trained_parameters if started else None, **use.model_dump(),
            resumed_after_epochs=started.resumed_after_epochs if started else 0,
            seconds_before=started.seconds_before if started else 0.0,
            micro_batch_size=started.micro_batch_size if started else None,
        )  # fmt: skip
