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


@dataclass(eq=False)
class Call:
    """A call that creates or reopens a trial's run, or concerns no trial.

    Attributes:
        write: makes the call.
        trial: the trial's id; "" for no trial.
        failures: how often MLflow refused this call while it accepted others.
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
        begin: creates or reopens the run first, for a record of an earlier driver.
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

    A taken job stays the next one until it is done. Calls that create runs come first, because a trial's record has its
    run id. While MLflow is unavailable, a trial's newer state replaces the waiting one. Only `take` and
    `wait_until_empty` wait.

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
        """Note that a trial starts, for the first time or again."""
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
            begin: creates or reopens its run first, if necessary.
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
        """Note a call that concerns no trial; it follows all changes so far."""
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
        """Make `take` return None from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def take(self) -> Job | None:
        """Wait for the next due job and return it; None after `close`."""
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
        """Drop the taken job, so that the next one can be taken."""
        with self._changed:
            self._taken = None
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Postpone all jobs by this time."""
        with self._changed:
            self._paused_until = time.monotonic() + seconds

    def keys(self) -> set[object]:
        """The keys of the waiting updates (trial ids) and calls (the call itself)."""
        with self._changed:
            return set(self._others)

    def trials(self) -> set[str]:
        """The trials with unwritten changes."""
        with self._changed:
            taken = [self._taken] if self._taken else []
            return {job.trial for job in (*taken, *self._begins.values(), *self._others.values()) if job.trial}

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
