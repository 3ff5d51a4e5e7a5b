"""Files written whole or not at all (beside, then renamed), and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system without locks answers: NFS without its lock service, some FUSE and cluster file systems."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside the one that is wanted; what is written there takes its place if nothing goes wrong.

    A reader sees the old file or the new one, never half of one, also after a power cut: it is on the disk first. Its
    permissions are those that the umask gives, whatever library writes it (safetensors' own are 0600).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    try:
        usual = _make_empty(beside)
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        _set_mode(beside, usual)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write or replace a text file."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def give_usual_mode(path: Path) -> None:
    """Give a file that a library has written with permissions of its own those that the umask gives."""
    beside = _beside(path)
    try:
        _set_mode(path, _make_empty(beside))
    finally:
        beside.unlink(missing_ok=True)


def acquire(file: IO[str], shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; False where another process has it and `wait` is off.

    The kernel frees the lock of a process that dies. A shared folder must know flock (NFS does since Linux 2.6.12).

    Raises:
        ValueError: the file system has no locks; it names the folder and the remedy.
        OSError: anything else, with the file's name.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OSError(error.errno, error.strerror, file.name) from None
        raise ValueError(
            f"{Path(file.name).parent}: its file system has no file locks ({error.strerror}); name a folder on another "
            "one with --storage DIR, or have it mounted with locks (NFS without 'nolock', Lustre with 'flock')."
        ) from None
    return True


def _beside(path: Path) -> Path:
    """A new name in the same folder; processes of two machines may have the same id."""
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")


def _make_empty(path: Path) -> int:
    """Make an empty file and tell its mode: the umask's, which can only be asked for by changing it for a moment."""
    path.touch(exist_ok=False)
    return stat.S_IMODE(path.stat().st_mode)


def _set_mode(path: Path, mode: int) -> None:
    """Change a file's mode where it is another; a file system without modes has nothing to change."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
