"""A cache of the trial records in one file, `trials.index`, so that a ledger of 100 000 files is read in a second.

The record files are authoritative: an entry counts only if its file still has the size, times and inode from when it
was read. All other records are read from their files, and so are all records if the index is missing, damaged or of
another version. Each reader adds the entries that it found missing, and a driver adds the records that it writes.
Several processes may do so at once, because a block that another process tore fails its checksum. If the index cannot
be written (a read-only copy), nothing else changes.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, eq
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_core import from_json, to_json

from meltpoint.adapters import process
from meltpoint.sweeps.ledger.lazy_record import (
    COMMON,
    CommonValues,
    LazyRecord,
    OwnValues,
    own_values,
    own_values_of,
    shared_values,
)
from meltpoint.sweeps.ledger.records import TrialRecord

Stamp = tuple[int, int, int, int]
"""A file's size in bytes, mtime and ctime in ns, and inode."""
ReadFile = Callable[[Path], TrialRecord]

FEW = 256
"""A ledger with fewer records has no index: reading its files takes less than 0.1 s."""
BLOCK = 250
"""Entries per block, which has one checksum; a driver that ends may leave this many to the next reader."""
MOST_BLOCKS_NOTED = 64
"""The most blocks of entries that wait for their files to settle; entries beyond that are left to the next reader."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than this before it was read may change again with the same timestamp: FAT resolves 2 s."""
MOST_BYTES = 2**31
BETWEEN = b"\x1e"
FIELDS = {name: str(field) for name, field in TrialRecord.model_fields.items()}
FORMAT = hashlib.sha256(repr((7, COMMON, OwnValues._fields, FIELDS)).encode()).hexdigest()
"""The version of the index: code that keeps other fields, or other types, starts a new one."""


@dataclass(frozen=True)
class Entry:
    """A record in the index.

    Attributes:
        stamp: of its file, taken before it was read or just after it was written.
        shared: as returned by `shared_values`.
        own: as returned by `own_values`.
    """

    name: str
    stamp: Stamp
    shared: tuple[Any, ...]
    own: OwnValues

    @classmethod
    def of(cls, name: str, stamp: Stamp, record: TrialRecord) -> Entry:
        """The entry of a record."""
        return cls(name, stamp, shared_values(record), own_values(record))


