"""The key of cached features, and the layout of a split's rows in the files of a cache entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import first_places
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.hardware import Precision
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

Pieces = Literal["first", "all"]

FORMAT = 4
_KERNELS = ""
"""The version of the CPU kernels that Meltpoint 0.2 had: entries that it made without them still serve."""
"""Increased when the files' layout or an encoder's arithmetic changes, so that older entries are never read again; they
are removed as the least recently used ones."""

ENCODING_BATCH = 64
"""Rows per batch. Same batch size and order as in `evaluation.evaluate`, so that both compute the same numbers.

The last bits of a row's states depend on the padded length of its batch, and on nothing else in it
(docs/internals/log.md).
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
