"""Tracking in MLflow: a projection of the ledger, written by a background thread so that the driver does not wait.

The ledger is authoritative: it has every epoch and the times of every ended trial. A record can be written to MLflow
again at any time, because the trial's identity finds its run, and data that MLflow already has are skipped. An outage
thus needs no replay: `Unwritten` keeps the latest state of each trial until MLflow has it, and `reconcile`
compares MLflow with the ledger's records. Only the end of a sweep waits for MLflow (`reconcile`, `close`),
and not for long.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import CellKey, Trial, TrialRecord
from meltpoint.sweeps.machine.services import tracking_store
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.tracking_uri import redacted, without_sign_in
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.tracking.dashboard import CellEnding, cells_page
from meltpoint.sweeps.tracking.loggers import Loggers
from meltpoint.sweeps.tracking.unwritten import Job, Unwritten
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from meltpoint.sweeps.tracking.runs import Runs

PAUSES = (1.0, 60.0)
"""Seconds between retries while MLflow does not answer: the first pause, doubled after each try, and the longest."""

END_SECONDS = 30.0
"""The longest wait for MLflow at the end of a sweep, counted from its last answer."""

BUSY_SECONDS = 60.0
"""The same while no call has failed: creating a new store's tables takes long."""

ATTEMPTS = 3
"""The number of attempts for the first write that MLflow refuses while it accepts others."""


def check_before_start(uri: str, has_begun: bool) -> str | None:
    """Check that MLflow's store accepts a sweep's runs.

    Args:
        uri: the tracking URI.
        has_begun: whether this sweep was started before, so that the store is known to exist. A store that does not
            answer then does not stop the sweep: a sweep that resumes at night must not wait for its user.

    Returns:
        A line for the user if the store does not answer but the sweep starts anyway; otherwise None.

    Raises:
        ValueError: the store does not answer and the sweep is new; or waiting would not help, because the store refuses
            this user, has tables of another version, or needs a missing driver package. One line with the remedy.
    """
    check = tracking_store(uri)
    if check.ok:
        return None
    if check.is_away and has_begun:
        return f"MLflow: {check.detail}; the sweep continues, and MLflow is updated once it answers."
    raise ValueError(f"MLflow: {check.detail}; {check.remedy}.")


