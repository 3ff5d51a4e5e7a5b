"""The lease on a sweep: one driver at a time across machines, even on a file system without locks.

Drivers are numbered. `drivers/000007.json` identifies the seventh. A hard link creates the file only if it does not
exist, and it is never deleted, so the highest number has the sweep. A driver writes files in its own folder
(`drivers/000007.staging/`) and renames them into the ledger from there. A driver that takes over claims the next
number and removes the older driver's folder before it reads the ledger. A rename by the older driver then fails,
wherever it was halted.

A lease is taken over at once if its process has provably ended, and otherwise after `SILENCE_SECONDS` without a
heartbeat. The waiting process measures this time on its own clock while it watches the holder's counter: clocks of two
machines are never compared.

In an object store, conditional writes fence the same lease (`ObjectLease`). A driver reads a file's version, checks
that it still has the sweep, and then writes on the condition that the version is unchanged. A driver that takes over
claims the next number, also by a conditional write, and signs every record again with that number. A late write by the
older driver, wherever it was halted, then finds another version and fails. A record that it creates is not among those
that the successor noted, and does not count (`is_late`). Removals and moves of weights are unconditional: a late one
can remove a checkpoint, which is then trained again, or the note of a running trial.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from meltpoint.adapters.files import replacing
from meltpoint.sweeps.ledger.driver_notes import INHERITED
from meltpoint.sweeps.ledger.locks import (
    RELEASED,
    STAGING,
    Claim,
    Owner,
    beat_text,
    is_there,
    latest,
    make,
    shut,
    this_process,
)
from meltpoint.sweeps.storage.files import StoragePath, for_each, remove
from meltpoint.sweeps.storage.object_store import ObjectPath

HEARTBEAT_SECONDS = 5.0
"""The interval between heartbeats; shorter if the silence is set to less than ten times this value."""
MISSED_HEARTBEATS = 4
"""A lease is never taken over before its owner has missed this many heartbeats."""
SILENCE_SECONDS = 300.0
"""The silence after which another driver takes over a lease. File servers fail over in 30 to 120 s (the NFS grace
period is 90 s) and Lustre recovers in up to 5 minutes; no other driver can write during that time either. A driver that
is only cut off thus keeps its trials, and a lost machine costs 5 minutes, less than most trials take."""
SILENCE = "MELTPOINT_TAKE_OVER_SECONDS"
"""The environment variable that sets another silence; two machines may safely use different values."""
Say = Callable[[str], None]


class LeaseLostError(Exception):
    """Another driver has taken over the sweep, or its folder is gone; this driver stops writing."""


def silence_seconds() -> float:
    """The silence after which a lease may be taken over, in seconds.

    Raises:
        ValueError: the environment variable is not a positive number.
    """
    said = os.environ.get(SILENCE, str(SILENCE_SECONDS))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{SILENCE}={said}: set a number of seconds above 0, for example 300.")
    return seconds


class Lease:
    """A sweep's lease, held by this process.

    Attributes:
        attempt: the driver's number, from 1.
        took_over: whether the previous driver did not shut down cleanly.
    """

    def __init__(self, claim: Claim, owner: Owner, took_over: bool) -> None:
        self.claim, self.owner, self.took_over = claim, owner, took_over
        self.attempt = claim.number
        self._successor = Claim(claim.folder, claim.number + 1)
        self._ended, self._writing = threading.Event(), threading.Lock()

    @property
    def staging(self) -> Path:
        """The folder from which it renames files into the ledger."""
        assert isinstance(self.claim.staging, Path)
        return self.claim.staging

    @classmethod
    def settle(cls, claim: Claim, owner: Owner, took_over: bool) -> Self:
        """Shut out all older drivers, and create this driver's folder.

        A successor claims its number first and then removes this folder. So either the check below sees the claim, or
        the successor sees the folder: two drivers never write at the same time.

        Raises:
            LeaseLostError: another driver already has the sweep.
        """
        claim.write_beat(beat_text(1))
        lease = cls(claim, owner, took_over)
        folder = lease.staging.parent
        shut([path for path in folder.glob(f"*{STAGING}") if int(path.stem) < claim.number])
        lease.staging.mkdir()
        try:
            lease.check()
        except LeaseLostError:
            shut([lease.staging])
            raise
        return lease

    def is_lost(self) -> bool:
        """True if another driver has the sweep."""
        return is_there(self._successor.path) or not is_there(self.staging)

    def check(self) -> None:
        """Check that this process still has the sweep.

        Raises:
            LeaseLostError: another driver has it, or its folder is gone.
        """
        if self.is_lost():
            claim = latest(self.claim.folder)
            if claim is None or claim.number <= self.attempt:
                parts = (self.claim.folder.parent, self.claim.folder, self.staging)
                gone = next((one for one in parts if not is_there(one)), self.staging)
                raise LeaseLostError(f"{gone} was removed, renamed or moved; nothing was written after that.")
            who = claim.owner()
            raise LeaseLostError(
                f"another driver has taken over this sweep ({who or 'its files do not say which'}); this one, "
                f"{self.owner}, has written nothing since, and its trials are stopped."
            )

    @contextmanager
    def placing(self, path: StoragePath) -> Iterator[Path]:
        """Yield a local path to write a file at; it replaces `path` after the block.

        Raises:
            LeaseLostError: another driver has the sweep; nothing was replaced.
        """
        assert isinstance(path, Path)
        self.check()
        try:
            with replacing(path, self.staging) as temporary:
                yield temporary
                self.check()
        except OSError:
            self.check()  # a driver that took over removed the folder
            raise

    def move(self, path: StoragePath, target: StoragePath) -> None:
        """Rename a file or folder of the sweep, through the driver's own folder, so that a lost lease prevents it.

        Raises:
            FileNotFoundError: `path` does not exist.
            LeaseLostError: another driver has the sweep.
        """
        assert isinstance(path, Path)
        assert isinstance(target, Path)
        self._rename(self._take(path), target)

    def remove(self, path: StoragePath) -> None:
        """Remove a file or folder of the sweep, if it exists and can be removed; leftovers do no harm.

        Raises:
            LeaseLostError: another driver has the sweep.
        """
        assert isinstance(path, Path)
        with suppress(OSError):
            aside = self._take(path)
            if aside.is_dir():
                shutil.rmtree(aside)
            else:
                aside.unlink()

    def _take(self, path: Path) -> Path:
        try:
            return self._rename(path, self.staging / f"{path.name}.{uuid4().hex}")
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        return path  # on another file system, through a link: only the check protects it

    def _rename(self, path: Path, target: Path) -> Path:
        self.check()
        try:
            return path.rename(target)
        except OSError:
            self.check()
            raise

    def inherit(self, trials: Iterable[StoragePath]) -> None:
        """Note the records that exist when this driver takes over; later ones by older drivers do not count.

        Args:
            trials: the files of all records.
        """
        self._note_inherited(path.stem for path in trials)

    def _note_inherited(self, trials: Iterable[str]) -> None:
        with self.placing(self.claim.path.with_suffix(INHERITED)) as temporary:
            temporary.write_text(json.dumps(sorted(trials)) + "\n", encoding="utf-8")

    def release(self) -> None:
        """End the lease, so that the next driver need not wait; do nothing if it was lost."""
        with self._writing, suppress(OSError):  # if this fails, the next driver sees silence or a dead process
            self._ended.set()
            if not self.is_lost():
                self._shut()
                self.claim.write_beat(RELEASED)

    def _shut(self) -> None:
        """Prevent all further writes under this lease."""
        shut([self.staging])

    def keep_renewing(self, on_lost: Callable[[LeaseLostError], None]) -> None:
        """Renew the lease from a thread until it is released; call `on_lost` once if it was lost."""
        threading.Thread(target=self._renew, args=(on_lost,), name="lease", daemon=True).start()

    def _renew(self, on_lost: Callable[[LeaseLostError], None]) -> None:
        beats = 1
        while not self._ended.wait(self.owner.heartbeat_seconds):
            beats += 1
            try:
                self.renew(beats)
            except LeaseLostError as lost:
                on_lost(lost)
                return
            except OSError:  # the storage is unavailable: it comes back, or another driver takes over
                continue

    def renew(self, beats: int) -> None:
        """Write a heartbeat, unless the lease was released.

        Raises:
            LeaseLostError: another driver has the sweep.
        """
        with self._writing:
            if not self._ended.is_set():
                self.check()
                self.claim.write_beat(beat_text(beats))


class ObjectLease(Lease):
    """A sweep's lease in an object store, held by this process; it has the methods of `Lease`."""

    @classmethod
    def settle(cls, claim: Claim, owner: Owner, took_over: bool) -> Self:
        """Write the first heartbeat; the claim alone shuts out all older drivers."""
        claim.write_beat(beat_text(1))
        lease = cls(claim, owner, took_over)
        lease.check()
        return lease

    def is_lost(self) -> bool:
        """True if another driver has the sweep."""
        return is_there(self._successor.path)

    @contextmanager
    def placing(self, path: StoragePath) -> Iterator[Path]:
        """Yield a local temporary path to write a file at; it replaces `path` after the block."""
        with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
            temporary = Path(scratch) / path.name
            yield temporary
            self._replace(path, temporary.read_bytes())

    def _replace(self, path: StoragePath, contents: bytes) -> None:
        """Write a file; retry if an older driver's write came in between."""
        assert isinstance(path, ObjectPath)
        while True:
            before = path.version()
            self.check()  # after the version was read: a takeover from now on changes it
            if path.replace_if(before, contents):
                return

    def move(self, path: StoragePath, target: StoragePath) -> None:
        """Copy the objects of a folder, then remove them."""
        assert isinstance(path, ObjectPath)
        assert isinstance(target, ObjectPath)
        self.check()
        files = list(path.files())
        if not files:
            raise FileNotFoundError(str(path))
        for file in files:
            file.copy_to(target / file.key.removeprefix(f"{path.key}/"))
        self.remove(path)

    def remove(self, path: StoragePath) -> None:
        """Remove a file or folder of the sweep, if it exists and can be removed."""
        self.check()
        with suppress(OSError):
            remove(path)

    def inherit(self, trials: Iterable[StoragePath]) -> None:
        """Sign all records with this driver's number, and note their ids.

        A write that the previous driver has under way is conditional on the old version, and fails after that.
        """
        signed = list(trials)
        for_each(self._sign, signed)
        self._note_inherited(path.stem for path in signed)

    def _sign(self, path: StoragePath) -> None:
        """Rewrite a record with this driver's number; skip a damaged or missing one."""
        assert isinstance(path, ObjectPath)
        while True:
            before = path.version()
            try:
                record = json.loads(path.read_bytes())
                record["driver_attempt"] = self.attempt
            except (FileNotFoundError, ValueError, TypeError):
                return
            self.check()
            if path.replace_if(before, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()):
                return

    def _shut(self) -> None:
        """Do nothing: a driver that released its lease writes no more, and the next driver's claim shuts it out."""


