"""Durable writing of files (all or nothing, even after a power failure), and file locks between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, NoReturn
from uuid import uuid4


class NoLocksError(ValueError):
    """A file system without file locks."""


NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""The errors of a file system without locks: NFS without its lock service, some FUSE and cluster file systems."""

NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""The errors of a file system that syncs files but not folders, such as some FUSE file systems."""


@contextmanager
def replacing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` unless an error is raised.

    A reader sees the old file or the new file, never a part of it, even after a power failure, because the file is
    synced before it is renamed. After `sync_folder` it is certainly the new file. Its permissions follow the umask,
    whichever library writes it (safetensors writes 0600).

    Args:
        folder: the folder of the temporary path, on the same file system; None for the folder of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path if folder is None else folder / path.name)
    try:
        usual = _make_empty(temporary)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        _set_mode(temporary, usual)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write or replace a text file atomically; a link's target is replaced, a pipe or a device is written to.

    Raises:
        IsADirectoryError: the path is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file", str(path))
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path.resolve() if path.is_symlink() else path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line to a log; it is on the disk when this returns.

    A power failure may leave an incomplete line, so a new line never continues the last one.
    """
    is_new = not path.exists()
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        torn = end > 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents; they are on the disk when this returns."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure, as far as its file system can."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(opened)


def check_removable(folder: Path) -> None:
    """Check that a folder and all its contents can be removed, before removing any.

    Each file and folder is renamed and renamed back, which needs the same rights as its removal (rename(2)). Links are
    not followed, and a folder with a link is not removed: the link's target would remain, or belongs to someone else.

    Raises:
        OSError: one line with the path, the reason, and that nothing was removed.
    """

    def refuse(error: OSError) -> NoReturn:
        raise OSError(f"{error.filename} cannot be removed ({error.strerror}), so nothing was removed") from None

    paths = [
        Path(place, name)
        for place, folders, names in os.walk(folder, topdown=False, onerror=refuse) for name in (*names, *folders)
    ]  # fmt: skip
    for path in (*paths, folder):
        if path.is_symlink():
            raise OSError(
                f"{path} is a link to {path.readlink()}, and links are not followed: nothing was removed. Remove the "
                "link and its target by hand"
            )
    for path in (*paths, folder):
        aside = _temporary(path)
        try:
            path.rename(aside)
            aside.rename(path)
        except OSError as error:
            refuse(error)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all its contents.

    Raises:
        OSError: something in it cannot be removed; one line with the number of files left.
    """
    try:
        shutil.rmtree(folder)
    except OSError as error:
        left = sum(not path.is_dir() for path in folder.rglob("*"))
        raise OSError(
            f"{error.filename} cannot be removed ({error.strerror}); {left} files are left in {folder}"
        ) from None


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file; computed once per process as long as the file does not change."""
    return _file_digest(path, path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, modified_ns: int, size_bytes: int) -> str:
    """sha256 of a file; time and size are part of the cache key, so that a replaced file is hashed again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def give_usual_mode(path: Path) -> None:
    """Set a file's permissions to the umask's default; some libraries set others."""
    temporary = _temporary(path)
    try:
        _set_mode(path, _make_empty(temporary))
    finally:
        temporary.unlink(missing_ok=True)


def acquire(file: IO[str], shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; returns False if another process holds the lock and `wait` is false.

    The kernel releases the lock of a process that dies. A shared folder must support flock (NFS does since Linux
    2.6.12).

    Raises:
        NoLocksError: the file system has no locks; the message names the folder and the remedy.
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
        raise NoLocksError(
            f"{Path(file.name).parent}: its file system has no file locks ({error.strerror}); name a folder on another "
            "one with --storage DIR (for cached states, --cache-dir DIR), or mount it with locks (NFS without "
            "'nolock', Lustre with 'flock')."
        ) from None
    return True


def _temporary(path: Path) -> Path:
    """A unique name in the same folder, not from the process id, which processes on two machines may share."""
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")


def _make_empty(path: Path) -> int:
    """Create an empty file and return its mode, which follows the umask; `os.umask` can only be read by setting it."""
    path.touch(exist_ok=False)
    return stat.S_IMODE(path.stat().st_mode)


def _set_mode(path: Path, mode: int) -> None:
    """Change a file's mode if it differs; on a file system without modes it never differs."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
