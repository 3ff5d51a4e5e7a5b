"""The feature cache: a frozen encoder's hidden states of a split, shared by all trials, processes and machines.

This module describes, locks, lists and removes the cache's entries, and imports no torch. `CACHE/ID/` is an entry:
`entry.json`, and three files per shard (`layout.Shard`). Each process that has the entry open holds a shared lock on
`CACHE/ID.lock`; removing the entry takes an exclusive lock.

`reading.open_features` opens an entry and encodes its missing part, `reading.Features.gather` reads a batch from it,
and `reading.choose` decides whether an entry fits into the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from meltpoint.adapters.files import acquire, check_removable, remove_folder, write_atomically


@dataclass(frozen=True)
class Entry:
    """A cache entry's metadata, read from the disk.

    Attributes:
        id: the name of its folder.
        encoder, task, split: its users, separated by commas; several tasks over the same texts share an entry.
        rows: number of rows of the split.
        bytes: size on the disk.
        last_used: seconds since 1970.
    """

    id: str
    encoder: str
    task: str
    split: str
    rows: int
    bytes: int
    last_used: float


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on a file; yields False if another process holds one and `wait` is false."""
    with path.open("a") as file:
        yield acquire(file, shared=False, wait=wait)


def hold(cache: Path, entry_id: str) -> IO[str]:
    """Keep an entry from being removed until the returned file is closed or garbage-collected."""
    cache.mkdir(parents=True, exist_ok=True)
    file = (cache / f"{entry_id}.lock").open("a")
    acquire(file, shared=True, wait=True)
    return file


def describe(folder: Path, facts: Mapping[str, Any], note: Mapping[str, str]) -> None:
    """Write `entry.json`, add `note` (the entry's user), and set the time of last use; the caller holds the lock."""
    path = folder / "entry.json"
    known = _document(path)
    notes = [*known.get("notes", []), *([dict(note)] if dict(note) not in known.get("notes", []) else [])]
    written = {**facts, "notes": notes}
    if written != known:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(written, sort_keys=True))
    os.utime(path)


def entries(cache: Path) -> list[Entry]:
    """Every entry, the least recently used first."""
    read = [_read(path.parent) for path in cache.glob("*/entry.json")]
    return sorted((entry for entry in read if entry is not None), key=lambda entry: (entry.last_used, entry.id))


def remove(cache: Path, entry_id: str) -> bool:
    """Delete an entry; returns False, and deletes nothing, if a process has it open.

    Raises:
        OSError: one of its files cannot be deleted, so nothing was deleted; one line.
    """
    folder = cache / entry_id
    with locked(cache / f"{entry_id}.lock", wait=False) as free:
        if free and folder.exists():
            check_removable(folder)
            (folder / "entry.json").unlink(missing_ok=True)  # first: without it, the rest is not an entry
            remove_folder(folder)
    return free


def make_room(cache: Path, entry_id: str) -> bool:
    """Delete an entry to make room; False if it stays, for whatever reason."""
    try:
        return remove(cache, entry_id)
    except OSError:
        return False


def bytes_of(folder: Path) -> int:
    """The total size of a folder's files, in bytes; files that are removed meanwhile are skipped."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _document(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _read(folder: Path) -> Entry | None:
    """An entry; None if it was removed meanwhile."""
    path = folder / "entry.json"
    facts = _document(path)
    try:
        last_used = path.stat().st_mtime
    except FileNotFoundError:
        return None
    notes = facts.get("notes", [])
    users = {key: dict.fromkeys(note[key] for note in notes if key in note) for key in ("encoder", "task", "split")}
    words = {key: ", ".join(distinct) for key, distinct in users.items()}
    return Entry(id=folder.name, **words, rows=facts.get("rows", 0), bytes=bytes_of(folder), last_used=last_used)
