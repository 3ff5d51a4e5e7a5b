"""A cache of the trials' records in one file, `trials.index`, so that a ledger of 100 000 files is read in a second.

It is never the truth: an entry counts only where the record's file has the size, the times and the inode that it had
when it was read. Anything else is read from the record's file, and so is everything where the index is missing,
damaged or of another version. Whoever reads the ledger adds what is new, and a driver what it writes; several may do so
at once, since a block that was torn by another one fails its checksum. Where it cannot be written (a read-only copy),
nothing else changes.
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
"""Size in bytes, time of the last change of contents and of any change in ns, inode: of a file."""
ReadFile = Callable[[Path], TrialRecord]

FEW = 256
"""A smaller ledger has no index: its files are read in less than 0.1 s."""
BLOCK = 250
"""Entries of one block, which has one checksum; a driver that ends leaves as many to the next reader."""
MOST_BLOCKS_NOTED = 64
"""Blocks of entries that wait until their files are settled; a burst of more is left to the next reader."""
SETTLED_NS = 2 * 10**9
"""A file that changed less than this before it was read may change again without another time: FAT counts 2 s."""
MOST_BYTES = 2**31
BETWEEN = b"\x1e"
FIELDS = {name: str(field) for name, field in TrialRecord.model_fields.items()}
FORMAT = hashlib.sha256(repr((7, COMMON, OwnValues._fields, FIELDS)).encode()).hexdigest()
"""Another version of the code, that keeps other fields or has other types of them, begins a new index."""


@dataclass(frozen=True)
class Entry:
    """A record in the index.

    Attributes:
        stamp: of its file, as it was before it was read or just after it was written.
        shared: as from `shared_values`.
        own: as from `own_values`.
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
        few: a folder of fewer records is read without an index.

    Attributes:
        files_read: how many records the last call read from their own files.
        noted: entries of records that this process has written, by name; they wait to be added.
        due: how many of them are added together.
    """

    def __init__(self, folder: Path, few: int = FEW) -> None:
        self.folder, self.few, self.path = folder, few, folder.with_name(f"{folder.name}.index")
        self.files_read = 0
        self.noted: dict[str, Entry] = {}
        self.due = BLOCK

    def records(
        self, read: ReadFile, first: Callable[[Path], TrialRecord | None] | None = None
    ) -> list[TrialRecord]:  # fmt: skip
        """All records, in no order that counts: those of the index as it has them, then those that it lacks.

        Args:
            read: reads one file.
            first: reads one that the index lacks, or returns None of one that is left out; None for `read`.

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
            new.sort(key=lambda name: found[name].started_at)  # as they are walked through: near in memory
            self._add([Entry.of(name, stamps[name], found[name]) for name in new], settled, is_rebuilt)
        self.files_read = len(missing)
        return list(found.values())

    def note(self, record: TrialRecord) -> None:
        """Take up a record whose file was just written; it is added with others, so that no reader reads its file."""
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
        """(name → record of each entry that counts; whether every block is whole; how many entries there are)."""
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
        """The time in ns before which a file that changed is settled, by its own file system's clock; 0 for none."""
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
        """Add the entries of files that are settled; returns their names.

        Args:
            settled: as from `_settled_before`, before the files were read.
            is_rebuilt: whether they take the place of what the index has.
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
    """Add to the end of a file in one call."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _blocks(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Lines of a checksum, a JSON list, and settings.

    The list has the sets of values that many records share; then, with an entry a record, the four lists of the stamps,
    the list of the places of their sets, and a list for each of their own values. The settings' values are apart,
    between characters that JSON has nowhere: they are read where somebody asks for one.
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
    return from_json(head, cache_strings="keys"), settings  # identities differ: a cache of strings costs half the time


_stamp: Callable[[os.stat_result], Stamp] = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Name → stamp of every record's file."""
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
                status = os.stat(name, dir_fd=place)  # relative, which spares a walk of the whole path
            except OSError:
                continue  # it is gone
            stamps[name] = _stamp(status)
    finally:
        os.close(place)
    return stamps


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection, which goes through all objects again and again while a million are made.

    In a command's own process the collector leaves alone what is there then: records have no circles, and go when
    nobody refers to them. In a user's process (`load_sweep` in a notebook) it would keep the user's garbage for good.
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
