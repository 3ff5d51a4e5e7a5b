"""The lease on a sweep: one driver at a time on any machine, also where the file system has no locks.

Drivers are numbered. `drivers/000007.json` says who is the seventh; a hard link creates it only where it is not there,
and it is never deleted, so the highest number has the sweep. A driver writes files in a folder of its own
(`drivers/000007.staging/`) and renames them into the ledger from there. A driver that takes over claims the next
number and removes that folder before it reads the ledger: a rename of the older driver's then fails, wherever it was
halted.

A lease is taken over at once where its process has provably ended, else after `SILENCE_SECONDS` without a heartbeat.
The waiter counts these on its own clock while it looks at the holder's counter: no two machines' clocks are compared.

On an object store the same lease is fenced by conditional writes (`ObjectLease`). A driver reads a file's version,
checks that it still has the sweep, and then writes on the condition that the version is the same. A driver that takes
over claims the next number, which is a conditional write too, and signs every record anew with that number. A late
write of the older driver, wherever it was halted, then finds another version and fails; a record that it makes anew is
not among those that the successor noted, and does not count (`is_late`). Removals and moves of weights have no
condition: a late one can take away a checkpoint, which is trained again, or the note of a trial that runs.
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
from meltpoint.sweeps.storage.object_path import ObjectPath

HEARTBEAT_SECONDS = 5.0
"""How often a lease is renewed; more often where the silence is set to less than ten times that."""
MISSED_HEARTBEATS = 4
"""A lease that was silent for less of its owner's heartbeats is never taken over."""
SILENCE_SECONDS = 300.0
"""How long a lease is silent before another driver takes it. Servers of files fail over in 30 to 120 s (NFS's grace
period is 90 s), Lustre's recovery lasts up to 5 minutes; in that time nobody else can write either. So a driver that is
merely cut off keeps its trials, and what a lost machine costs is 5 minutes, less than most trials take."""
SILENCE = "MELTPOINT_TAKE_OVER_SECONDS"
"""The environment variable that sets another silence; nothing breaks where two machines have different ones."""
Say = Callable[[str], None]


class LeaseLostError(Exception):
    """Another driver has taken over the sweep, or its folder is gone; this one writes nothing more."""


def silence_seconds() -> float:
    """The silence after which a lease may be taken over, in seconds.

    Raises:
        ValueError: the environment variable is no positive number.
    """
    said = os.environ.get(SILENCE, str(SILENCE_SECONDS))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{SILENCE}={said}: write a number of seconds above 0, as 300.")
    return seconds


class Lease:
    """A sweep's lease, held by this process.

    Attributes:
        attempt: the driver's number, from 1.
        took_over: whether the driver before it had not ended in order.
    """

    def __init__(self, claim: Claim, owner: Owner, took_over: bool) -> None:
        self.claim, self.owner, self.took_over = claim, owner, took_over
        self.attempt = claim.number
        self._successor = Claim(claim.folder, claim.number + 1)
        self._ended, self._writing = threading.Event(), threading.Lock()

    @property
    def staging(self) -> Path:
        """The folder that it renames files from."""
        assert isinstance(self.claim.staging, Path)
        return self.claim.staging

    @classmethod
    def settle(cls, claim: Claim, owner: Owner, took_over: bool) -> Self:
        """Shut out all older drivers, and open a folder for this one.

        A successor of this one claims its number first and then removes this folder. So either the check below sees the
        claim, or the successor sees the folder: this one never writes next to it.

        Raises:
            LeaseLostError: another driver has the sweep already.
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
                raise LeaseLostError(f"{gone} is gone: removed, renamed or moved; nothing was written after that.")
            who = claim.owner()
            raise LeaseLostError(
                f"another driver has taken over this sweep ({who or 'its files do not say which'}); this one, "
                f"{self.owner}, wrote nothing after that, and its trials are ended."
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
            self.check()  # its folder was removed by the one that took over
            raise

    def move(self, path: StoragePath, target: StoragePath) -> None:
        """Rename a file or folder of the sweep; through the driver's own folder, so that a lost lease stops it.

        Raises:
            FileNotFoundError: there is none.
            LeaseLostError: another driver has the sweep.
        """
        assert isinstance(path, Path)
        assert isinstance(target, Path)
        self._rename(self._take(path), target)

    def remove(self, path: StoragePath) -> None:
        """Remove a file or folder of the sweep, if it is there and can be removed: what is left over does no harm.

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
        return path  # on another file system (a link to one): nothing but the check protects it

    def _rename(self, path: Path, target: Path) -> Path:
        self.check()
        try:
            return path.rename(target)
        except OSError:
            self.check()
            raise

    def inherit(self, trials: Iterable[StoragePath]) -> None:
        """Write down which records there were when this driver took over; older drivers' later ones do not count.

        Args:
            trials: the files of all records.
        """
        self._note_inherited(path.stem for path in trials)

    def _note_inherited(self, trials: Iterable[str]) -> None:
        with self.placing(self.claim.path.with_suffix(INHERITED)) as temporary:
            temporary.write_text(json.dumps(sorted(trials)) + "\n", encoding="utf-8")

    def release(self) -> None:
        """End the lease, so that the next driver need not wait; nothing where it was lost."""
        with self._writing, suppress(OSError):  # then it is found to be silent, or its process gone
            self._ended.set()
            if not self.is_lost():
                self._shut()
                self.claim.write_beat(RELEASED)

    def _shut(self) -> None:
        """Let nothing be written with this lease any more."""
        shut([self.staging])

    def keep_renewing(self, on_lost: Callable[[LeaseLostError], None]) -> None:
        """Renew it from a thread until it is released; tell once if it was lost."""
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
            except OSError:  # the storage is away: it comes back, or another driver has taken over by then
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
    """A sweep's lease in an object store, held by this process; the methods are those of `Lease`."""

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
        """As in a folder, from a folder of this machine's for temporary files."""
        with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
            temporary = Path(scratch) / path.name
            yield temporary
            self._replace(path, temporary.read_bytes())

    def _replace(self, path: StoragePath, contents: bytes) -> None:
        """Write a file; once more where an older driver's write came in between."""
        assert isinstance(path, ObjectPath)
        while True:
            before = path.version()
            self.check()  # after the version was read: whoever takes over now changes it
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
        """Remove a file or folder of the sweep, if it is there and can be removed."""
        self.check()
        with suppress(OSError):
            remove(path)

    def inherit(self, trials: Iterable[StoragePath]) -> None:
        """Sign all records with this driver's number, and write down which they are.

        A write that the driver before has under way is conditional on the version that it knows, and fails after that.
        """
        signed = list(trials)
        for_each(self._sign, signed)
        self._note_inherited(path.stem for path in signed)

    def _sign(self, path: StoragePath) -> None:
        """Write a record again with this driver's number; one that is damaged or gone stays so."""
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
        """Nothing: a driver that released its lease writes no more, and the next one's claim shuts it out."""


