"""The ledger: a sweep's folder with one atomically written file per trial, from which all other state is rebuilt."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlparse

from pydantic import ValidationError

from meltpoint.adapters.files import acquire, write_atomically
from meltpoint.sweeps.ledger.records import TrialDescription, TrialRecord


def storage_folder(storage: str) -> Path:
    """The absolute folder of `--storage`, created if necessary.

    Raises:
        ValueError: a URI of another scheme than file, or a folder that cannot be written.
    """
    parsed = urlparse(storage)
    if parsed.scheme not in ("", "file"):
        raise ValueError(
            f"--storage {storage}: only folders for now; mount the {parsed.scheme} store, or name a shared folder."
        )
    folder = Path(parsed.path if parsed.scheme else storage).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--storage {folder} cannot be written ({error.strerror}); name a folder of yours with --storage DIR."
        ) from None
    return folder


def cache_folder(storage: Path) -> Path:
    """The folder that all sweeps of a storage share: cached features and first phases. It may be deleted."""
    return storage / "cache"


def artifacts_folder(storage: Path) -> Path:
    """The folder of the artifacts of all sweeps' MLflow runs."""
    return storage / "mlartifacts"


def features_folder(cache: Path) -> Path:
    """The folder of frozen encoders' hidden states."""
    return cache / "features"


def first_phases_folder(cache: Path) -> Path:
    """The folder of checkpoints of first phases that several trials continue from."""
    return cache / "stages"


LOCK = "driver.lock"
EMPTY_SWEEP = {LOCK, "trials", "started"}
"""The files and folders that a sweep's folder may contain before `sweep.json` is written."""


class Ledger:
    """The folder of one sweep.

    Layout: `sweep.json` (the specification), `trials/ID.json` (records of finished, stopped and failed trials),
    `started/ID.json` (trials that have begun and not ended), `checkpoints/ID/`, `predictions/`, `ensembles/ID.json`,
    `exports/`, `test_openings.jsonl`, `time_budgets.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials = folder / "trials"
        self.started = folder / "started"
        self.ensembles = folder / "ensembles"

    @property
    def specification(self) -> Path:
        """The file of the sweep's specification."""
        return self.folder / "sweep.json"

    @property
    def openings(self) -> Path:
        """The log of opened test splits, with one JSON line per finalist."""
        return self.folder / "test_openings.jsonl"

    @property
    def budgets(self) -> Path:
        """The log of spent time budgets, with one JSON line each."""
        return self.folder / "time_budgets.jsonl"

    def check_place(self) -> None:
        """Check that the folder is a sweep's, empty, or does not exist.

        Raises:
            ValueError: it is not a folder, or contains other files.
        """
        if self.specification.exists() or not os.path.lexists(self.folder):
            return
        if not self.folder.is_dir():
            raise ValueError(f"--name {self.folder.name}: {self.folder} is no folder; take another --name.")
        other = sorted(path.name for path in self.folder.iterdir() if not _is_of_an_empty_sweep(path))
        if other:
            raise ValueError(
                f"--name {self.folder.name}: {self.folder} holds other things ({other[0]}) and no "
                f"{self.specification.name}; take another --name, or restore that file."
            )

    def create(self) -> None:
        """Create the folders of records and of started trials."""
        for folder in (self.trials, self.started):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, record: TrialRecord) -> None:
        """Write or replace a trial's record, and remove it from the started trials."""
        write_atomically(self.trials / f"{record.id}.json", record.model_dump_json(indent=1) + "\n")
        (self.started / f"{record.id}.json").unlink(missing_ok=True)

    def start(self, order: dict[str, object]) -> None:
        """Note that a trial has begun, so that an interrupted sweep runs the same trial again."""
        write_atomically(self.started / f"{order['id']}.json", json.dumps(order, sort_keys=True) + "\n")

    def records(self) -> list[TrialRecord]:
        """All records, in the order in which the trials began.

        Raises:
            ValueError: a file is not a record; the message names it.
        """
        read = [self._read(path) for path in sorted(self.trials.glob("*.json"))]
        return sorted(read, key=lambda record: (record.started_at, record.id))

    def _read(self, path: Path) -> TrialRecord:
        try:
            return TrialRecord.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not a trial's record ({str(error).splitlines()[0]}); delete it, and that trial runs again."
            ) from None

    def unfinished(self) -> list[dict[str, object]]:
        """The orders of trials that began and did not end, oldest first.

        Raises:
            ValueError: a file is not a started trial's order; the message names it.
        """
        read = [self._note(path) for path in self.started.glob("*.json")]
        return sorted(filter(None, read), key=lambda order: (order["role"], order["number"], order["id"]))

    def _note(self, path: Path) -> dict[str, object] | None:
        """The order of a started trial; None if its record exists, or the file was removed meanwhile."""
        if (self.trials / path.name).exists():
            return None
        try:
            text = path.read_text(encoding="utf-8")
            TrialDescription.model_validate_json(text)
            order: dict[str, object] = json.loads(text)
            return order
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError):
            raise ValueError(
                f"{path} is no started trial's note; delete it: that trial had no result, and is proposed again."
            ) from None

    def clean_started(self) -> list[str]:
        """Delete the files of started trials that have ended, and damaged ones; returns one line per damaged one.

        These files hold no results. A damaged one's trial was interrupted; the search proposes it, or another one.
        """
        lines = []
        for path in self.started.glob("*.json"):
            try:
                ended = self._note(path) is None
            except ValueError:
                lines.append(f"{path} was damaged and is deleted; its trial had no result, and is proposed again.")
                ended = True
            if ended:
                path.unlink(missing_ok=True)
        return sorted(lines)

    def checkpoint(self, trial: str) -> Path:
        """The folder of a trial's checkpoint."""
        return self.folder / "checkpoints" / trial

    def drop_checkpoint(self, trial: str) -> None:
        """Delete a trial's checkpoint, if it has one."""
        shutil.rmtree(self.checkpoint(trial), ignore_errors=True)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the sweep's lock, so that only one process drives it at a time.

        Raises:
            ValueError: another process drives it, its folder cannot be written, or its file system has no locks.
        """
        with self._open_lock() as lock:
            if not acquire(lock, shared=False, wait=False):
                lock.seek(0)
                raise ValueError(
                    f"Another process drives this sweep ({lock.read().strip()}); wait for it, or stop it first."
                )
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
            lock.flush()
            yield

    def _open_lock(self) -> IO[str]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return (self.folder / LOCK).open("a+")
        except OSError as error:
            raise ValueError(
                f"{error.filename or self.folder} cannot be written ({error.strerror}); let its owner run the sweep, "
                "or name a folder of yours with --storage DIR."
            ) from None

    def is_driven(self) -> bool:
        """True if a process drives the sweep now. Writes nothing, so that it works on a read-only copy."""
        path = self.folder / LOCK
        if not path.exists():
            return False
        with path.open() as lock:
            try:
                return not acquire(lock, shared=True, wait=False)
            except ValueError:  # without file locks no process can drive it
                return False


def _is_of_an_empty_sweep(path: Path) -> bool:
    """True if a sweep that was interrupted before it wrote `sweep.json` may have left this file or folder."""
    is_half_written = path.name.startswith(".") and path.name.endswith(".tmp")
    return is_half_written or (path.name in EMPTY_SWEEP and not (path.is_dir() and any(path.iterdir())))
