"""Files of a storage folder or object store: layout, reading, writing, removing.

A storage path is a `pathlib.Path` or an `ObjectPath`, which share the methods for reading. Each difference is one
function here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlparse
from uuid import uuid4

from meltpoint.adapters import files
from meltpoint.adapters.files import replacing, write_atomically
from meltpoint.sweeps.storage.object_client import QUICK, SCHEMES, StoreError
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tasks.core.files import MOST_DOCUMENT_BYTES, read_bytes

NODE_CACHE = "~/.cache/meltpoint/sweeps"
"""The cache folder on each node if the storage is an object store, which cannot be memory-mapped."""


def cache_folder(storage: StoragePath, cache_dir: str | None = None) -> str:
    """The folder that trials share for cached features. It may be deleted.

    Args:
        cache_dir: `--cache-dir`, a folder on each node; None for the storage's own folder, which all nodes share.

    Returns:
        A path that may begin with `~`, the home directory on the node that uses it.
    """
    if cache_dir is not None:
        return cache_dir if cache_dir.startswith("~") else str(Path(cache_dir).absolute())
    return str(storage / "cache") if isinstance(storage, Path) else NODE_CACHE


def sweep_folder(storage: StoragePath, name: str) -> StoragePath:
    """The folder of a sweep in a storage.

    Raises:
        ValueError: the name is not that of a single folder, so that it could lie outside the storage.
    """
    if name in ("", ".", "..") or set(name) & {"/", os.sep, "\0"}:
        raise ValueError(f"{name!r} is not a sweep name; name one in {storage}, or another folder with --storage.")
    return storage / name


def artifacts_folder(storage: StoragePath) -> StoragePath:
    """The folder of the artifacts of all sweeps' MLflow runs."""
    return storage / "mlartifacts"


def features_folder(cache: str) -> Path:
    """The folder of frozen encoders' hidden states, on this machine."""
    return Path(cache).expanduser() / "features"


StoragePath = Path | ObjectPath
Result = TypeVar("Result")

TOGETHER = 16
"""Concurrent requests to an object store: each takes 10 to 100 ms, nearly all of it waiting."""


def is_object_store(storage: str) -> bool:
    """True for `s3://…` and `gs://…`."""
    return storage.partition("://")[0] in SCHEMES and "://" in storage


def storage_path(text: str) -> StoragePath:
    """Parse a storage path; this accesses no storage.

    Raises:
        ValueError: a URI with another scheme, or an unknown user after `~`.
    """
    if is_object_store(text):
        return ObjectPath.of(text)
    if "://" in text and not text.startswith("file://"):
        raise ValueError(
            f"--storage {text}: use a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX; mount the "
            f"{text.partition(':')[0]} store as a folder, or name a shared folder."
        )
    try:
        return Path(urlparse(text).path if text.startswith("file://") else text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"--storage {text}: this machine has no such user; name a folder without ~.") from None


def readable_storage(text: str) -> StoragePath:
    """The storage that `--storage` names, for reading; an object store is checked for access.

    Raises:
        ValueError: not a folder, or not readable by this user; no such bucket, missing or wrong credentials, or no
            answer in 10 s; one line with the remedy.
    """
    storage = storage_path(text)
    if isinstance(storage, ObjectPath):
        try:
            storage.with_patience(QUICK).is_dir()
        except StoreError as error:
            raise ValueError(f"--storage {error}.") from None
    elif storage.exists() and not storage.is_dir():
        raise ValueError(f"--storage {text} is not a folder; name one.")
    elif storage.is_dir() and not os.access(storage, os.R_OK | os.X_OK):
        raise ValueError(f"--storage {text}: you may not read that folder; ask its owner, or name another one.")
    return storage


def storage_folder(text: str) -> StoragePath:
    """The storage that `--storage` names, for writing; a folder is created if necessary.

    Raises:
        ValueError: a URI with another scheme, a folder or object store that is not writable, or an object store without
            conditional writes.
    """
    storage = readable_storage(text)
    try:
        if isinstance(storage, ObjectPath):
            check_conditional_writes(storage.with_patience(QUICK))
        else:
            storage.mkdir(parents=True, exist_ok=True)
            probe = storage / f".write-probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
    except StoreError as error:
        raise ValueError(f"--storage {error}.") from None
    except OSError as error:
        raise ValueError(
            f"--storage {storage} is not writable ({error.strerror}); use a folder of your own with --storage DIR."
        ) from None
    return storage


