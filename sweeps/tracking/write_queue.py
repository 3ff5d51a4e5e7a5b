"""The queue of writes to MLflow: in order per run, and each write kept until it is done."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord

if TYPE_CHECKING:
    from meltpoint.sweeps.tracking.runs import Runs

GATHER_SECONDS = 0.5
"""Delay in which a trial's updates are collected into one call, since a call costs as much as dozens of metrics."""


@dataclass(eq=False)
class Job:
    """A queued write to MLflow: a trial's updates, or an action.

    Attributes:
        trial: the trial's id; "" for an action that concerns no trial.
        epochs, record: the trial's updates since its previous job.
        epochs_in_record: how many of the record's last epochs are updates, too; the record of a trial that ended is a
            light one, and the queue may be long.
        action: a function to call with the runs instead of writing updates.
        failures: how often MLflow refused this job while it took others.
        number: its place in the order of queueing.
        queued_at: `time.monotonic()` of its first update.
    """

    trial: str = ""
    epochs: list[EpochRecord] = field(default_factory=list)
    record: TrialRecord | None = None
    epochs_in_record: int = 0
    action: Callable[[Runs], object] | None = None
    failures: int = 0
    number: int = 0
    queued_at: float = field(default_factory=time.monotonic)

    def write(self, runs: Runs) -> None:
        """Perform the write."""
        if self.action is not None:
            self.action(runs)
        elif self.record is None:
            runs.write(self.trial, self.epochs, None)
        else:
            record = _read_again(self.record)
            runs.write(self.trial, record.epochs[len(record.epochs) - self.epochs_in_record :], record)


def _read_again(record: TrialRecord) -> TrialRecord:
    """The whole record of a trial that ended.

    Raises:
        ValueError: its file cannot be read. It would be an OSError, which says of MLflow that it is away.
    """
    try:
        return record.whole()
    except OSError as error:
        fault = f"{record.id}.json cannot be read again ({error.strerror})"
    raise ValueError(fault)  # here, so that the error does not stand behind it


class WriteQueue:
    """Jobs from many threads for one writer, which takes a job, tries it, and calls `done` once it succeeded.

    Jobs that begin a trial go before all others, because the trial's record contains the run's id; all jobs of one
    trial keep their order. A trial's updates are collected for half a second, and as long as other jobs fail, into one
    job. No method but `take` and `wait_until_empty` waits. The queue is unbounded: of a trial that ended it refers to
    the record that the planner keeps in memory anyway.

    Attributes:
        is_closed: whether `close` was called.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begins: deque[Job] = deque()
        self._others: deque[Job] = deque()
        self._queued: Counter[str] = Counter()  # trial → its jobs in `_others`
        self._updates: dict[str, Job] = {}  # trial → its last job in `_others`, while it takes further updates
        self._numbered = 0
        self._paused_until = 0.0
        self._waiting = 0  # number of threads in `wait_until_empty`
        self.is_closed = False

    def put(self, job: Job, early: bool = False) -> None:
        """Queue a job; the updates that come later go to new jobs behind it.

        Args:
            early: put it before all that concerns other trials.
        """
        with self._changed:
            if early and not self._queued[job.trial]:
                self._append(self._begins, job)
            else:
                self._append(self._others, job)
            if job.trial:
                self._updates.pop(job.trial, None)
            else:
                self._updates.clear()

    def note(self, trial: str, epoch: EpochRecord) -> None:
        """Queue an epoch of a trial, in the job that collects its updates."""
        with self._changed:
            self._collecting(trial).epochs.append(epoch)
            self._changed.notify_all()

    def note_end(self, record: TrialRecord, epochs: int = 0) -> None:
        """Queue the end of a trial, in the job that collects its updates.

        Args:
            record: its record, whose last epochs are those that were queued before.
            epochs: how many more of its last epochs are to be written.
        """
        with self._changed:
            job = self._collecting(record.id)
            job.record, job.epochs_in_record = record, job.epochs_in_record + len(job.epochs) + epochs
            job.epochs = []
            self._changed.notify_all()

    def collect(self, trial: str) -> None:
        """Queue a job that collects a trial's updates, such as its setting, which is written with the next ones."""
        with self._changed:
            self._collecting(trial)
            self._changed.notify_all()

    def _collecting(self, trial: str) -> Job:
        """The job that collects a trial's updates; a new one at the end of the queue where there is none."""
        if trial not in self._updates:
            self._updates[trial] = Job(trial)
            self._append(self._others, self._updates[trial])
        return self._updates[trial]

    def _append(self, place: deque[Job], job: Job) -> None:
        job.number = self._numbered
        self._numbered += 1
        place.append(job)
        if place is self._others:
            self._queued[job.trial] += 1
        self._changed.notify_all()

    def close(self) -> None:
        """Let `take` return None from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    # The writer's side.

    def take(self) -> Job | None:
        """Wait for the next due job and return it; it stays in the queue. None once the queue is closed."""
        with self._changed:
            while (seconds := self._seconds_until_due()) != 0.0:
                self._changed.wait(seconds)
            if self.is_closed:
                return None
            job = (self._begins or self._others)[0]
            if self._updates.get(job.trial) is job:
                del self._updates[job.trial]
            return job

    def _seconds_until_due(self) -> float | None:
        """Seconds until a job is due (0 for at once); None if the queue is empty."""
        if self.is_closed:
            return 0.0
        if not self._begins and not self._others:
            return None
        due = 0.0
        if not self._begins and self._others[0].action is None and not self._waiting:
            due = self._others[0].queued_at + GATHER_SECONDS
        return max(0.0, max(due, self._paused_until) - time.monotonic())

    def done(self, job: Job) -> None:
        """Remove a job that was taken."""
        with self._changed:
            place = self._begins if self._begins and self._begins[0] is job else self._others
            assert place[0] is job, "only the writer removes jobs"
            place.popleft()
            if place is self._others:
                self._queued[job.trial] -= 1
                if not self._queued[job.trial]:
                    del self._queued[job.trial]
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Let no job be due for some time."""
        with self._changed:
            self._paused_until = time.monotonic() + seconds

    # What is in it.

    @property
    def numbered(self) -> int:
        """The number of jobs so far, and of the next job."""
        return self._numbered

    def has_before(self, number: int) -> bool:
        """True if a job is queued that was queued before the job of that number."""
        with self._changed:
            return any(place and place[0].number < number for place in (self._begins, self._others))

    def trials(self) -> set[str]:
        """The trials that jobs in the queue concern."""
        with self._changed:
            return {job.trial for place in (self._begins, self._others) for job in place if job.trial}

    def wait_until_empty(self, deadline: Callable[[], float]) -> bool:
        """Wait until every job is done, without collecting updates any longer; returns False if it takes too long.

        Args:
            deadline: gives the `time.monotonic()` until which to wait; asked again after each job.
        """
        with self._changed:
            self._waiting += 1
            self._paused_until = 0.0
            self._changed.notify_all()
            try:
                while self._begins or self._others:
                    seconds = deadline() - time.monotonic()
                    if seconds <= 0:
                        return False
                    self._changed.wait(min(seconds, 1.0))
                return True
            finally:  # Ctrl-C may come while it waits
                self._waiting -= 1
