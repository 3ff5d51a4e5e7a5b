"""A cache of the trials' records in one file, `trials.index`, so that a ledger of 100 000 files is read in a second.

It is never the truth: an entry counts only where the record's file has the size, the times and the inode that it had
when it was read. Anything else is read from the record's file, and so is everything where the index is missing,
damaged or of another version. Whoever reads the ledger adds what is new; several may do so at once, since a block that
was torn by another one fails its checksum. Where it cannot be written (a read-only copy), nothing else changes.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_core import from_json

from meltpoint.sweeps.ledger.lazy_record import SHARED, LazyRecord, own_values, shared_values
from meltpoint.sweeps.ledger.records import TrialRecord

Stamp = tuple[int, int, int, int]
"""Size in bytes, time of the last change of contents and of any change in ns, inode: of a file."""
ReadFile = Callable[[Path], TrialRecord]

FEW = 256
"""A smaller ledger has no index: its files are read in less than 0.1 s."""
BLOCK = 1000
"""Entries of one block, which has one checksum."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than this before it was read may change again without another time: FAT counts 2 s."""
MOST_BYTES = 2**31
FORMAT = hashlib.sha256(
    repr((1, SHARED, sorted(TrialRecord.model_json_schema().items(), key=str))).encode()
).hexdigest()
"""Another version of the code that has other fields begins a new index."""


class RecordIndex:
    """The records of a folder, read through the index.

    Args:
        folder: `trials/` of a sweep.
        few: a folder of fewer records is read without an index.

    Attributes:
        files_read: how many records the last call read from their own files.
    """

    def __init__(self, folder: Path, few: int = FEW) -> None:
        self.folder, self.few, self.path = folder, few, folder.with_name(f"{folder.name}.index")
        self.files_read = 0

    def records(self, read: ReadFile) -> list[TrialRecord]:
        """All records, by file name.

        Args:
            read: reads one file.

        Raises:
            ValueError: as `read`.
        """
        stamps = _stamps(self.folder)
        with _collector_off():
            known, is_whole, count = self._load() if len(stamps) >= self.few else ({}, True, 0)
            rebuild = not is_whole or count > 2 * len(stamps) + BLOCK
            known = {} if rebuild else known
            found: dict[str, TrialRecord] = {}
            new: list[tuple[str, Stamp, TrialRecord]] = []
            for name in sorted(stamps):
                entry = known.get(name)
                if entry is not None and entry[0] == stamps[name]:
                    found[name] = LazyRecord.of(entry[1], entry[2], self.folder / name, read)
                else:
                    found[name] = read(self.folder / name)
                    new.append((name, stamps[name], found[name]))
        self.files_read = len(new)
        if new and len(stamps) >= self.few:
            with contextlib.suppress(OSError):
                self._keep(new, rebuild)
        return list(found.values())

    def _load(self) -> tuple[dict[str, tuple[Stamp, dict[str, Any], list[Any]]], bool, int]:
        """(name → stamp, shared and own values; whether every block is whole; how many entries there are)."""
        known: dict[str, tuple[Stamp, dict[str, Any], list[Any]]] = {}
        count = 0
        try:
            if self.path.stat().st_size > MOST_BYTES:
                return {}, False, 0
            lines = self.path.read_bytes().split(b"\n")
        except OSError:
            return {}, True, 0
        if not lines or lines[0] != FORMAT.encode():
            return {}, False, 0
        is_whole = lines[-1] == b""
        for line in lines[1:-1]:
            block = _checked(line)
            if block is None:
                is_whole = False
                continue
            shared, rows = block
            facts = [dict(zip(SHARED, values, strict=True)) for values in shared]
            count += len(rows)
            for name, size, changed, touched, inode, fact, *own in rows:
                known[name] = ((size, changed, touched, inode), facts[fact], own)
        return known, is_whole, count

    def _keep(self, new: Sequence[tuple[str, Stamp, TrialRecord]], rebuild: bool) -> None:
        """Add entries of files that have not changed of late, by the clock of their own file system."""
        beside = self.path.with_name(f".{self.path.name}.{uuid4().hex}.tmp")
        try:
            beside.touch()
            latest = beside.stat().st_mtime_ns - SETTLED_NS
            settled = [
                one for one in new if max(one[1][1], one[1][2]) < latest and _stamp(self.folder / one[0]) == one[1]
            ]
            if not settled:
                return
            if rebuild or not self.path.exists():
                beside.write_bytes(FORMAT.encode() + b"\n" + b"".join(_blocks(settled)))
                beside.replace(self.path)
            else:
                _append(self.path, b"".join(_blocks(settled)))
        finally:
            beside.unlink(missing_ok=True)


def _append(path: Path, data: bytes) -> None:
    """Add to the end of a file in one call."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _blocks(entries: Sequence[tuple[str, Stamp, TrialRecord]]) -> Iterator[bytes]:
    """Lines of a checksum and a JSON list: the sets of values that many records share, and a row a record."""
    for start in range(0, len(entries), BLOCK):
        places: dict[str, int] = {}
        shared: list[list[Any]] = []
        rows = []
        for name, stamp, record in entries[start : start + BLOCK]:
            values = shared_values(record)
            place = places.setdefault(repr(values), len(shared))
            if place == len(shared):
                shared.append(values)
            rows.append([name, *stamp, place, *own_values(record)])
        text = json.dumps([shared, rows], separators=(",", ":")).encode()
        yield b"%08x %b\n" % (zlib.crc32(text), text)


def _checked(line: bytes) -> tuple[list[list[Any]], list[list[Any]]] | None:
    """A block; None if it is damaged."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        return None
    shared, rows = from_json(text)
    return shared, rows


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Name → stamp of every record's file."""
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if entry.name.endswith(".json") and not entry.name.startswith(".")]
            return {entry.name: stamp for entry in named if (stamp := _stamp_of(entry)) is not None}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _stamp_of(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        status = entry.stat()
    except FileNotFoundError:  # removed meanwhile
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection, which goes through all objects again and again while a million are made.

    What was made is then left alone by the collector; it has no circles, and goes when nobody refers to it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
