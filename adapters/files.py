"""Atomic writing of files (to a temporary file, then renamed), and file locks between processes."""

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
"""The errors of a file system without locks: NFS without its lock service, some FUSE and cluster file systems."""


@contextmanager
def replacing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` unless an error is raised.

    A reader sees the old file or the new one, never a part of it, also after a power failure, because the file is
    synced before it is renamed. Its permissions follow the umask whatever library writes it (safetensors' are 0600).

    Args:
        folder: where the temporary path lies, on the same file system; None for the folder of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path if folder is None else folder / path.name)
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
    """Write or replace a text file atomically."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def give_usual_mode(path: Path) -> None:
    """Set the permissions of a file to those that the umask gives; some libraries write others."""
    beside = _beside(path)
    try:
        _set_mode(path, _make_empty(beside))
    finally:
        beside.unlink(missing_ok=True)


def acquire(file: IO[str], shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; returns False if another process holds the lock and `wait` is false.

    The kernel releases the lock of a process that dies. A shared folder must support flock (NFS does since Linux
    2.6.12).

    Raises:
        ValueError: the file system has no locks; the message names the folder and the remedy.
        OSError: any other error, with the file's name.
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
    """A unique name in the same folder; not by process id, since processes of two machines may have the same one."""
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")


def _make_empty(path: Path) -> int:
    """Create an empty file and return its mode, which follows the umask; `os.umask` can only be read by setting it."""
    path.touch(exist_ok=False)
    return stat.S_IMODE(path.stat().st_mode)


def _set_mode(path: Path, mode: int) -> None:
    """Change a file's mode if it differs; on a file system without modes it never does."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
