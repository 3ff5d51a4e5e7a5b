"""Changes that MLflow does not have yet: of each trial its latest state, and calls that concern no trial."""

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
"""Delay in which a trial's epochs are collected into one call, since a call costs as much as dozens of metrics."""


@dataclass(eq=False)
class Call:
    """A call: one that creates or reopens a trial's run, or one that concerns no trial.

    Attributes:
        write: makes the call.
        trial: the trial's id; "" of no trial.
        failures: how often MLflow refused this call while it took others.
    """

    write: Callable[[Runs], object]
    trial: str = ""
    failures: int = 0


def begin_of(trial: Trial, code: str, started_at: float) -> Call:
    """The call that creates or reopens a trial's run; the arguments are those of `Tracker.begin`."""
    begun = Trial.of(trial)
    return Call(lambda runs: runs.begin(begun, code, started_at), begun.id)


@dataclass(eq=False)
class Update:
    """The state of a trial that MLflow does not have.

    Attributes:
        trial: the trial's id.
        begin: for a record of an earlier driver, whose run has to be created or reopened first.
        epochs: step → epoch.
        record: of a trial that ended; it has all epochs.
        interrupted_at: when the trial was interrupted, in seconds since 1970; None if it was not.
        failures: as in `Call`.
        since: `time.monotonic()` of its first change.
    """

    trial: str
    begin: Call | None = None
    epochs: dict[int, EpochResult] = field(default_factory=dict)
    record: TrialRecord | None = None
    interrupted_at: float | None = None
    failures: int = 0
    since: float = field(default_factory=time.monotonic)

    def write(self, runs: Runs) -> None:
        """Write the state."""
        if self.begin is not None:
            self.begin.write(runs)
        epochs = list(self.epochs.values()) if self.record is None else self.record.epochs
        runs.write(self.trial, epochs, self.record)
        if self.interrupted_at is not None:
            runs.abandon(self.trial, self.interrupted_at)


Job = Call | Update


class Unwritten:
    """Changes by many threads for one writer, which takes a job, tries it, and calls `done` once it succeeded.

    The job that was taken stays the next one until it is done. Runs are begun before all else, because a trial's record
    contains its run's id. While MLflow is away, a trial's newer state replaces the one that waits. No method but
    `take` and `wait_until_empty` waits.

    Attributes:
        is_closed: whether `close` was called.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begins: dict[str, Call] = {}
        self._others: dict[object, Job] = {}  # by trial, or by the call
        self._taken: Job | None = None
        self._paused_until = 0.0
        self._waiting = 0  # number of threads in `wait_until_empty`
        self.is_closed = False

    def begin(self, begin: Call) -> None:
        """Note that a trial begins, the first time or again."""
        with self._changed:
            self._begins.setdefault(begin.trial, begin)
            update = self._update(begin.trial)
            update.record = update.interrupted_at = None

    def epoch(self, trial: str, epoch: EpochResult) -> None:
        """Note an epoch of a trial."""
        with self._changed:
            self._update(trial).epochs[epoch.step] = epoch

    def end(self, record: TrialRecord, begin: Call | None = None) -> None:
        """Note that a trial ended.

        Args:
            begin: where its run has to be created or reopened first.
        """
        with self._changed:
            update = self._update(record.id)
            update.record, update.begin = record, begin or update.begin
            update.epochs.clear()

    def abandon(self, trial: str, at: float) -> None:
        """Note that a trial was interrupted, in seconds since 1970."""
        with self._changed:
            self._update(trial).interrupted_at = at

    def put(self, action: Callable[[Runs], object]) -> None:
        """Note a call that concerns no trial; it comes after the changes so far."""
        with self._changed:
            call = Call(action)
            self._others[call] = call
            self._changed.notify_all()

    def _update(self, trial: str) -> Update:
        update = self._others.setdefault(trial, Update(trial))
        assert isinstance(update, Update)
        self._changed.notify_all()
        return update

    def close(self) -> None:
        """Let `take` return None from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def take(self) -> Job | None:
        """Wait for the next due job and return it; None once this is closed."""
        with self._changed:
            while not self.is_closed and (seconds := self._seconds_until_due()) != 0.0:
                self._changed.wait(seconds)
            if self.is_closed:
                return None
            if self._taken is None:
                jobs: dict[object, Job] = self._begins or self._others  # type: ignore[assignment]
                self._taken = jobs.pop(next(iter(jobs)))
            return self._taken

    def _seconds_until_due(self) -> float | None:
        """Seconds until a job is due (0 for at once); None if everything is written."""
        if self._is_empty():
            return None
        due = self._paused_until
        if self._taken is None and not self._begins and not self._waiting:
            first = next(iter(self._others.values()))
            due = max(due, first.since + GATHER_SECONDS) if isinstance(first, Update) else due
        return max(0.0, due - time.monotonic())

    def _is_empty(self) -> bool:
        return not (self._taken or self._begins or self._others)

    def done(self) -> None:
        """Go on to the next job."""
        with self._changed:
            self._taken = None
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Let no job be due for some time."""
        with self._changed:
            self._paused_until = time.monotonic() + seconds

    def keys(self) -> set[object]:
        """The updates and calls that are to be written, by trial, or by the call."""
        with self._changed:
            return set(self._others)

    def trials(self) -> set[str]:
        """The trials of which something is to be written."""
        with self._changed:
            taken = [self._taken] if self._taken else []
            return {job.trial for job in (*taken, *self._begins.values(), *self._others.values()) if job.trial}

    def wait_until_empty(self, deadline: Callable[[], float]) -> bool:
        """Wait until everything is written, and collect epochs no longer; returns False if it takes too long.

        Args:
            deadline: gives the `time.monotonic()` until which to wait; it is asked again after each job.
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
            finally:  # Ctrl-C may come while it waits
                self._waiting -= 1
