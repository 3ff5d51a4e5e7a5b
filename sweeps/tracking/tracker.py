"""Tracking in MLflow by the driver: a background thread writes, so that the driver does not wait for MLflow.

The ledger is authoritative. A sweep continues without MLflow's server, and `reconcile` later writes what is missing
from the ledger's records. Only the end of a sweep waits for MLflow (`reconcile`, `close`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.sweeps.ledger.records import CellKey, EpochRecord, TrialRecord
from meltpoint.sweeps.search.planner import Proposal
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.tracking_uri import redacted

if TYPE_CHECKING:
    from meltpoint.sweeps.tracking.runs import Runs

GATHER_SECONDS = 0.5
"""Delay in which a trial's updates are collected into one call, since a call costs as much as dozens of metrics."""


@dataclass
class Job:
    """A queued write to MLflow: a trial's updates, or an action.

    Attributes:
        trial: the trial's id; "" for an action that concerns no trial.
        epochs, record: the trial's updates since its previous job.
        action: a function to call with the runs instead of writing updates.
        queued_at: `time.monotonic()` of its first update.
    """

    trial: str = ""
    epochs: list[EpochRecord] = field(default_factory=list)
    record: TrialRecord | None = None
    action: Callable[[Runs], object] | None = None
    queued_at: float = field(default_factory=time.monotonic)

    def write(self, runs: Runs) -> None:
        """Perform the write."""
        if self.action is not None:
            self.action(runs)
        else:
            runs.write(self.trial, self.epochs, self.record)


