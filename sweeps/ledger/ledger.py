"""The ledger: a sweep's folder with one atomically written file per trial, from which all other state is rebuilt.

The layout is the same on a file system and in an object store.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger.driver_notes import inherited, is_late
from meltpoint.sweeps.ledger.lease import Lease, LeaseLostError
from meltpoint.sweeps.ledger.locks import LOCK, file_lock, latest
from meltpoint.sweeps.ledger.records import STATES, Trial, TrialRecord, reason
from meltpoint.sweeps.storage.files import (
    StoragePath,
    contents,
    for_each,
    make_folder,
    remove,
    sync_names,
    write,
)
from meltpoint.tasks.core.files import parse_json
from meltpoint.tasks.core.wording import some

DRIVERS = "drivers"
EMPTY_SWEEP = {LOCK, DRIVERS, "trials", "started"}
"""The files and folders that a sweep's folder may contain before `sweep.json` is written, if they are empty."""
TASK, DATA = "task.yaml", "data"
"""The task that `tune` drafted, and the files that it reads; both are written before `sweep.json`."""


class Ledger:
    """The folder of one sweep.

    Layout: `sweep.json` (the specification), `trials/ID.json` (records of finished, stopped and failed trials),
    `started/ID.json` (trials that have started and not ended), `checkpoints/ID/`, `predictions/`, `ensembles/ID.json`,
    `exports/`, `test_openings.jsonl`, `test_rounds.jsonl`,
    `test_checks.jsonl`, `time_budgets.jsonl`, `drivers/` (`lease`).

    Attributes:
        specification: the file of the sweep's specification.
        openings: the log of test split openings, one JSON line per finalist.
        test_checks: the log of checks of test splits before a search, one JSON line per task.
        test_rounds: the log of test rounds after the first, one JSON line each.
        budgets: the log of spent time budgets, one JSON line each.
        lease: this process's lease while it drives the sweep; otherwise None.
        left_out: the ids of records that `records` left out because a driver wrote them after it had lost the sweep.
    """

    def __init__(self, folder: StoragePath) -> None:
        self.folder = folder
        self.trials = folder / "trials"
        self.started = folder / "started"
        self.ensembles = folder / "ensembles"
        self.drivers = folder / DRIVERS
        self.specification = folder / "sweep.json"
        self.openings = folder / "test_openings.jsonl"
        self.test_checks = folder / "test_checks.jsonl"
        self.test_rounds = folder / "test_rounds.jsonl"
        self.budgets = folder / "time_budgets.jsonl"
        self.lease: Lease | None = None
        self.left_out: list[str] = []

    def check_place(self) -> None:
        """Check that the folder is a sweep's, empty, or does not exist.

        Raises:
            ValueError: it is not a folder, or contains other files.
        """
        if self.specification.exists() or (isinstance(self.folder, Path) and not os.path.lexists(self.folder)):
            return
        if isinstance(self.folder, Path) and not self.folder.is_dir():
            raise ValueError(f"--name {self.folder.name}: {self.folder} is not a folder; choose another --name.")
        other = sorted(path.name for path in self.folder.iterdir() if not _is_of_an_empty_sweep(path))
        if other:
            raise ValueError(
                f"--name {self.folder.name}: {self.folder} contains other files ({other[0]}) and no "
                f"{self.specification.name}; choose another --name, or restore that file."
            )

    def has_begun(self, with_test: bool) -> bool:
        """True if trials may have run: the specification is there and, `with_test`, a test file was found valid.

        A sweep whose test file was refused has neither a trial nor a check.
        """
        if not self.specification.exists():
            return False
        tried = any(folder.exists() and any(folder.iterdir()) for folder in (self.trials, self.started))
        return not with_test or tried or self.test_checks.exists()

    def create(self) -> None:
        """Create the folders of records and of started trials."""
        for folder in (self.trials, self.started):
            make_folder(folder)

    @property
    def attempt(self) -> int:
        """This process's driver number; 0 if it does not drive the sweep."""
        return 0 if self.lease is None else self.lease.attempt

    def write(self, record: TrialRecord) -> None:
        """Write or replace a trial's record, and remove its note in `started/` and its saved epochs.

        The record is durable when this returns.

        Raises:
            LeaseLostError: another driver has the sweep; nothing was written.
        """
        written = record.model_copy(update={"driver_attempt": self.attempt}) if self.lease else record
        self.place(self.trials / f"{record.id}.json", written.model_dump_json(indent=1) + "\n")
        sync_names(self.trials)
        self._remove(self.started / f"{record.id}.json")
        self._drop_states(record)

    def start(self, order: dict[str, object]) -> None:
        """Note that a trial has started, so that an interrupted sweep runs the same trial again."""
        note = {**order, "driver_attempt": self.attempt} if self.lease else order
        self.place(self.started / f"{order['id']}.json", json.dumps(note, sort_keys=True) + "\n")

    def place(self, path: StoragePath, text: str) -> None:
        """Write or replace a file of the sweep, through the lease if this process holds it.

        Raises:
            LeaseLostError: another driver has the sweep; nothing was written.
        """
        if self.lease is None:
            write(path, text)
            return
        with self.lease.placing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _remove(self, path: StoragePath) -> None:
        if self.lease is not None:
            self.lease.remove(path)
        else:
            remove(path)

    def records(self, damaged: dict[str, str] | None = None) -> list[TrialRecord]:
        """All records, in the order in which the trials started.

        Args:
            damaged: receives the id of each file that is not a record, with a line that names it. None: raise instead.

        Raises:
            ValueError: a file is not a record, and `damaged` is None; the message names the file.
        """
        found = inherited(self.drivers)

        def readable(path: StoragePath) -> TrialRecord | None:
            try:
                return self._read(path)
            except FileNotFoundError:  # it was removed meanwhile
                return None
            except ValueError as error:
                if damaged is None:
                    raise
                damaged[path.stem] = str(error)
                return None

        read = [record for record in for_each(readable, self.trials.glob("*.json")) if record is not None]
        late = [one for one in read if is_late(one.id, one.driver_attempt, found)] if found else []
        self.left_out = sorted(record.id for record in late)
        kept = [record for record in read if record.id not in set(self.left_out)] if late else read
        return sorted(kept, key=attrgetter("started_at", "id"))

    def late_lines(self) -> list[str]:
        """A line about the records that `records` left out; none if it left out none."""
        if not self.left_out:
            return []
        names = ", ".join(f"{trial}.json" for trial in self.left_out[:3]) + (", …" if len(self.left_out) > 3 else "")
        return [
            f"Left out: {some(len(self.left_out), 'record')} ({names}) that a driver wrote after another one had taken "
            f"over; the trials run again. To count the records anyway, delete {self.drivers / '*.inherited'}."
        ]

    def _read(self, path: StoragePath) -> TrialRecord:
        try:
            record = TrialRecord.model_validate_json(contents(path))
            if record.id != path.stem:
                raise ValueError(f"its id is {record.id}")
        except ValueError as error:
            raise ValueError(
                f"{path} is not a trial record ({reason(error)}); delete it to run that trial again."
            ) from None
        return record

    def unfinished(self) -> list[dict[str, object]]:
        """The orders of trials that started and did not end, by role, number and id.

        Raises:
            ValueError: a file is not a started trial's order; the message names it.
        """
        read = for_each(self._note, self.started.glob("*.json"))
        return sorted(filter(None, read), key=lambda order: (order["role"], order["number"], order["id"]))

    def _note(self, path: StoragePath) -> dict[str, object] | None:
        """The order of a started trial; None if its record exists, or the file has just been removed."""
        if (self.trials / path.name).exists():
            return None
        try:
            order: dict[str, object] = parse_json(contents(path))
            if Trial.model_validate(order).id != path.stem:
                raise ValueError("it belongs to another trial")
            return order
        except FileNotFoundError:
            return None
        except ValueError:
            raise ValueError(
                f"{path} is not a started trial's note; delete it: that trial had no result, and is proposed again."
            ) from None

    def clean_started(self) -> list[str]:
        """Delete notes in `started/` of trials that have ended, and damaged notes; return one line per damaged note.

        The notes hold no results. A damaged note's trial was interrupted; the search proposes it, or another one.
        """
        lines = []
        for path in self.started.glob("*.json"):
            try:
                ended = self._note(path) is None
            except ValueError:
                lines.append(f"{path} was damaged and has been deleted; its trial had no result and is proposed again.")
                ended = True
            if ended:
                self._remove(path)
        return sorted(lines)

    def checkpoint(self, trial: str) -> StoragePath:
        """The folder of a trial's checkpoint."""
        return self.folder / "checkpoints" / trial

    def _drop_states(self, record: TrialRecord) -> None:
        """Delete the saved epochs of an ended trial. A lost trial keeps them; its next attempt resumes from them."""
        if record.is_lost:
            return
        folder = self.checkpoint(record.id)
        states: list[StoragePath] = list(folder.glob(STATES))
        for path in states:
            self._remove(path)
        if isinstance(folder, Path):
            with suppress(OSError):  # it does not exist, or contains the trial's weights
                folder.rmdir()

    def clean_states(self, records: Iterable[TrialRecord]) -> None:
        """Delete saved epochs of ended trials: an abandoned worker may have written them after the end."""
        left = {path.parent.name for path in (self.folder / "checkpoints").glob(f"*/{STATES}")}
        for record in records if left else ():
            if record.id in left:
                self._drop_states(record)

    def drop_checkpoint(self, trial: str) -> None:
        """Delete a trial's checkpoint, if it has one."""
        self._remove(self.checkpoint(trial))

    def move_checkpoint(self, trial: str, other: str) -> None:
        """Give a trial's checkpoint to another trial."""
        source, target = self.checkpoint(trial), self.checkpoint(other)
        if self.lease is not None:
            self.lease.move(source, target)
        elif isinstance(source, Path):
            source.replace(str(target))

    @contextmanager
    def driving(
        self, say: Callable[[str], None] = print, on_lost: Callable[[LeaseLostError], None] | None = None
    ) -> Iterator[None]:
        """Hold the sweep's lease, and its file lock where supported, so that only one process drives it at a time.

        Args:
            say: called with a line before waiting for a silent driver.
            on_lost: called in its own thread when another driver has taken over.

        Raises:
            ValueError: another process drives the sweep, or its folder is not writable.
        """
        with file_lock(self.folder) as take_lock:
            lease = leases.acquire(self.drivers, say, take_lock)
            self.lease = lease
            try:
                if lease.took_over:
                    lease.inherit(self.trials.glob("*.json"))
                lease.keep_renewing(on_lost or (lambda lost: None))
                yield
            finally:
                lease.release()
                self.lease = None

    def is_driven(self) -> bool:
        """True if another process appears to drive the sweep. It writes nothing, because a copy may be read-only.

        For a driver on another machine, only the age of its last heartbeat is known, which assumes that the clocks
        agree. The answer is only displayed; nothing else depends on it.
        """
        claim = None if self.lease is not None else latest(self.drivers)
        if claim is None or claim.is_free(file_lock_is_free=False):
            return False
        owner = claim.owner()
        if owner is not None and owner.runs_here():
            return True
        try:
            age = time.time() - claim.beat_path.stat().st_mtime
        except FileNotFoundError:
            return False
        return abs(age) < leases.silence_seconds()


