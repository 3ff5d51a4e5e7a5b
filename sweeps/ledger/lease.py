"""The lease on a sweep: one driver at a time on any machine, also where the file system has no locks.

Drivers are numbered. `drivers/000007.json` says who is the seventh; it is made once, by a hard link that fails where
the name is taken, and never deleted, so the highest number has the sweep. A driver writes files in a folder of its own
(`drivers/000007.staging/`) and renames them into the ledger from there. Who takes over claims the next number and
removes that folder before it reads the ledger: a rename of the older driver's then fails, wherever it was halted.

A lease is taken over at once where its process has provably ended, else after `SILENCE_SECONDS` without a heartbeat.
The waiter counts these on its own clock while it looks at the holder's counter: no two machines' clocks are compared.

On an object store the same lease is fenced by conditional writes (`object_lease`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from meltpoint.adapters.files import replacing
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
from meltpoint.sweeps.storage.files import StoragePath, contents, for_each
from meltpoint.tasks.core.files import parse_json

HEARTBEAT_SECONDS = 5.0
"""How often a lease is renewed; more often where the silence is set to less than ten times that."""
MISSED_HEARTBEATS = 4
"""A lease that was silent for less of its owner's heartbeats is never taken over."""
SILENCE_SECONDS = 300.0
"""How long a lease is silent before another driver takes it. Servers of files fail over in 30 to 120 s (NFS's grace
period is 90 s), Lustre's recovery lasts up to 5 minutes; in that time nobody else can write either. So a driver that is
merely cut off keeps its trials, and what a lost machine costs is 5 minutes beside trials of minutes to hours."""
SILENCE = "MELTPOINT_TAKE_OVER_SECONDS"
"""The environment variable that sets another silence; nothing breaks where two machines have different ones."""
INHERITED = ".inherited"

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


Inherited = Mapping[int, frozenset[str]]
"""Number of a driver that took over → the ids of the records that it found."""


def inherited(folder: StoragePath) -> Inherited:
    """The records that each driver found that took a sweep over.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    return dict(for_each(_ids, [path for path in folder.glob(f"*{INHERITED}") if path.stem.isdecimal()]))


def _ids(path: StoragePath) -> tuple[int, frozenset[str]]:
    try:
        ids = parse_json(contents(path))
        if not isinstance(ids, list) or not all(isinstance(trial, str) for trial in ids):
            raise ValueError("not a list of trials")
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, and records that an older driver wrote too late count as well."
        ) from None
    return int(path.stem), frozenset(ids)


def is_late(trial: str, attempt: int, found: Inherited) -> bool:
    """True if a record was written by a driver that had lost the sweep.

    That takes a file system where a rename succeeds out of a folder that another machine has removed.

    Args:
        attempt: the record's `driver_attempt`; 0 is of a version without leases, and never late.
        found: of `inherited`.
    """
    return attempt > 0 and any(attempt < number and trial not in trials for number, trials in found.items())


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
        claim, or the successor sees the folder: this one never writes beside it.

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
            with replacing(path, self.staging) as beside:
                yield beside
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
        with self.placing(self.claim.path.with_suffix(INHERITED)) as beside:
            beside.write_text(json.dumps(sorted(trials)) + "\n", encoding="utf-8")

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


def acquire(
    folder: StoragePath, say: Say, has_file_lock: Callable[[], bool] = lambda: False, kind: type[Lease] = Lease
) -> Lease:  # fmt: skip
    """Take a sweep's lease: at once where nobody has it, else once its holder was silent for long.

    Args:
        folder: `drivers/` of the sweep.
        say: is told before it waits.
        has_file_lock: tries to take the sweep's file lock, and tells whether this process has it.
        kind: how it is fenced, which depends on the storage.

    Raises:
        ValueError: another process drives the sweep.
        LeaseLostError: this process was halted meanwhile, and another one drives the sweep now.
    """
    silence = silence_seconds()
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
