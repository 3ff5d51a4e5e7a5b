"""The entries of the feature cache: their folders, who uses them, what there is, and removing them.

`CACHE/ID/` holds an entry: `entry.json`, and three files a shard (`shards`). `CACHE/ID.lock` is held, shared, by each
process that has the entry open; who wants to remove it needs it alone. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from meltpoint.adapters.files import acquire, write_atomically


@dataclass(frozen=True)
class Entry:
    """One entry, as it lies on the disk.

    Attributes:
        id: its folder's name.
        encoder, task, split: who asked for it, in words; several tasks over the same texts share an entry.
        pieces, precision: as in its key.
        layers: those that every shard has.
        rows: of the split.
        bytes: on the disk.
        last_used: seconds since 1970.
        complete: whether every shard is there.
    """

    id: str
    encoder: str
    task: str
    split: str
    pieces: str
    precision: str
    layers: tuple[int, ...]
    rows: int
    bytes: int
    last_used: float
    complete: bool


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file alone; gives False where another process holds it and `wait` is off."""
    with path.open("a") as file:
        yield acquire(file, shared=False, wait=wait)


def hold(cache: Path, entry_id: str) -> IO[str]:
    """Keep an entry from being removed, until the file that is returned is closed or forgotten."""
    cache.mkdir(parents=True, exist_ok=True)
    file = (cache / f"{entry_id}.lock").open("a")
    acquire(file, shared=True, wait=True)
    return file


def describe(folder: Path, facts: Mapping[str, Any], note: Mapping[str, str]) -> None:
    """Write down what an entry is and who asked for it, and that it was used now; the caller holds it."""
    path = folder / "entry.json"
    known = _document(path)
    notes = [*known.get("notes", []), *([dict(note)] if dict(note) not in known.get("notes", []) else [])]
    written = {**facts, "notes": notes}
    if written != known:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(written, sort_keys=True))
    os.utime(path)


def entries(cache: Path) -> list[Entry]:
    """Every entry, the one that was used least recently first."""
    found = [_read(path.parent) for path in cache.glob("*/entry.json")]
    return sorted((entry for entry in found if entry is not None), key=lambda entry: (entry.last_used, entry.id))


def remove(cache: Path, entry_id: str) -> bool:
    """Delete an entry; False, and nothing is deleted, where a process has it open."""
    with locked(cache / f"{entry_id}.lock", wait=False) as free:
        if free:
            (cache / entry_id / "entry.json").unlink(missing_ok=True)  # first, so that half an entry is none
            shutil.rmtree(cache / entry_id, ignore_errors=True)
    return free


def bytes_of(folder: Path) -> int:
    """What a folder's files hold, in bytes; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _document(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, or a damaged one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _read(folder: Path) -> Entry | None:
    """An entry; None where it was removed meanwhile."""
    path = folder / "entry.json"
    facts = _document(path)
    shards = [_document(manifest) for manifest in sorted(folder.glob("shard-*.json"))]
    layers = [set(shard.get("layers", ())) for shard in shards]
    try:
        last_used = path.stat().st_mtime
    except FileNotFoundError:
        return None
    notes = facts.get("notes", [])
    return Entry(
        id=folder.name, encoder=_words(notes, "encoder"), task=_words(notes, "task"), split=_words(notes, "split"),
        pieces=facts.get("pieces", ""), precision=facts.get("precision", ""),
        layers=tuple(sorted(set.intersection(*layers))) if layers else (), rows=facts.get("rows", 0),
        bytes=bytes_of(folder), last_used=last_used, complete=len(shards) == facts.get("shards", -1),
    )  # fmt: skip


def _words(notes: Sequence[Mapping[str, str]], key: str) -> str:
    """What the notes say under a key, each word once."""
    return ", ".join(dict.fromkeys(note[key] for note in notes if key in note))