def _is_of_an_empty_sweep(path: StoragePath) -> bool:
    """True if a sweep that was interrupted before it wrote `sweep.json` may have left this file or folder."""
    is_half_written = path.name.startswith(".") and path.name.endswith(".tmp")
    is_empty = path.name == DRIVERS or not (path.is_dir() and any(path.iterdir()))
    return is_half_written or path.name in (TASK, DATA) or (path.name in EMPTY_SWEEP and is_empty)


# Logs: append-only files with one JSON object per line.

LAST_MOMENT = 1e11
"""Seconds since 1970, in the year 5138. A later time means damage, and `datetime` cannot hold the largest ones."""

Line = TypeVar("Line", bound=BaseModel)


def read_lines(path: StoragePath, line_class: type[Line]) -> list[Line]:
    """Read a log; empty if it does not exist.

    An incomplete line is left out: the power failed during the write, and the action that it announces was not taken.

    Raises:
        ValueError: a line is damaged; the message names the file.
    """
    try:
        lines = contents(path).decode("utf-8").split("\n")
        return [line_class.model_validate_json(line) for line in lines if _is_whole(line)]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{path} has a damaged line ({reason(error)}); delete that line.") from None


def _is_whole(line: str) -> bool:
    return bool(line.strip()) and not (line[0] == "{" and line[-1] != "}")