def check_conditional_writes(storage: ObjectPath) -> None:
    """Check that a store refuses to create an existing object or replace a changed one; leave nothing behind.

    A store that accepts the conditions but ignores them would let two drivers write at once.

    Raises:
        StoreError: the store ignores the conditions, or is not writable.
    """
    probe = storage / f"write-probe-{uuid4().hex}"
    try:
        made = probe.create(b"first")
        before = probe.version()
        is_kept = not probe.create(b"second")
        has_changed = probe.replace_if(before, b"third")
        is_kept = is_kept and not probe.replace_if(before, b"fourth")
        if not (made and has_changed and is_kept and probe.read_bytes() == b"third"):
            raise StoreError(
                f"{storage.root} ignores conditional writes (If-None-Match, If-Match), so two drivers could write at "
                "once; name a store that supports them, or a folder"
            )
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def contents(path: StoragePath, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """The contents of a file that others may have written.

    Raises:
        ValueError: it is larger than `most_bytes`.
        OSError: it cannot be read.
    """
    if isinstance(path, Path):
        return read_bytes(path, most_bytes)
    if path.stat().st_size > most_bytes:
        raise ValueError(f"{path} is larger than {most_bytes} bytes, the limit; split it, or shorten it.")
    return path.read_bytes()


def make_folder(folder: StoragePath) -> None:
    """Create a folder and its parents durably; an object store has no folders."""
    if isinstance(folder, Path):
        files.make_folders(folder)


def sync_names(folder: StoragePath) -> None:
    """Make the names in a folder durable; in an object store, they already are."""
    if isinstance(folder, Path):
        files.sync_folder(folder)


def write(path: StoragePath, text: str) -> None:
    """Write or replace a file atomically: a reader sees the old contents or the new ones."""
    if isinstance(path, Path):
        write_atomically(path, text)
    else:
        path.put(text.encode())


def append_line(path: StoragePath, document: dict[str, object]) -> None:
    """Append a line of JSON to a file; several processes may do so at once.

    An object cannot be appended to: it is read and replaced, and this is repeated if it changed in between. If the
    answer to a write was lost, another process may have written since: the object then begins with the text written
    here.
    """
    line = json.dumps(document) + "\n"
    if isinstance(path, Path):
        files.append_line(path, line.rstrip("\n"))
        return
    written: str | None = None
    while True:
        before = path.version()
        lines = path.read_text() if before is not None else ""
        if written is not None and lines.startswith(written):
            return
        written = lines + line
        if path.replace_if(before, written.encode()):
            return


def remove(path: StoragePath) -> None:
    """Remove a file, or a folder with its contents, if it exists; for a link, only the link.

    Raises:
        OSError: a file or folder cannot be removed.
    """
    if isinstance(path, Path):
        if path.is_dir() and not path.is_symlink():
            files.remove_folder(path)
        else:
            path.unlink(missing_ok=True)
        return
    for file in list(path.files()):
        file.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def rename(path: StoragePath, target: StoragePath) -> None:
    """Rename a file within its folder; an object is copied, then removed."""
    if isinstance(path, Path):
        path.replace(str(target))
        return
    assert isinstance(target, ObjectPath)
    path.copy_to(target)
    path.unlink(missing_ok=True)


@contextmanager
def storing(path: StoragePath) -> Iterator[Path]:
    """Yield a local path to write a file at; it replaces `path` after the block, unless the block raises."""
    if isinstance(path, Path):
        with replacing(path) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        local = Path(scratch) / path.name
        yield local
        path.put(local)


@contextmanager
def storing_folder(folder: StoragePath) -> Iterator[Path]:
    """Yield a local folder to write files in; they are in `folder` after the block."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        local = Path(scratch) / folder.name
        yield local
        for file in sorted(path for path in local.rglob("*") if path.is_file()):
            (folder / file.relative_to(local).as_posix()).put(file)


@contextmanager
def local_copy(path: StoragePath) -> Iterator[Path]:
    """Yield a local file with the contents of `path`: itself, or a copy that is removed after the block.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        local = Path(scratch) / path.name
        path.download(local)
        yield local


def scratch_of(path: StoragePath) -> Path:
    """The local folder whose disk space a write to `path` uses: its own, or the temporary folder."""
    return path if isinstance(path, Path) else Path(tempfile.gettempdir())


def for_each(function: Callable[[StoragePath], Result], paths: Iterable[StoragePath]) -> list[Result]:
    """Apply a function to paths, in order; requests to an object store run concurrently."""
    listed = list(paths)
    if len(listed) < 2 or isinstance(listed[0], Path):
        return [function(path) for path in listed]
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(function, listed))