class Tracker:
    """A sweep's tracking in MLflow. Updates are queued and written in order per run; `flush` waits for them.

    Beginning trials are written before everything else in the queue, because their records contain the run's id. A
    trial's updates are collected for half a second and written in one call. The queue is unbounded: it refers to epochs
    and records that the planner keeps in memory anyway.

    Attributes:
        trouble: the first failure, in one line; after it nothing more is written until `reconcile`.
    """

    def __init__(self, sweep: str, uri: str, storage: Path) -> None:
        self.sweep, self.uri, self.storage = sweep, uri, storage
        self.trouble: str | None = None
        self.runs: Runs | None = None
        self._open: Callable[[Runs], object] = lambda runs: None
        self._changed = threading.Condition()
        self._begins: deque[Job] = deque()
        self._others: deque[Job] = deque()
        self._updates: dict[str, Job] = {}  # trial → its job in `_others`
        self._busy = self._closed = False
        self._flushing = 0  # number of threads that wait in `flush`
        self._deadline = math.inf  # `time.monotonic()` after which no call waits
        self._thread: threading.Thread | None = None

    def open(self, cells: Iterable[OpenCell], specification: str) -> None:
        """Find or create the experiment and the cells' runs, and look up the runs of earlier trials."""
        opened = list(cells)
        self._open = lambda runs: runs.open(opened, specification)
        self._thread = threading.Thread(target=self._write_all, name="mlflow-writer", daemon=True)
        self._thread.start()
        self._do(lambda runs: None)  # starts early: MLflow takes seconds to import, and to create its first tables

    def begin(self, proposal: Proposal, code: str) -> None:
        """Record that a trial begins: create its run, or reopen the one that it had before an interruption."""
        with self._changed:
            has_updates = any(job.trial == proposal.id for job in self._others)  # which must be written first
            (self._others if has_updates else self._begins).append(
                Job(proposal.id, action=lambda runs: runs.begin(proposal, code))
            )
            self._updates.pop(proposal.id, None)
            self._note(proposal.id)  # to write its setting together with its next updates
            self._changed.notify_all()

    def run_of(self, trial: str) -> str | None:
        """The id of a trial's run; None as long as MLflow has not returned it."""
        runs = self.runs
        return None if runs is None else runs.runs.get(trial)

    def epoch(self, trial: str, epoch: EpochRecord) -> None:
        """Record an epoch's metrics, with its step and time."""
        with self._changed:
            self._note(trial).epochs.append(epoch)
            self._changed.notify_all()

    def end(self, record: TrialRecord) -> None:
        """Record that a trial ended."""
        with self._changed:
            self._note(record.id).record = record
            self._changed.notify_all()

    def _note(self, trial: str) -> Job:
        """The job for a trial's updates: the queued one, or a new one."""
        if trial not in self._updates:
            self._updates[trial] = Job(trial)
            self._others.append(self._updates[trial])
        return self._updates[trial]

    def abandon(self, trial: str) -> None:
        """Record that a trial was interrupted; its run is reopened when the sweep continues."""
        self._do(lambda runs: runs.abandon(trial), trial)

    def reconcile(self, records: Iterable[TrialRecord], proposals: Callable[[TrialRecord], Proposal]) -> None:
        """Write all records that MLflow lacks, and close runs of trials that no longer run."""
        kept = list(records)
        self.flush()
        if self.trouble is not None:
            self.trouble = self.runs = None
        self._do(lambda runs: runs.reconcile(kept, proposals))
        self.flush()

    def close(
        self,
        cells: Iterable[tuple[CellKey, dict[str, float]]],
        done: bool,
        artifacts: dict[str, str],
        tags: Mapping[CellKey, Mapping[str, str]] | None = None,
    ) -> None:
        """End the cells' runs with their summary metrics and artifacts, and stop the writer thread.

        Args:
            tags: further tags of some cells' runs.
        """
        figures = list(cells)
        self._do(lambda runs: runs.close(figures, done, artifacts, tags or {}))
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._patience())

    def notes(self) -> list[str]:
        """Notes for the user that are no failures, one line each."""
        elsewhere = "" if self.runs is None else self.runs.files.elsewhere
        return [
            f"MLflow keeps this sweep's files at {elsewhere}, outside --storage {self.storage}: none was written "
            f"there; the reports lie in {self.storage / self.sweep}. Sweeps under a new --name keep theirs inside."
        ] if elsewhere else []  # fmt: skip

    def flush(self) -> None:
        """Wait until everything queued so far is written, or MLflow has failed."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(
                    lambda: not (self._begins or self._others or self._busy), self._patience()
                ):
                    self.trouble = self._in_words("no answer in time")
            finally:  # Ctrl-C may come while it waits
                self._flushing -= 1

    def hurry(self, seconds: float) -> None:
        """Limit all waiting from now on to this time, because the user has asked the sweep to end."""
        self._deadline = time.monotonic() + seconds

    def _patience(self) -> float | None:
        """The longest time to wait, in seconds; None for no limit."""
        return None if self._deadline == math.inf else max(0.0, self._deadline - time.monotonic())

    def _do(self, action: Callable[[Runs], object], trial: str = "") -> None:
        with self._changed:
            if self._thread is None or self._closed:  # no thread would perform it
                return
            self._updates.clear()  # later updates go to new jobs, after this one
            self._others.append(Job(trial, action=action))
            self._changed.notify_all()

    # The writer's thread.

    def _write_all(self) -> None:
        while job := self._take():
            self._try(job)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _take(self) -> Job | None:
        """Wait for the next due job; None once the tracker is closed."""
        with self._changed:
            while (seconds := self._seconds_until_due()) != 0.0:
                self._changed.wait(seconds)
            waiting = self._begins or self._others
            if not waiting:
                return None
            job = waiting.popleft()
            if self._updates.get(job.trial) is job:
                del self._updates[job.trial]
            self._busy = True
            return job

    def _seconds_until_due(self) -> float | None:
        """Seconds until a job is due (0 for at once); None if the queue is empty."""
        if self._begins or self._closed:
            return 0.0
        if not self._others:
            return None
        first = self._others[0]
        at_once = self._flushing or first.action is not None
        return 0.0 if at_once else max(0.0, first.queued_at + GATHER_SECONDS - time.monotonic())

    def _try(self, job: Job) -> None:
        if self.trouble is not None:
            return
        try:
            job.write(self._ready())
        except Exception as error:  # noqa: BLE001 - a thread that ended silently would leave the driver waiting
            self.trouble = self._in_words(_first_line(error))

    def _in_words(self, reason: str) -> str:
        return redacted(
            f"MLflow at {self.uri} failed ({reason}); the sweep goes on, the ledger keeps everything, and the same "
            "command fills MLflow in once it answers."
        )

    def _ready(self) -> Runs:
        """The runs, opened for the first job, and again after a failure."""
        from meltpoint.sweeps.tracking.runs import Runs

        if self.runs is None:
            runs = Runs(self.sweep, self.uri, self.storage)
            self._open(runs)
            self.runs = runs
        return self.runs


def _first_line(error: Exception) -> str:
    return redacted(str(error).strip() or type(error).__name__).splitlines()[0][:160]