def acquire(folder: StoragePath, say: Say, has_file_lock: Callable[[], bool] = lambda: False) -> Lease:
    """Take a sweep's lease: at once where nobody has it, else once its holder was silent for long.

    Args:
        folder: `drivers/` of the sweep.
        say: is told before it waits.
        has_file_lock: tries to take the sweep's file lock, and tells whether this process has it.

    Raises:
        ValueError: another process drives the sweep.
        LeaseLostError: this process was halted meanwhile, and another one drives the sweep now.
    """
    silence, kind = silence_seconds(), ObjectLease if isinstance(folder, ObjectPath) else Lease
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        before = latest(folder)
        if before is not None and not _Watch(before, silence, say, has_file_lock).wait():
            continue  # another one came first
        claim = Claim(folder, before.number + 1 if before else 1)
        owner = this_process(uuid4().hex, has_file_lock(), min(HEARTBEAT_SECONDS, silence / 10))
        if make(claim, owner):
            return kind.settle(claim, owner, took_over=before is not None and not before.is_released())


class _Watch:
    """Waiting for another driver's lease to end.

    Attributes:
        silent: how long its holder was seen to be silent, in seconds. Each look adds at most two pauses: a waiter that
            was halted itself, perhaps with the holder and the whole machine, does not take that time for silence.
    """

    def __init__(self, claim: Claim, silence: float, say: Say, has_file_lock: Callable[[], bool]) -> None:
        self.claim, self.silence, self.say, self.has_file_lock = claim, silence, say, has_file_lock
        self.silent, self.pause = 0.0, min(1.0, silence / 10)
        self.first_beat: bytes | None = None
        self.has_said = False

    def wait(self) -> bool:
        """Wait until the claim may be followed by another; False if it is no longer the latest.

        Raises:
            ValueError: its owner is alive.
        """
        looked = time.monotonic()
        while True:
            try:
                verdict = self._look()
            except OSError:  # the storage is away, for this process at least: no silence of the holder's
                verdict, self.silent = None, 0.0
            if verdict is not None:
                return verdict
            time.sleep(self.pause)
            self.silent += min(time.monotonic() - looked, 2 * self.pause)
            looked = time.monotonic()

    def _look(self) -> bool | None:
        """As `wait`; None if it has to look again."""
        newest = latest(self.claim.folder)
        if newest is not None and newest.number != self.claim.number:
            return False
        owner, beat = self.claim.owner(), self.claim.beat()
        if self.claim.is_free(self.has_file_lock()):
            return True
        self.first_beat = beat if self.first_beat is None else self.first_beat
        if beat != self.first_beat or (owner is not None and owner.runs_here()):
            raise ValueError(
                f"Another process drives this sweep ({owner or 'unknown'}); wait for it, or stop it first."
            )
        enough = max(self.silence, MISSED_HEARTBEATS * owner.heartbeat_seconds if owner else 0.0)
        self._say_once(owner, enough)
        return True if self.silent >= enough else None

    def _say_once(self, owner: Owner | None, enough: float) -> None:
        if self.has_said or self.silent < min(2 * HEARTBEAT_SECONDS, enough / 3):
            return
        self.has_said = True
        self.say(
            f"The driver of this sweep ({owner or 'unknown'}) does not renew its lease: it is halted or cut off, or "
            f"its machine is lost. If it stays silent for {enough:g} s, this one takes over."
        )
