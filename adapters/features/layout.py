"""What decides the bytes of cached features, and where each row's states lie in the files."""

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

from meltpoint.adapters import ops
from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import first_places
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.hardware import Precision
from meltpoint.tasks.core.task import Kind

Pieces = Literal["first", "all"]

FORMAT = 4
"""Raised when the files' layout or an encoder's arithmetic changes: old entries are then never read, and age out."""

ENCODING_BATCH = 64
"""Rows; as many, in the same order, as `evaluation.evaluate` gives an encoder, so that both see the same numbers.

The last bits of a row's states depend on how far its batch is padded, and on nothing else in the batch (docs/log.md).
"""

ROWS_PER_SHARD = 128
MOST_SHARDS = 64
"""A shard is what one process encodes at a time, and what is lost with it: two batches of a small split, 1/64 of a
large one. More shards would share the work no better among the tens of processes that one folder has."""


@dataclass(frozen=True)
class FeatureKey:
    """What decides the bytes of a split's features.

    Which machine encoded is not in it, so that machines share: on unlike processors the last bits are those of whoever
    came first. A shard's manifest names the host.

    Attributes:
        encoder_fingerprint: `Encoder.fingerprint`: weights and configuration.
        rows_digest: sha256 (16 hex) over the rows' pieces, segments, word starts and context; so the length limit,
            the pairing, the tokenizer and the texts are all in it. Labels are not: tasks over the same texts share an
            entry.
        precision: "fp32" stores float32, "bf16" computes under autocast and stores bfloat16.
        pieces: "all", or only the "first" ones that a linear or mlp head reads: [CLS], or each word's first piece.
    """

    encoder_fingerprint: str
    rows_digest: str
    precision: Precision
    pieces: Pieces

    @property
    def id(self) -> str:
        """The entry's name: 16 hex characters. Other versions of torch, and of the CPU kernels, may round otherwise."""
        written = json.dumps([FORMAT, torch.__version__, ops.version(), asdict(self)], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the stored states."""
        return torch.float32 if self.precision == "fp32" else torch.bfloat16


def feature_key(encoder: Encoder, split: EncodedSplit, kind: Kind, precision: Precision, pieces: Pieces) -> FeatureKey:
    """The key of a split's features; the encoder must have the weights that it was loaded with."""
    assert all(bool(row.word_starts) == (kind == "sequence_labelling") for row in split.rows), f"rows are not of {kind}"
    return FeatureKey(encoder.fingerprint, rows_digest(split.rows), precision, pieces)


def rows_digest(rows: Sequence[Row]) -> str:
    """sha256 (16 hex) over what the encoder is given, and where words begin; each list with its lengths before it."""
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
    """Where a split's rows lie: sorted by length, the longest first, cut into shards of consecutive rows.

    Attributes:
        order: the rows in the files' order.
        counts: positions that each row has in the files, in the split's order.
        shards: ranges of `order`.
        shard_of: the shard that a row lies in, in the split's order.
        starts: a row's first position within its shard, in the split's order.
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
        """How many positions a shard holds."""
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