class Tracker:
    """A sweep's tracking in MLflow. Changes wait in `Unwritten` until they are written; `flush` waits for them.

    If MLflow does not answer, the same write is retried until it does. If MLflow answers but refuses a write (for
    example, to a deleted run), that write is dropped so that others proceed; `reconcile` retries it from the ledger.

    Attributes:
        say: shows the user one line.
        loggers: get the same events.
        runs: the sweep's runs, once MLflow has opened them.
        refused: trial → MLflow's reason for refusing to write it.
        trouble: one line on the data missing in MLflow, if `flush` has waited in vain or MLflow has refused a write.
    """

    def __init__(
        self, sweep: str, uri: str, storage: StoragePath, say: Callable[[str], None] = lambda line: None,
        loggers: Loggers | None = None,
    ) -> None:  # fmt: skip
        self.sweep, self.uri, self.storage, self.say = sweep, uri, storage, say
        self.loggers = loggers or Loggers([], sweep, Path(), say)
        self.runs: Runs | None = None
        self.refused: dict[str, str] = {}
        self.trouble: str | None = None
        self._open: Callable[[Runs], object] = lambda runs: None
        self._unwritten = Unwritten()
        self._failures = 0  # in a row, without an answer
        self._reason = "no answer yet"
        self._is_said_away = False
        self._answered_at = self._ended_at = -math.inf  # `time.monotonic()` of the last answer, and of the first flush
        self._deadline = math.inf  # the `time.monotonic()` after which no call waits
        self._thread: threading.Thread | None = None

    def open(self, cells: Iterable[OpenCell], specification: str, is_over: bool = False) -> None:
        """Find or create the experiment and the cells' runs, and look up the runs of earlier trials.

        Args:
            is_over: whether all training is done, so that ended runs of cells stay ended.
        """
        opened, now = list(cells), time.time()
        self._open = lambda runs: runs.open(opened, specification, now, is_over)
        self._thread = threading.Thread(target=self._write_all, name="mlflow-writer", daemon=True)
        self._thread.start()
        # Starts early: MLflow takes seconds to import, and to create its first tables.
        self._do(lambda runs: None)

    def begin(self, trial: Trial, code: str, started_at: float) -> None:
        """Record that a trial starts: create its run, or reopen its run from before an interruption.

        Args:
            code: the version of the code that runs it.
            started_at: when it started, in seconds since 1970.
        """
        self._unwritten.begin(trial, code, started_at)
        self.loggers.begin(trial)

    def run_of(self, trial: str) -> str | None:
        """The id of a trial's run; None until MLflow has returned it."""
        runs = self.runs
        return None if runs is None else runs.runs.get(trial)

    def epoch(self, trial: str, epoch: EpochResult) -> None:
        """Record an epoch's metrics, with its step and time."""
        self._unwritten.epoch(trial, epoch)
        self.loggers.epoch(trial, epoch)

    def end(self, record: TrialRecord) -> None:
        """Record that a trial ended or was scored; its epochs are read from the record when it is written."""
        self._unwritten.end(record)
        self.loggers.end(record)

    def abandon(self, trial: str) -> None:
        """Record that a trial was interrupted; its run is reopened when the sweep resumes."""
        self._unwritten.abandon(trial, time.time())
        self.loggers.abandon(trial)

    def reconcile(self, records: Iterable[TrialRecord]) -> None:
        """Write all records that MLflow lacks, and close runs of trials that no longer run."""
        kept = list(records)
        self._do(lambda runs: self._fill_in(self._anew(runs), kept))
        # From the writer's thread, so that it follows the added records.
        self._do(lambda _: self._do(lambda runs: runs.end_lost(kept)))
        self.flush()

    def describe(self, note: str) -> None:
        """Set the experiment's note, Markdown above the tables of its runs."""
        if note:
            self._do(lambda runs: runs.describe(note))

    def close(
        self,
        cells: Iterable[tuple[CellKey, dict[str, float]]],
        done: bool,
        artifacts: dict[str, str],
        tags: Mapping[CellKey, Mapping[str, str]] | None = None,
        endings: Mapping[CellKey, CellEnding] | None = None,
    ) -> None:
        """End the cells' runs with their summary metrics, artifacts and results, and stop the writer thread.

        Args:
            tags: additional tags for some cells' runs.
            endings: the results of some cells.
        """
        now, tags, endings = time.time(), tags or {}, endings or {}

        def closing(key: CellKey, figures: dict[str, float]) -> Callable[[Runs], object]:
            said, ending = tags.get(key, {}), endings.get(key, CellEnding())
            return lambda runs: runs.close(key, figures, done, artifacts, said, now, ending)

        for key, figures in cells:  # a job for each, because the end of a sweep waits for MLflow's next answer
            self._do(closing(key, figures))
        self.loggers.close(max(0.0, min(END_SECONDS, self._deadline - time.monotonic())))
        self.flush()
        self._unwritten.close()
        if self._thread is not None and self.trouble is None:
            self._thread.join(max(0.0, min(self._until() - time.monotonic(), END_SECONDS)))

    def address(self) -> str:
        """The URL of the sweep's cells in MLflow's dashboard; "" if no server shows the store yet."""
        runs = self.runs
        if runs is None or not runs.experiment or urlsplit(self.uri).scheme not in ("http", "https"):
            return ""
        return f"{without_sign_in(self.uri).rstrip('/')}/{cells_page(runs.experiment)}"

    def flush(self) -> None:
        """Wait until everything so far is written, or MLflow has not answered for `END_SECONDS`."""
        if not self._is_writing():
            return
        if self._ended_at == -math.inf:
            self._ended_at = time.monotonic()
            if self._is_said_away:
                self.say(f"Waiting up to {END_SECONDS:.0f} s for MLflow.")
        is_written = self._unwritten.wait_until_empty(self._until)
        self.trouble = self._lacks(is_written)

    def leave(self) -> None:
        """Stop writing: another driver has the sweep and its runs."""
        self._unwritten.close()

    def hurry(self, seconds: float) -> None:
        """Limit all waiting from now on to this time, because the user asked the sweep to end."""
        self._deadline = time.monotonic() + seconds

    def _until(self) -> float:
        """The `time.monotonic()` until which the end of a sweep waits."""
        patience = END_SECONDS if self._failures else BUSY_SECONDS
        return min(self._deadline, max(self._ended_at, self._answered_at) + patience)

    def _lacks(self, is_written: bool) -> str | None:
        """One line on the data missing in MLflow; None if it has everything."""
        if is_written and not self.refused:
            return None
        trials = {trial for trial in self.refused if trial} | (set() if is_written else self._unwritten.trials())
        reason = next(iter(self.refused.values())) if is_written else self._reason
        lacking = f"it lacks data of {some(len(trials), 'trial')}" if trials else "it lacks the results of the cells"
        lacking = lacking if self.runs else "it has nothing from this command"
        return redacted(
            f"MLflow at {self.uri} failed ({reason}): {lacking}; the ledger has everything, and the same command "
            "updates MLflow once it answers."
        )

    def _do(self, action: Callable[[Runs], object]) -> None:
        if self._is_writing():  # otherwise no thread would run it
            self._unwritten.put(action)

    def _is_writing(self) -> bool:
        return self._thread is not None and not self._unwritten.is_closed

    # The writer's thread.

    def _write_all(self) -> None:
        while job := self._unwritten.take():
            try:
                self._write(job)
            except Exception as error:  # noqa: BLE001 - if the thread ended silently, the driver would wait forever
                self._on_failure(job, error)
            else:
                self._on_answer()

    def _write(self, job: Job) -> None:
        if job.begin is not None:
            self.refused.pop(job.trial, None)
        if not job.trial or job.trial not in self.refused:
            if self.runs is None:
                self.runs = self._opened()
            job.write(self.runs)

    def _opened(self) -> Runs:
        from meltpoint.sweeps.tracking.runs import Runs

        if self._answered_at == -math.inf:
            self._answered_at = time.monotonic()  # importing MLflow does not count as its delay
        runs = Runs(self.sweep, self.uri, self.storage)
        self._open(runs)
        return runs

    def _anew(self, runs: Runs) -> Runs:
        """The runs, opened again if MLflow has refused some, because they may be gone with their store."""
        if self.refused:
            self.runs = self._opened()
            self.refused.clear()
            return self.runs
        return runs

    def _fill_in(self, runs: Runs, records: list[TrialRecord]) -> None:
        """Write the records that MLflow lacks or has only in part."""
        for record in runs.lacking(records):
            self.refused.pop(record.id, None)
            self._unwritten.end(record, (Trial.of(record), record.code_version, record.started_at))

    def _on_answer(self) -> None:
        """Finish a job that is done or finally refused."""
        is_written = self._unwritten.done()
        self._failures, self._answered_at = 0, time.monotonic()
        if self._is_said_away and is_written:
            self._is_said_away = False
            everything = "; all data are written" if not self.refused else ""
            self.say(redacted(f"MLflow at {self.uri} answers again{everything}."))

    def _on_failure(self, job: Job, error: Exception) -> None:
        """Keep the job and wait, or drop it if MLflow refuses only this one."""
        if self._is_refusal(error):
            job.failures += 1
            if job.failures >= ATTEMPTS or self.refused:
                if not self.refused:
                    self.say(redacted(f"A trial cannot be written to MLflow at {self.uri} ({_first_line(error)})."))
                self.refused[job.trial] = _first_line(error)
                self._on_answer()
            else:
                self._unwritten.pause(PAUSES[0])
            return
        self._failures += 1
        self._reason = _first_line(error)
        if self._failures >= 2 and not self._is_said_away:  # a single lost connection is not reported
            self._is_said_away = True
            self.say(redacted(
                f"MLflow at {self.uri} fails ({self._reason}); the sweep continues, "
                "and MLflow is updated once it answers."
            ))  # fmt: skip
        self._unwritten.pause(min(PAUSES[0] * 2 ** min(self._failures - 1, 20), PAUSES[1]))

    def _is_refusal(self, error: Exception) -> bool:
        """True if MLflow answers, so that a retry of the same request is useless."""
        from meltpoint.sweeps.tracking.store import is_about_the_store

        return self.runs is not None and not is_about_the_store(error) and self.runs.answers()


def _first_line(error: Exception) -> str:
    """An error's reason in one line; for a network failure, the text of the innermost system error."""
    reason: BaseException = error
    inner: BaseException | None = error
    while inner is not None:
        reason = inner if isinstance(inner, OSError) else reason
        inner = inner.__cause__ or inner.__context__
    text = (reason.strerror if isinstance(reason, OSError) else None) or str(reason).strip() or type(reason).__name__
    lines = redacted(text).splitlines()
    # SQLAlchemy first reports that a query flushed pending changes, and then why that failed.
    return next((line for line in lines if "result of Query-invoked autoflush" not in line), lines[0])[:160]