class RecordIndex:
    """The records of a folder, read through the index.

    Args:
        folder: `trials/` of a sweep.
        few: a folder with fewer records is read without an index.

    Attributes:
        files_read: how many records the last call read from their own files.
        noted: entries of records that this process has written, by name, waiting to be added.
        due: the number of waiting entries at which they are added.
    """

    def __init__(self, folder: Path, few: int = FEW) -> None:
        self.folder, self.few, self.path = folder, few, folder.with_name(f"{folder.name}.index")
        self.files_read = 0
        self.noted: dict[str, Entry] = {}
        self.due = BLOCK

    def records(
        self, read: ReadFile, first: Callable[[Path], TrialRecord | None] | None = None
    ) -> list[TrialRecord]:  # fmt: skip
        """All records in arbitrary order: those in the index, then those that it lacks.

        Args:
            read: reads one file.
            first: reads one that the index lacks; returns None to leave it out. None: use `read`.

        Raises:
            ValueError: as `first`.
        """
        stamps = _stamps(self.folder)
        is_used = len(stamps) >= self.few
        with _collector_off():
            found, is_whole, count = self._load(stamps, read) if is_used else ({}, True, 0)
            missing = sorted(stamps.keys() - found.keys())
            settled = self._settled_before() if is_used and missing else 0
            news = {name: (first or read)(self.folder / name) for name in missing}
            found |= {name: record for name, record in news.items() if record is not None}
            is_rebuilt = is_used and (not is_whole or count > 2 * len(stamps) + BLOCK)
            new = [name for name in (stamps if is_rebuilt else missing if is_used else ()) if name in found]
            new.sort(key=lambda name: found[name].started_at)  # the order of traversal, for memory locality
            self._add([Entry.of(name, stamps[name], found[name]) for name in new], settled, is_rebuilt)
        self.files_read = len(missing)
        return list(found.values())

    def note(self, record: TrialRecord) -> None:
        """Queue a record whose file was just written. Entries are added in batches, so that readers skip the files."""
        name = f"{record.id}.json"
        self.noted.pop(name, None)
        with contextlib.suppress(OSError):  # it is gone
            self.noted[name] = Entry.of(name, _stamp((self.folder / name).stat()), record)
        if len(self.noted) >= self.due:
            added = self._add(list(self.noted.values()), self._settled_before())
            left = [entry for entry in self.noted.values() if entry.name not in added]
            self.noted = {entry.name: entry for entry in left[-MOST_BLOCKS_NOTED * BLOCK :]}
            self.due = len(self.noted) + BLOCK

    def _load(self, stamps: Mapping[str, Stamp], read: ReadFile) -> tuple[dict[str, TrialRecord], bool, int]:
        """(name → record of each current entry; whether every block is intact; the number of entries)."""
        found: dict[str, TrialRecord] = {}
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
            (shared, noted, places, columns), settings = block
            common = [CommonValues(values, self.folder, read) for values in shared]
            owns = own_values_of(zip(*columns, settings, strict=True))
            names = [f"{own.id}.json" for own in owns]
            records = LazyRecord.list_of([common[place] for place in places], owns)
            are_current = map(eq, map(stamps.get, names), zip(*noted, strict=True))
            found.update(compress(zip(names, records, strict=True), are_current))
            count += len(places)
        return found, is_whole, count

    def _settled_before(self) -> int:
        """The time in ns, by the file system's own clock, before which a changed file is settled; 0 if unknown."""
        temporary = self._temporary()
        try:
            temporary.touch()
            return temporary.stat().st_mtime_ns - SETTLED_NS
        except OSError:  # a read-only copy, or a full disk
            return 0
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _add(self, entries: Sequence[Entry], settled: int, is_rebuilt: bool = False) -> set[str]:
        """Add the entries whose files are settled; return the names added.

        Args:
            settled: as returned by `_settled_before` before the files were read.
            is_rebuilt: whether the entries replace the whole index.
        """
        chosen = [entry for entry in entries if max(entry.stamp[1], entry.stamp[2]) < settled]
        if not chosen:
            return set()
        try:
            self._write(b"".join(_blocks(chosen)), is_rebuilt or not self.path.exists())
        except OSError:
            return set()
        return {entry.name for entry in chosen}

    def _write(self, blocks: bytes, is_new: bool) -> None:
        if not is_new:
            _append(self.path, blocks)
            return
        temporary = self._temporary()
        try:
            temporary.write_bytes(FORMAT.encode() + b"\n" + blocks)
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{uuid4().hex}.tmp")


def _append(path: Path, data: bytes) -> None:
    """Append to a file in one call."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _blocks(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Lines of a checksum, a JSON list and settings.

    The list contains the sets of shared values; then, with one item per record, the four columns of the stamps, the
    indices of the shared sets, and one column for each own value. The settings follow, separated by a character that
    cannot occur in JSON, so that each is parsed only on access.
    """
    for start in range(0, len(entries), BLOCK):
        block = entries[start : start + BLOCK]
        sets: dict[tuple[Any, ...], int] = {}
        places = [sets.setdefault(entry.shared, len(sets)) for entry in block]
        stamps = list(zip(*(entry.stamp for entry in block), strict=True))
        *columns, settings = zip(*(entry.own for entry in block), strict=True)
        head = to_json([list(sets), stamps, places, columns], inf_nan_mode="constants")
        text = BETWEEN.join([head, *settings])
        yield b"%08x %b\n" % (zlib.crc32(text), text)


def _checked(line: bytes) -> tuple[list[list[Any]], list[bytes]] | None:
    """A block's four lists, and its settings; None if it is damaged."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        return None
    head, *settings = text.split(BETWEEN)
    return from_json(head, cache_strings="keys"), settings  # ids are unique: caching strings doubles the time


_stamp: Callable[[os.stat_result], Stamp] = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")


def _stamps(folder: Path) -> dict[str, Stamp]:
    """The stamp of every record's file, by name."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    stamps: dict[str, Stamp] = {}
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".json") and entry.name[0] != "."]
        for name in names:
            try:
                status = os.stat(name, dir_fd=place)  # relative, which avoids resolving the whole path
            except OSError:
                continue  # it is gone
            stamps[name] = _stamp(status)
    finally:
        os.close(place)
    return stamps


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Turn off garbage collection, which would scan all objects again and again while a million are created.

    In a command's own process, the heap is then frozen: records have no reference cycles and are freed without the
    collector. In a user's process (`load_sweep` in a notebook), freezing would keep the user's garbage forever.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if process.is_command_process():
            process.freeze_heap()
        if was_on:
            gc.enable()