def acquire(folder: StoragePath, say: Say, has_file_lock: Callable[[], bool] = lambda: False) -> Lease:
    """Take a sweep's lease: at once if it is free, otherwise after its holder has been silent long enough.

    Args:
        folder: `drivers/` of the sweep.
        say: called with a line before a wait.
        has_file_lock: tries to take the sweep's file lock; returns whether this process has it.

    Raises:
        ValueError: another process drives the sweep.
        LeaseLostError: this process was halted in between, and another one now drives the sweep.
    """
    silence, kind = silence_seconds(), ObjectLease if isinstance(folder, ObjectPath) else Lease
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        before = latest(folder)
        if before is not None and not _may_take_over(before, silence, say, has_file_lock):
            continue  # another process came first
        claim = Claim(folder, before.number + 1 if before else 1)
        owner = this_process(uuid4().hex, has_file_lock(), min(HEARTBEAT_SECONDS, silence / 10))
        if make(claim, owner):
            return kind.settle(claim, owner, took_over=before is not None and not before.is_released())


def _may_take_over(claim: Claim, silence: float, say: Say, has_file_lock: Callable[[], bool]) -> bool:
    """Wait until another driver's lease may be taken over; False if its claim is no longer the latest.

    Each look adds at most two pauses to the observed silence of the holder: if the waiter itself was halted, perhaps
    together with the holder and the machine, that time does not count.

    Raises:
        ValueError: its owner is alive.
    """
    pause, silent, has_said = min(1.0, silence / 10), 0.0, False
    first_beat: bytes | None = None
    looked = time.monotonic()
    while True:
        try:
            newest = latest(claim.folder)
            if newest is not None and newest.number != claim.number:
                return False
            owner, beat = claim.owner(), claim.beat()
            if claim.is_free(has_file_lock()):
                return True
            who = owner or "unknown"
            first_beat = beat if first_beat is None else first_beat
            if beat != first_beat or (owner is not None and owner.runs_here()):
                raise ValueError(f"Another process drives this sweep ({who}); wait for it, or stop it first.")
            enough = max(silence, MISSED_HEARTBEATS * owner.heartbeat_seconds if owner else 0.0)
            if not has_said and silent >= min(2 * HEARTBEAT_SECONDS, enough / 3):
                has_said = True
                say(
                    f"The driver of this sweep ({who}) does not renew its lease: it is halted or cut off, or its "
                    f"machine is lost. If it stays silent for {enough:g} s, this process takes over."
                )
            if silent >= enough:
                return True
        except OSError:  # the storage is unavailable here, which does not mean that the holder is silent
            silent = 0.0
        time.sleep(pause)
        silent += min(time.monotonic() - looked, 2 * pause)
        looked = time.monotonic()
