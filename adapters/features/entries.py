"""Entries of the cache of frozen states: their keys and their layout."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import first_places
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.files import acquire, check_removable, remove_folder, write_atomically
from meltpoint.adapters.hardware import Precision
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind


@dataclass(frozen=True)
class Entry:
    """A cache entry's metadata, read from the disk.

    Attributes:
        id: the name of its folder.
        encoder, task, split: its users, separated by commas; several tasks over the same texts share an entry.
        pieces, precision: as in its key.
        layers: the layers that every shard has.
        rows: number of rows of the split.
        bytes: size on the disk.
        last_used: seconds since 1970.
        complete: whether every shard exists.
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
    """Write an entry's `entry.json`, add `note` (its user) to it, and set the time of last use; the caller holds it."""
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
        OSError: a file of it cannot be deleted, so that nothing was; one line.
    """
    folder = cache / entry_id
    with locked(cache / f"{entry_id}.lock", wait=False) as free:
        if free and folder.exists():
            check_removable(folder)
            (folder / "entry.json").unlink(missing_ok=True)  # first: without it, the rest is not an entry
            remove_folder(folder)
    return free


def make_room(cache: Path, entry_id: str) -> bool:
    """Delete an entry that nobody asked for to be deleted; False if it stays, for whatever reason."""
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
    """The distinct values of a key in the notes, separated by commas."""
    return ", ".join(dict.fromkeys(note[key] for note in notes if key in note))


Pieces = Literal["first", "all"]

FORMAT = 4
_KERNELS = ""
"""The version of the CPU kernels that Meltpoint 0.2 had: entries that it made without them still serve."""
"""Increased when the files' layout or an encoder's arithmetic changes, so that older entries are never read again; they
are removed as the least recently used ones."""

ENCODING_BATCH = 64
"""Rows per batch. Same batch size and order as in `evaluation.evaluate`, so that both compute the same numbers.

The last bits of a row's states depend on the padded length of its batch, and on nothing else in it (docs/log.md).
"""

ROWS_PER_SHARD = 128
MOST_SHARDS = 64
"""A shard is the unit that one process encodes, and that is lost if it dies: two batches of a small split, 1/64 of a
large one. More shards would not distribute the work better among the tens of processes that share a folder."""


@dataclass(frozen=True)
class FeatureKey:
    """The key of a split's cached features: everything that they are computed from.

    The machine is not part of it, so that machines share entries; on different processors the last bits are those of
    the machine that encoded the shard, whose name is in the shard's manifest.

    Attributes:
        encoder_fingerprint: `Encoder.fingerprint`: weights and configuration.
        rows_digest: sha256 (16 hex digits) over the rows' pieces, segments, word starts and context, and so over the
            effects of length limit, pairing, tokenizer and texts. Labels are not part of it: tasks over the same texts
            share an entry.
        precision: "fp32" stores float32; "bf16" computes under autocast and stores bfloat16.
        pieces: "all", or only the "first" ones that a linear or mlp head reads: [CLS], or each word's first piece.
        mended: whether older entries of these rows may be wrong (`Encoder.is_mended`).
    """

    encoder_fingerprint: str
    rows_digest: str
    precision: Precision
    pieces: Pieces
    mended: bool = False

    @property
    def id(self) -> str:
        """The entry's name, 16 hex digits. Another version of torch may round differently."""
        facts = {name: value for name, value in asdict(self).items() if name != "mended" or value}
        written = json.dumps([FORMAT, torch.__version__, _KERNELS, facts], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the stored states."""
        return torch.float32 if self.precision == "fp32" else torch.bfloat16


def feature_key(encoder: Encoder, split: EncodedSplit, kind: Kind, precision: Precision, pieces: Pieces) -> FeatureKey:
    """The key of a split's features; the encoder must still have the weights that it was loaded with."""
    assert all(bool(row.word_starts) == kinds.get(kind).labels_words for row in split.rows), f"rows are not of {kind}"
    return FeatureKey(encoder.fingerprint, rows_digest(split.rows), precision, pieces, encoder.is_mended(split.rows))


def rows_digest(rows: Sequence[Row]) -> str:
    """sha256 (16 hex digits) over the encoder's inputs and the words' first positions.

    The lengths of each field's lists are hashed before their contents, so that different rows never hash alike.
    """
    digest = hashlib.sha256()
    given = [[row.before for row in rows], [row.after for row in rows], [(row.cut,) for row in rows]]
    for lists in (
        [row.pieces for row in rows], [row.segments for row in rows], [row.word_starts for row in rows],
        *(given if any(not row.is_its_input for row in rows) else ()),
    ):  # fmt: skip
        digest.update(_whole_numbers(map(len, lists)).tobytes())
        digest.update(_whole_numbers(chain.from_iterable(lists)).tobytes())
    return digest.hexdigest()[:16]


def _whole_numbers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype="<i8")  # little-endian, so that machines agree


@dataclass(frozen=True)
class Layout:
    """The order of a split's rows in an entry's files: by length, the longest first, cut into shards.

    Attributes:
        order: row indices in the files' order.
        counts: number of stored positions of each row, in the split's order.
        shards: each shard's range of `order`.
        shard_of: the number of each row's shard, in the split's order.
        starts: each row's first position within its shard, in the split's order.
    """

    order: NDArray[np.int64]
    counts: NDArray[np.int64]
    shards: tuple[range, ...]
    shard_of: NDArray[np.int64]
    starts: NDArray[np.int64]

    def rows(self, shard: int) -> list[int]:
        """A shard's rows, in the file's order."""
        chosen: list[int] = self.order[self.shards[shard].start : self.shards[shard].stop].tolist()
        return chosen

    def positions(self, shard: int) -> int:
        """The number of positions in a shard."""
        return int(self.counts[self.rows(shard)].sum())


def layout(split: EncodedSplit, pieces: Pieces) -> Layout:
    """The layout of a split: a function of its rows' lengths alone."""
    lengths = np.array([len(row.pieces) for row in split.rows], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    counts = lengths if pieces == "all" else np.array([len(first_places(row)) for row in split.rows], dtype=np.int64)
    size = max(ROWS_PER_SHARD, -(-len(order) // MOST_SHARDS))
    size = -(-size // ENCODING_BATCH) * ENCODING_BATCH
    shards = tuple(range(start, min(start + size, len(order))) for start in range(0, len(order), size))
    shard_of, starts = np.zeros_like(lengths), np.zeros_like(lengths)
    for number, shard in enumerate(shards):
        rows = order[shard.start : shard.stop]
        shard_of[rows] = number
        starts[rows] = np.cumsum(counts[rows]) - counts[rows]
    return Layout(order, counts, shards, shard_of, starts)
