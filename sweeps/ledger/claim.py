"""A driver's number and its files in `drivers/`: who it is, its heartbeat, and the folder that it writes from."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from meltpoint.adapters.files import append_line
from meltpoint.sweeps.ledger.owner import Owner
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.storage.object_path import ObjectPath

RELEASED = b"released    \n"
"""The last heartbeat of a driver that ended in order."""
STAGING, GONE = ".staging", ".gone"
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
"""The errors of a file system without hard links: exFAT, some FUSE file systems."""


def beat_text(count: int) -> bytes:
    """A heartbeat: a counter, always as long."""
    return b"%012d\n" % count


class Claim:
    """The files of one driver's number.

    Args:
        folder: `drivers/` of a sweep.
    """

    def __init__(self, folder: StoragePath, number: int) -> None:
        self.folder, self.number = folder, number
        self.path = folder / f"{number:06d}.json"
        self.beat_path = folder / f"{number:06d}.beat"
        self.staging = folder / f"{number:06d}{STAGING}"

    def owner(self) -> Owner | None:
        """The process that made it; None if it is damaged, as a crash leaves it where there are no hard links."""
        try:
            return Owner.model_validate_json(self.path.read_bytes())
        except (ValidationError, FileNotFoundError):
            return None

    def beat(self) -> bytes:
        """The owner's latest heartbeat; b"" before the first."""
        try:
            return self.beat_path.read_bytes()
        except FileNotFoundError:
            return b""

    def write_beat(self, text: bytes) -> None:
        """Write a heartbeat into its place: always as long, so that a full disk does not stop it."""
        if isinstance(self.beat_path, ObjectPath):
            self.beat_path.put(text)
            return
        file = os.open(self.beat_path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(file, text, 0)
        finally:
            os.close(file)

    def is_renewed_within(self, seconds: float) -> bool:
        """True if its owner writes a heartbeat while this looks, which compares no clocks."""
        first, deadline = self.beat(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(0.5, seconds / 10))
            if (beat := self.beat()) != first:
                return beat != RELEASED
        return False

    def is_released(self) -> bool:
        """True if its owner has ended in order."""
        return self.beat() == RELEASED

    def is_free(self, file_lock_is_free: bool) -> bool:
        """True if its owner has provably ended."""
        owner = self.owner()
        return self.is_released() or (owner is not None and owner.is_gone(file_lock_is_free))


def latest(folder: StoragePath) -> Claim | None:
    """The claim with the highest number; None if there is none."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return None
    numbers = [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]
    return Claim(folder, max(numbers)) if numbers else None


def is_there(path: StoragePath) -> bool:
    """True if a file or folder exists.

    Raises:
        OSError: the storage does not answer, which says nothing (`Path.exists` calls some of that False).
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def shut(folders: Iterable[Path]) -> None:
    """Remove drivers' folders, so that no rename out of them succeeds.

    Renamed first, which a process on this machine notices at once; one on another machine may know a folder by its
    handle (NFS), and notices that its files are gone.
    """
    for folder in folders:
        with suppress(FileNotFoundError):
            folder.rename(folder.with_name(f"{folder.name}.{uuid4().hex}{GONE}"))
        for gone in folder.parent.glob(f"*{GONE}"):
            shutil.rmtree(gone, ignore_errors=True)


def make(claim: Claim, owner: Owner) -> bool:
    """Make a claim's file, whole, also after a power failure; False if another process was first."""
    path, text = claim.path, owner.model_dump_json() + "\n"
    if isinstance(path, ObjectPath):
        return path.create(text.encode())
    beside = path.with_name(f".{owner.token}.tmp")
    try:
        append_line(beside, text.rstrip())
        os.link(beside, path)
        return True
    except FileExistsError:
        return _is_ours(claim, owner)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _make_without_links(path, claim, owner, text)
    finally:
        beside.unlink(missing_ok=True)


def _is_ours(claim: Claim, owner: Owner) -> bool:
    """True if a link was made though it was refused: NFS repeats a call whose answer was lost."""
    found = claim.owner()
    return found is not None and found.token == owner.token


def _make_without_links(path: Path, claim: Claim, owner: Owner, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return _is_ours(claim, owner)
    return True
