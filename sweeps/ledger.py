"""The ledger: one atomic file a trial. It is what a sweep knows; everything else is rebuilt from it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

from pydantic import ValidationError

from meltpoint.adapters.atomic import write_atomically
from meltpoint.sweeps.records import TrialRecord


def storage_folder(storage: str) -> Path:
    """The absolute folder behind `--storage`.

    Raises:
        ValueError: a URI of another scheme than file, or a place that cannot be written.
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
    """What the trials of all sweeps in a storage folder share: frozen features and stages. It may be deleted."""
    return storage / "cache"


def features_folder(cache: Path) -> Path:
    """The frozen encoders' states."""
    return cache / "features"


def stages_folder(cache: Path) -> Path:
    """First phases that several trials go on from."""
    return cache / "stages"


class Ledger:
    """The folder of one sweep.

    Layout: `sweep.json` (the specification), `trials/ID.json` (finished, stopped or failed), `started/ID.json` (begun,
    not ended), `checkpoints/ID/`, `predictions/`, `ensembles/ID.json`, `exports/`, `test_openings.jsonl`,
    `time_budgets.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials = folder / "trials"
        self.started = folder / "started"
        self.ensembles = folder / "ensembles"

    @property
    def specification(self) -> Path:
        """The file that says what the sweep is."""
        return self.folder / "sweep.json"

    @property
    def openings(self) -> Path:
        """The file that says when test splits were opened, a JSON line a finalist."""
        return self.folder / "test_openings.jsonl"

    @property
    def budgets(self) -> Path:
        """The file that says when time budgets were spent, a JSON line each."""
        return self.folder / "time_budgets.jsonl"

    def create(self) -> None:
        """Make the folders."""
        for folder in (self.trials, self.started):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, record: TrialRecord) -> None:
        """Write or replace a trial's record, and strike it off the started ones."""
        write_atomically(self.trials / f"{record.id}.json", record.model_dump_json(indent=1) + "\n")
        (self.started / f"{record.id}.json").unlink(missing_ok=True)

    def start(self, order: dict[str, object]) -> None:
        """Note that a trial has begun, so that a sweep that is cut off runs the same trial again."""
        write_atomically(self.started / f"{order['id']}.json", json.dumps(order, sort_keys=True) + "\n")

    def records(self) -> list[TrialRecord]:
        """Every record, in the order in which the trials began.

        Raises:
            ValueError: a file that is not a record; it names the file.
        """
        found = [self._read(path) for path in sorted(self.trials.glob("*.json"))]
        return sorted(found, key=lambda record: (record.started_at, record.id))

    def _read(self, path: Path) -> TrialRecord:
        try:
            return TrialRecord.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not a trial's record ({str(error).splitlines()[0]}); delete it, and that trial runs again."
            ) from None

    def unfinished(self) -> list[dict[str, object]]:
        """The orders of trials that began and did not end, oldest first."""
        found = []
        for path in self.started.glob("*.json"):
            if (self.trials / path.name).exists():  # cut off between the record and the strike
                path.unlink()
                continue
            found.append(json.loads(path.read_text(encoding="utf-8")))
        return sorted(found, key=lambda order: (order["role"], order["number"], order["id"]))

    def checkpoint(self, trial: str) -> Path:
        """The folder of a trial's weights."""
        return self.folder / "checkpoints" / trial

    def drop_checkpoint(self, trial: str) -> None:
        """Delete a trial's weights, if it has any."""
        shutil.rmtree(self.checkpoint(trial), ignore_errors=True)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the sweep: one driver at a time.

        Raises:
            ValueError: another process drives it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "driver.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise ValueError(
                    f"Another process drives this sweep ({lock.read().strip()}); wait for it, or stop it first."
                ) from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
            lock.flush()
            yield

    def is_driven(self) -> bool:
        """Whether a process drives the sweep now."""
        path = self.folder / "driver.lock"
        if not path.exists():
            return False
        with path.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            return False
