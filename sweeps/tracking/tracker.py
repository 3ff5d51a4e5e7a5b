"""MLflow, written by the driver alone and beside its work: one thread writes, and the driver never waits for it.

The ledger is the truth. While the server is away, nothing stops: `reconcile` writes what is missing from the ledger.
Only the end of a sweep waits for MLflow (`reconcile`, `close`).
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
"""How long a trial's news wait for more news of it: each call costs as much as dozens of metrics in it."""


@dataclass
class Job:
    """Something to write.

    Attributes:
        trial: whose news it is, or "" for a job of another kind.
        epochs, record: a trial's news since its last job was written.
        action: what to do instead of writing news, given the runs.
        told: `time.monotonic()` of its first news.
    """

    trial: str = ""
    epochs: list[EpochRecord] = field(default_factory=list)
    record: TrialRecord | None = None
    action: Callable[[Runs], object] | None = None
    told: float = field(default_factory=time.monotonic)

    def write(self, runs: Runs) -> None:
        """Do it."""
        if self.action is not None:
            self.action(runs)
        else:
            runs.write(self.trial, self.epochs, self.record)


class Tracker:
    """The sweep's window in MLflow. What it is told is written soon, in the order of each run; `flush` waits for it.

    Trials that begin are written before everything else that waits, because their records want the run's id. A trial's
    news gather for half a second, and go out in one call. What waits holds little but the epochs and records that the
    planner keeps anyway, so there is no limit to it.

    Attributes:
        trouble: the first failure, in one line; after it nothing more is sent until `reconcile`.
    """

    def __init__(self, sweep: str, uri: str, storage: Path) -> None:
        self.sweep, self.uri, self.storage = sweep, uri, storage
        self.trouble: str | None = None
        self.runs: Runs | None = None
        self._open: Callable[[Runs], object] = lambda runs: None
        self._changed = threading.Condition()
        self._begins: deque[Job] = deque()
        self._others: deque[Job] = deque()
        self._news: dict[str, Job] = {}  # trial → its job in `_others`
        self._busy = self._closed = False
        self._flushing = 0  # how many wait for everything to be written
        self._deadline = math.inf  # `time.monotonic()` after which nobody waits any more
        self._thread: threading.Thread | None = None

    def open(self, cells: Iterable[OpenCell], specification: str) -> None:
        """Find or make the experiment and the cells' runs, and learn which trials have a run already."""
        opened = list(cells)
        self._open = lambda runs: runs.open(opened, specification)
        self._thread = threading.Thread(target=self._write_all, name="mlflow-writer", daemon=True)
        self._thread.start()
        self._do(lambda runs: None)  # MLflow takes seconds to import, and as long to make its first tables

    def begin(self, proposal: Proposal, code: str) -> None:
        """A trial begins: make its run, or take up the one that it had before the sweep was cut off."""
        with self._changed:
            again = any(job.trial == proposal.id for job in self._others)  # then what waits of it comes first
            (self._others if again else self._begins).append(
                Job(proposal.id, action=lambda runs: runs.begin(proposal, code))
            )
            self._news.pop(proposal.id, None)
            self._note(proposal.id)  # its setting, with whatever comes soon
            self._changed.notify_all()

    def run_of(self, trial: str) -> str | None:
        """The id of a trial's run; None while MLflow has not said it."""
        runs = self.runs
        return None if runs is None else runs.runs.get(trial)

    def epoch(self, trial: str, epoch: EpochRecord) -> None:
        """An epoch's metrics, at its real step and time."""
        with self._changed:
            self._note(trial).epochs.append(epoch)
            self._changed.notify_all()

    def end(self, record: TrialRecord) -> None:
        """A trial ended."""
        with self._changed:
            self._note(record.id).record = record
            self._changed.notify_all()

    def _note(self, trial: str) -> Job:
        """The job that takes a trial's news: the one that waits, or a new one."""
        if trial not in self._news:
            self._news[trial] = Job(trial)
            self._others.append(self._news[trial])
        return self._news[trial]

    def abandon(self, trial: str) -> None:
        """A trial was cut off; its run is taken up again when the sweep goes on."""
        self._do(lambda runs: runs.abandon(trial), trial)

    def reconcile(self, records: Iterable[TrialRecord], proposals: Callable[[TrialRecord], Proposal]) -> None:
        """Write whatever the ledger has and MLflow has not, and close runs of trials that no longer run."""
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
        """End the cells' runs with their summary figures, keep the table with each, and let the writer go.

        Args:
            tags: what some cells' runs are tagged with beside their status.
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
        """What a person should know though nothing failed, a line each."""
        elsewhere = "" if self.runs is None else self.runs.files.elsewhere
        return [
            f"MLflow keeps this sweep's files at {elsewhere}, outside --storage {self.storage}: none was written "
            f"there; the reports lie in {self.storage / self.sweep}. Sweeps under a new --name keep theirs inside."
        ] if elsewhere else []  # fmt: skip

    def flush(self) -> None:
        """Wait until everything said so far is written, or MLflow failed."""
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
        """Wait no longer than this for anything from now on: a person wants the sweep to end."""
        self._deadline = time.monotonic() + seconds

    def _patience(self) -> float | None:
        """Seconds that a wait may last; None for as long as it takes."""
        return None if self._deadline == math.inf else max(0.0, self._deadline - time.monotonic())

    def _do(self, action: Callable[[Runs], object], trial: str = "") -> None:
        with self._changed:
            if self._thread is None or self._closed:  # nobody is there to do it
                return
            self._news.clear()  # what is said from here on comes after it
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
        """The next job, once it is due; None once the tracker is closed."""
        with self._changed:
            while (seconds := self._seconds_until_due()) != 0.0:
                self._changed.wait(seconds)
            waiting = self._begins or self._others
            if not waiting:
                return None
            job = waiting.popleft()
            if self._news.get(job.trial) is job:
                del self._news[job.trial]
            self._busy = True
            return job

    def _seconds_until_due(self) -> float | None:
        """Until there is something to do, 0 at once; None while nothing waits."""
        if self._begins or self._closed:
            return 0.0
        if not self._others:
            return None
        first = self._others[0]
        in_a_hurry = self._flushing or first.action is not None
        return 0.0 if in_a_hurry else max(0.0, first.told + GATHER_SECONDS - time.monotonic())

    def _try(self, job: Job) -> None:
        if self.trouble is not None:
            return
        try:
            job.write(self._ready())
        except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave the driver waiting
            self.trouble = self._in_words(_first_line(error))

    def _in_words(self, reason: str) -> str:
        return redacted(
            f"MLflow at {self.uri} failed ({reason}); the sweep goes on, the ledger keeps everything, and the same "
            "command fills MLflow in once it answers."
        )

    def _ready(self) -> Runs:
        """The runs, opened with the first job, and again after trouble there."""
        from meltpoint.sweeps.tracking.runs import Runs

        if self.runs is None:
            runs = Runs(self.sweep, self.uri, self.storage)
            self._open(runs)
            self.runs = runs
        return self.runs


def _first_line(error: Exception) -> str:
    return redacted(str(error).strip() or type(error).__name__).splitlines()[0][:160]
