"""Changes that MLflow does not have yet: the latest state of each trial, and calls that concern no trial."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import Trial, TrialRecord

if TYPE_CHECKING:
    from meltpoint.sweeps.tracking.runs import Runs

GATHER_SECONDS = 0.5
"""The delay for collecting a trial's epochs into one call, because a call costs as much as dozens of metrics."""

Begin = tuple[Trial, str, float]
"""The arguments of `Runs.begin`, which creates or reopens a trial's run."""


@dataclass(eq=False)
class Job:
    """The state of a trial that MLflow does not have, or a call that concerns no trial.

    Attributes:
        trial: the trial's id; "" for a call.
        call: the call.
        begin: creates or reopens the trial's run first.
        epochs: step → epoch.
        record: of a trial that ended; it has all epochs.
        interrupted_at: when the trial was interrupted, in seconds since 1970; None if it was not.
        failures: how often MLflow refused this job while it accepted others.
        since: `time.monotonic()` of its first change.
    """

    trial: str = ""
    call: Callable[[Runs], object] | None = None
    begin: Begin | None = None
    epochs: dict[int, EpochResult] = field(default_factory=dict)
    record: TrialRecord | None = None
    interrupted_at: float | None = None
    failures: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def is_urgent(self) -> bool:
        """True if it is not delayed: a trial's record has its run id."""
        return self.begin is not None or self.call is not None

    def write(self, runs: Runs) -> None:
        """Write it; it can be written again."""
        if self.call is not None:
            self.call(runs)
            return
        if self.begin is not None:
            runs.begin(*self.begin)
        if self.record is not None or self.begin is None or self.epochs:
            runs.write(self.trial, self.record.epochs if self.record else list(self.epochs.values()), self.record)
        if self.interrupted_at is not None:
            runs.abandon(self.trial, self.interrupted_at)


class Unwritten:
    """Changes by many threads for one writer, which takes a job, tries it, and calls `done` once it succeeded.

    A taken job stays the next one until it is done. Jobs that create runs come first. While MLflow is unavailable, a
    trial's newer state replaces the waiting one. Only `take` and `wait_until_empty` wait.

    Attributes:
        is_closed: whether `close` was called.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: dict[object, Job] = {}  # by trial, or by the call
        self._taken: Job | None = None
        self._paused_until = 0.0
        self._waiting = 0  # number of threads in `wait_until_empty`
        self.is_closed = False

    def begin(self, trial: Trial, code: str, started_at: float) -> None:
        """Note that a trial starts, for the first time or again."""
        with self._changed:
            job = self._job(trial.id)
            job.begin = job.begin or (Trial.of(trial), code, started_at)
            job.record = job.interrupted_at = None

    def epoch(self, trial: str, epoch: EpochResult) -> None:
        """Note an epoch of a trial."""
        with self._changed:
            self._job(trial).epochs[epoch.step] = epoch

    def end(self, record: TrialRecord, begin: Begin | None = None) -> None:
        """Note that a trial ended.

        Args:
            begin: creates or reopens its run first, if necessary.
        """
        with self._changed:
            job = self._job(record.id)
            job.record, job.begin = record, begin or job.begin
            job.epochs.clear()

    def abandon(self, trial: str, at: float) -> None:
        """Note that a trial was interrupted, in seconds since 1970."""
        with self._changed:
            self._job(trial).interrupted_at = at

    def put(self, call: Callable[[Runs], object]) -> None:
        """Note a call that concerns no trial; it follows all changes so far."""
        with self._changed:
            self._jobs[call] = Job(call=call)
            self._changed.notify_all()

    def _job(self, trial: str) -> Job:
        self._changed.notify_all()
        return self._jobs.setdefault(trial, Job(trial))

    def close(self) -> None:
        """Make `take` return None from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def take(self) -> Job | None:
        """Wait for the next due job and return it; None after `close`."""
        with self._changed:
            while not self.is_closed:
                key = None if self._taken else self._next()
                if (seconds := self._seconds_until_due(key)) == 0.0:
                    self._taken = self._taken or self._jobs.pop(key)
                    return self._taken
                self._changed.wait(seconds)
            return None

    def _next(self) -> object:
        """The key of the next job: the first one that begins a trial, or the first one."""
        first = next(iter(self._jobs), None)
        return next((key for key, job in self._jobs.items() if job.begin), first)

    def _seconds_until_due(self, key: object) -> float | None:
        """Seconds until a job is due (0 for at once); None if everything is written."""
        if self._is_empty():
            return None
        is_delayed = self._taken is None and not self._jobs[key].is_urgent and not self._waiting
        due = max(self._paused_until, self._jobs[key].since + GATHER_SECONDS) if is_delayed else self._paused_until
        return max(0.0, due - time.monotonic())

    def _is_empty(self) -> bool:
        return not (self._taken or self._jobs)

    def done(self) -> bool:
        """Drop the taken job, so that the next one can be taken; True if none is left."""
        with self._changed:
            taken, self._taken = self._taken, None
            if taken is not None and taken.begin is not None and taken.record is None and not taken.epochs:
                self._job(taken.trial)  # the run gets its setting with the first epochs, or without any
            self._changed.notify_all()
            return self._is_empty()

    def pause(self, seconds: float) -> None:
        """Postpone all jobs by this time."""
        with self._changed:
            self._paused_until = time.monotonic() + seconds

    def trials(self) -> set[str]:
        """The trials with unwritten changes."""
        with self._changed:
            return {job.trial for job in (*self._jobs.values(), *filter(None, [self._taken])) if job.trial}

    def wait_until_empty(self, deadline: Callable[[], float]) -> bool:
        """Wait until everything is written, without the delay for collecting epochs; False if it takes too long.

        Args:
            deadline: returns the `time.monotonic()` until which to wait; it is called again after each job.
        """
        with self._changed:
            self._waiting += 1
            self._paused_until = 0.0
            self._changed.notify_all()
            try:
                while not self._is_empty():
                    seconds = deadline() - time.monotonic()
                    if seconds <= 0:
                        return False
                    self._changed.wait(min(seconds, 1.0))
                return True
            finally:  # Ctrl-C may interrupt the wait
                self._waiting -= 1
