"""The key of cached features, the layout of a split's rows in a cache entry, and the entry's files, the shards.

`shard-0007.bin` has the states, (layers, positions, dim), `shard-0007.json` their manifest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import first_places
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.files import file_digest, write_atomically
from meltpoint.adapters.hardware import Precision
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

Pieces = Literal["first", "all"]

FORMAT = 6
"""Increase this when the files' layout or an encoder's arithmetic changes, so that older entries are not read; they are
removed as the least recently used entries."""

ENCODING_BATCH = 64
"""Rows per batch. Batch size and order are the same as in `evaluation.evaluate`, so both compute the same numbers.

The last bits of a row's states depend on the padded length of its batch, and on nothing else in it
(docs/internals/log.md).
"""

ROWS_PER_SHARD = 128
MOST_SHARDS = 64
"""A shard is the unit that one process encodes, and loses if it dies: two batches of a small split, 1/64 of a large
split. More shards would not distribute the work better among the tens of processes that share a folder."""


@dataclass(frozen=True)
class FeatureKey:
    """The key of a split's cached features: all inputs of their computation.

    The machine is not part of it, so machines share entries. The last bits depend on the processor of the machine that
    encoded the shard, whose name is in the shard's manifest.

    Attributes:
        encoder_fingerprint: `Encoder.fingerprint`: weights and configuration.
        rows_digest: sha256 (16 hex digits) over the rows' pieces, segments, word starts and context, which reflect
            length limit, pairing, tokenizer and texts. Labels are not part of it, so tasks over the same texts share an
            entry.
        precision: "fp32" stores float32; "bf16" computes under autocast and stores bfloat16.
        pieces: "all", or only the "first" pieces that a linear or mlp head reads: [CLS], or each word's first piece.
    """

    encoder_fingerprint: str
    rows_digest: str
    precision: Precision
    pieces: Pieces

    @property
    def id(self) -> str:
        """The entry's name, 16 hex digits. Another version of torch may round differently."""
        written = json.dumps([FORMAT, torch.__version__, asdict(self)], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the stored states."""
        return torch.float32 if self.precision == "fp32" else torch.bfloat16


def feature_key(encoder: Encoder, split: EncodedSplit, kind: Kind, precision: Precision, pieces: Pieces) -> FeatureKey:
    """The key of a split's features; the encoder must still have the weights that it was loaded with."""
    assert all(bool(row.word_starts) == kinds.get(kind).labels_words for row in split.rows), f"rows are not of {kind}"
    return FeatureKey(encoder.fingerprint, rows_digest(split.rows), precision, pieces)


def rows_digest(rows: Sequence[Row]) -> str:
    """sha256 (16 hex digits) over the encoder's inputs and the words' first positions.

    The lengths of each field's lists are hashed before their contents, so that different rows never hash the same.
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
        return list(self.order[self.shards[shard].start : self.shards[shard].stop].tolist())

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


States = NDArray[Any]
"""(layers, positions, dim), float32, or int16 with the bits of bfloat16, which NumPy does not have."""


class Manifest(BaseModel):
    """The description of a shard's file of states.

    Attributes:
        layers: indices of the encoder's layers in it, bottom → top.
        positions, dim: the other dimensions of its shape.
        dtype: "float32" or "bfloat16".
        bytes, sha256: size and digest of the file.
        written_by: host and process id.
    """

    model_config = ConfigDict(frozen=True)

    layers: tuple[int, ...]
    positions: int
    dim: int
    dtype: str
    bytes: int
    sha256: str
    written_by: str


@dataclass(frozen=True)
class Shard:
    """A shard's files, and its shape, which follows from split and encoder."""

    folder: Path
    number: int
    positions: int
    dim: int
    dtype: torch.dtype

    def path(self, suffix: str) -> Path:
        """The path of the shard's file with this suffix."""
        return self.folder / f"shard-{self.number:04}.{suffix}"

    def size_bytes(self, layers: int) -> int:
        """The size of the shard's states with this number of layers."""
        return layers * self.positions * self.dim * self.dtype.itemsize

    def manifest(self) -> Manifest | None:
        """The shard's manifest; None if it is missing, damaged, or describes another shape."""
        try:
            manifest = Manifest.model_validate_json(self.path("json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        fits = (manifest.positions, manifest.dim, manifest.dtype) == (self.positions, self.dim, _name(self.dtype))
        return manifest if fits and manifest.bytes == self.size_bytes(len(manifest.layers)) else None

    def open(self, layers: Sequence[int]) -> tuple[Manifest, States] | None:
        """The manifest and the memory-mapped states; None if the file is missing, damaged or lacks a layer.

        The processes that map it share one copy in memory. The mapping is private (copy-on-write), so an accidental
        write does not reach the other processes.
        """
        manifest = self.manifest()
        if manifest is None or not set(layers) <= set(manifest.layers):
            return None
        path = self.path("bin")
        try:
            before = path.stat()
            if before.st_size != manifest.bytes or file_digest(path) != manifest.sha256:
                return None
            # np.memmap would keep one file descriptor per shard, and a worker has many shards open.
            size = manifest.bytes // self.dtype.itemsize
            mapped = torch.from_file(str(path), shared=False, size=size, dtype=self.dtype)
            if not os.path.samestat(before, path.stat()):
                return None  # just replaced by a file with more layers; the caller opens it again under the lock
        except FileNotFoundError:
            return None
        return manifest, _bits(mapped.view(len(manifest.layers), self.positions, self.dim))

    def write(self, layers: Sequence[int], blocks: Iterable[Tensor]) -> None:
        """Write the states and then the manifest; the caller holds the shard's lock.

        Args:
            layers: indices of the encoder's layers, bottom → top.
            blocks: (layers, positions, dim) tensors on the CPU, consecutive along the positions.

        Raises:
            OSError: the file cannot be written, for example on a full disk; no incomplete shard is left.
        """
        temporary = self.path("part")  # a fixed name suffices under the lock; a killed process's file is overwritten
        try:
            with temporary.open("wb") as file:
                self._write_blocks(file, len(layers), blocks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path("bin"))
            manifest = Manifest(
                layers=tuple(layers), positions=self.positions, dim=self.dim, dtype=_name(self.dtype),
                bytes=self.size_bytes(len(layers)), sha256=file_digest(self.path("bin")),
                written_by=f"{socket.gethostname()}:{os.getpid()}",
            )  # fmt: skip
            write_atomically(self.path("json"), manifest.model_dump_json())
        except OSError as error:
            raise self._refusal(error, len(layers)) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _write_blocks(self, file: IO[bytes], layers: int, blocks: Iterable[Tensor]) -> None:
        """Write blocks one at a time, a block's layers to their parts of the file: only one batch is in memory."""
        start = 0
        for block in blocks:
            for layer, states in enumerate(_bits(block)):
                file.seek((layer * self.positions + start) * self.dim * self.dtype.itemsize)
                file.write(states.data)
            start += block.shape[1]
        assert start == self.positions, "a state for every position"

    def _refusal(self, error: OSError, layers: int) -> OSError:
        """The error to raise: with the remedy if the disk or a quota is full, otherwise unchanged."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        wanted = f"no room for {self.size_bytes(layers) / 1e6:.1f} MB of cached features"
        return OSError(error.errno, f"{wanted}; free some space, or run `meltpoint cache rm`", str(self.folder))


def _bits(block: Tensor) -> States:
    """A tensor as an array; bfloat16 as int16 with the same bits."""
    block = block.contiguous()
    bits: States = (block.view(torch.int16) if block.dtype == torch.bfloat16 else block).numpy()
    return bits


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
