"""Batches of rows, prepared ahead of each step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch, EncodedSplit, Row, places_of
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.task import Kind

POOL_BATCHES = 50
"""Batches per pool: with batching by length, rows are sorted within pools, so that batches differ between epochs."""


FLOAT_LABELS = ("score", "labels")
"""Targets whose labels a loss takes as float32: numbers, and 0 or 1 for each of several labels."""


class CachedStates(Protocol):
    """A split's cached hidden states."""

    def gather(self, rows: Sequence[int]) -> Tensor:
        """The states of some rows: (layers, rows, longest, dim), 0 where padded."""


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """The number of batches in one pass over `rows` rows; the last one may be smaller."""
    return -(-rows // batch_size)


STATIC_POSITIONS = 32_768
"""Positions of a padded batch, above which reading its padding costs more than starting kernels one by one."""


def static_width(longest: int, most: int = sys.maxsize) -> int:
    """The width that a batch is padded to if its shape is to recur: at most a quarter more, or 15 positions.

    Args:
        most: the longest input that the encoder has positions for.
    """
    step = max(16, 1 << max(0, longest.bit_length() - 3))
    return min(-(-longest // step) * step, max(longest, most))


def collate(
    rows: Sequence[Row], indices: Sequence[int], pad_piece: int, kind: Kind, encoded: bool = False,
    static: bool = False, most: int = sys.maxsize,
) -> Batch:  # fmt: skip
    """Pad rows into a batch.

    Args:
        rows: a split's rows.
        indices: the rows to take, in the batch's order.
        pad_piece: the piece id of padded positions.
        kind: the task's kind, which determines the labels' shape and type.
        encoded: whether the rows' states are cached, so that no encoder input is needed.
        static: whether to pad to a `static_width`, unless the batch is larger than `STATIC_POSITIONS`.
        most: the longest input that the encoder has positions for.
    """
    chosen = [rows[index] for index in indices]
    counts = np.array([len(row.pieces) for row in chosen])
    lengths = torch.from_numpy(counts)
    are_inputs = all(row.is_its_input for row in chosen)
    width = static_width(int(counts.max()), most if are_inputs else sys.maxsize)
    static = static and width * len(chosen) <= STATIC_POSITIONS
    pieces = _pad([row.pieces for row in chosen], pad_piece, width if static else 0)
    segments = _pad([row.segments for row in chosen], 0, width if static else 0) if chosen[0].segments else None
    mask = torch.arange(pieces.shape[1]) < lengths[:, None]
    padded = bool((counts < pieces.shape[1]).any())
    places, ascending = places_of(counts) if padded and not static else (None, ())
    cuts = torch.tensor([row.cut for row in chosen]) if chosen[0].cut else None
    statistics = torch.tensor([row.statistics for row in chosen]) if chosen[0].statistics else None
    batch = Batch(
        tuple(indices), pieces, mask, segments, padded=padded, parts=_parts(chosen, pieces), cuts=cuts, places=places,
        lengths=ascending, statistics=statistics, is_static=static,
    )  # fmt: skip
    if not (encoded or are_inputs):
        batch = _with_source(batch, chosen, pad_piece, most)
    return _with_labels(batch, chosen, kind)


def _with_labels(batch: Batch, chosen: Sequence[Row], kind: Kind) -> Batch:
    """The batch with its labels and, for sequence labelling, its words."""
    hidden = any(row.label is None for row in chosen)
    if not kinds.get(kind).labels_words:
        dtype = torch.float32 if kinds.get(kind).target in FLOAT_LABELS else torch.int64
        return replace(batch, labels=None if hidden else torch.tensor([row.label for row in chosen], dtype=dtype))
    words = torch.tensor([len(row.word_starts) for row in chosen])
    width = static_width(int(words.max())) if batch.is_static else 0
    starts = _pad([row.word_starts for row in chosen], 0, width)
    given = [row.label for row in chosen if isinstance(row.label, tuple)]
    labels = None if hidden else _pad(given, 0, width)
    return replace(batch, word_starts=starts, word_mask=torch.arange(starts.shape[1]) < words[:, None], labels=labels)


def _parts(chosen: Sequence[Row], pieces: Tensor) -> Tensor | None:
    """The sentence of its pair that each piece belongs to (1, 2; 0 for neither): (batch, pieces)."""
    if not chosen[0].spans:
        return None
    parts = np.zeros(pieces.shape, dtype=np.int64)
    for line, row in zip(parts, chosen, strict=True):
        for number, (start, stop) in enumerate(row.spans, 1):
            line[start:stop] = number
    return torch.from_numpy(parts)


def _with_source(batch: Batch, chosen: Sequence[Row], pad_piece: int, most: int) -> Batch:
    """The batch with `source`: the encoder's inputs, for rows that differ from them."""
    given = [pair for row in chosen for pair in zip(row.inputs, row.input_segments, strict=True)]
    rows = [Row(number, 0, pieces, segments, (), None) for number, (pieces, segments) in enumerate(given)]
    source = collate(rows, range(len(rows)), pad_piece, "sentence_classification", static=batch.is_static, most=most)
    longest, number = source.pieces.shape[1], 0
    places = []
    for row in chosen:
        row_places = [number * longest + len(row.before) + position for position in range(len(row.pieces))]
        for position in range(row.cut, len(row.pieces)) if row.cut else ():
            row_places[position] = (number + 1) * longest + position - row.cut
        places.append(row_places)
        number += len(row.inputs)
    source_places = _pad(places, 0, batch.pieces.shape[1] if batch.is_static else 0)
    return replace(batch, source=source, source_places=source_places, is_static=source.is_static)


def _pad(sequences: Sequence[Sequence[int]], padding: int, width: int) -> Tensor:
    """Pad integer sequences to one (batch, width) int64 tensor; a width of 0 is the longest sequence's."""
    padded = np.full((len(sequences), width or max(map(len, sequences))), padding, dtype=np.int64)
    for line, sequence in zip(padded, sequences, strict=True):
        line[: len(sequence)] = sequence
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class Inputs:
    """A split from which batches are made, with or without cached hidden states.

    Attributes:
        rows: the split's rows, or rows with only the pieces whose cached states the head reads.
        lengths: number of pieces of each complete row. They determine the order of batches, so the order is the same
            with and without a cache.
        features: the frozen encoder's states of `rows`; None if the encoder must run.
        static: whether batches are padded to a few widths (`collate`).
        most: the longest input that the encoder has positions for.
    """

    rows: list[Row]
    lengths: NDArray[np.int64]
    features: CachedStates | None = None
    static: bool = False
    most: int = sys.maxsize

    def batch(self, indices: Sequence[int], pad_piece: int, kind: Kind, lanes: int = 1) -> Batch:
        """Collate rows into a batch, with their states if cached."""
        encoded = self.features is not None
        made = collate(self.rows, indices, pad_piece, kind, encoded, self.static, self.most)
        batch = replace(made, lanes=lanes)
        if self.features is None:
            return batch
        states = self.features.gather(indices)  # (layers, lanes × rows, pieces, dim)
        if batch.is_static:
            states = functional.pad(states, (0, 0, 0, batch.pieces.shape[1] - states.shape[2]))
        return replace(batch, states=states.view(len(states), lanes, -1, *states.shape[2:]))


def inputs(split: EncodedSplit, features: CachedStates | None = None, first_pieces: bool = False) -> Inputs:
    """The inputs of a split: its complete rows or, with `first_pieces`, rows of their first pieces only."""
    lengths = np.array([len(row.pieces) for row in split.rows])
    return Inputs([first_piece_row(row) for row in split.rows] if first_pieces else split.rows, lengths, features)


def first_piece_row(row: Row) -> Row:
    """A row of only the pieces that a head without context reads (`first_places`); used with cached states only."""
    starts = first_places(row)
    words = tuple(range(len(row.word_starts)))
    pieces = tuple(row.pieces[start] for start in starts)
    spans = tuple((place, place + 1) for place in range(len(row.spans)) if row.cut)
    return replace(
        row, pieces=pieces, segments=(), word_starts=words, spans=spans, cut=int(row.cut > 0), before=(), after=()
    )


def first_places(row: Row) -> tuple[int, ...]:
    """The positions of a row's first pieces: each word's, or each input's ([CLS])."""
    if row.word_starts:
        return row.word_starts
    return (0, row.cut) if row.cut else (0,)


def training_batches(
    inputs: Inputs, kind: Kind, pad_piece: int, batch_size: int, seeds: Sequence[int], epoch: int, by_length: bool,
    micro_batch: int | None = None,
) -> Iterator[Batch]:  # fmt: skip
    """Yield one epoch of training batches, shuffled.

    The order is a function of (seed, epoch) and the rows' lengths, the same on every machine. The leftover rows that do
    not fill a batch are also a random sample (not the longest or shortest), and come last as one smaller batch.

    Args:
        seeds: one per lane; each lane has its own order.
        by_length: whether the rows of a batch have about the same length.
        micro_batch: the maximum number of rows of a yielded batch; the batches of a step follow one another. For a
            single lane only.
    """
    pool = POOL_BATCHES if by_length else 1
    orders = [training_order(inputs.lengths, batch_size, seed, epoch, pool) for seed in seeds]
    for parts in zip(*orders, strict=True):
        rows = [row for part in parts for row in part]
        if micro_batch is None or len(rows) <= micro_batch:
            yield inputs.batch(rows, pad_piece, kind, len(seeds))
        else:
            assert len(seeds) == 1, "trials with their own batches run one by one before micro-batches"
            yield from _micro_batches(inputs, kind, pad_piece, rows, micro_batch)


def _micro_batches(inputs: Inputs, kind: Kind, pad_piece: int, rows: list[int], most: int) -> Iterator[Batch]:
    """A batch in parts of at most `most` rows; their losses, weighted by `share`, add up to the batch's loss."""
    parts = [rows[start : start + most] for start in range(0, len(rows), most)]
    whole = _loss_terms(inputs, kind, rows)
    for part in parts:
        share = _loss_terms(inputs, kind, part) / max(1, whole)
        yield replace(inputs.batch(part, pad_piece, kind), share=share, ends_step=part is parts[-1])


def _loss_terms(inputs: Inputs, kind: Kind, rows: Sequence[int]) -> int:
    """The number of terms in the mean loss of some rows (`Head.loss`): rows, or their words."""
    return sum(len(inputs.rows[row].word_starts) for row in rows) if kinds.get(kind).labels_words else len(rows)


def training_order(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int, pool: int) -> list[list[int]]:
    """The rows of each batch of an epoch: `steps_per_epoch` lists that hold every row exactly once.

    Args:
        pool: number of batches whose rows are sorted by length together; 1 draws every batch at random.
    """
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    order = _permutation(len(lengths), bits)
    full = len(order) // batch_size * batch_size
    batches: list[NDArray[np.int64]] = []
    for start in range(0, full, pool * batch_size):
        drawn = order[start : min(start + pool * batch_size, full)]
        batches.extend(drawn[np.argsort(lengths[drawn], kind="stable")].reshape(-1, batch_size))
    shuffled = [batches[index].tolist() for index in _permutation(len(batches), bits)]
    return [*shuffled, order[full:].tolist()] if full < len(order) else shuffled


def _permutation(size: int, bits: np.random.Philox) -> NDArray[np.int64]:
    """A shuffle from the raw bits, stable across NumPy versions (NEP 19), unlike a `Generator`'s shuffle."""
    return np.argsort(bits.random_raw(size), kind="stable")


def evaluation_batches(inputs: Inputs, kind: Kind, pad_piece: int, batch_size: int) -> Iterator[Batch]:
    """Yield batches of every row once, the longest first, so that the first batch shows whether memory suffices."""
    order = np.argsort(-inputs.lengths, kind="stable").tolist()
    for start in range(0, len(order), batch_size):
        yield inputs.batch(order[start : start + batch_size], pad_piece, kind)


def stitch(split: EncodedSplit, predictions_by_row: Sequence[Prediction]) -> list[Prediction]:
    """Return one prediction per example, in the split's order; the windows of a sentence are joined.

    Args:
        split: the tokenised split.
        predictions_by_row: one prediction per row, in the order of `split.rows`.
    """
    if not split.word_counts:
        return list(predictions_by_row)
    sentences: list[list[int]] = [[] for _ in range(split.examples)]
    for row, prediction in zip(split.rows, predictions_by_row, strict=True):
        assert isinstance(prediction, list), "sequence labelling predicts a list per row"
        assert row.offset == len(sentences[row.example]), "windows follow one another"
        sentences[row.example].extend(prediction)
    assert [len(labels) for labels in sentences] == split.word_counts, "one label per word"
    return list(sentences)


def prefetched(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches in the same order, on `device`.

    On a GPU, the next batch is collated, pinned and copied on a separate stream before the current one is yielded, so
    that collating overlaps with the GPU's step. On the CPU nothing is copied or prefetched.

    Args:
        batches: on the CPU.
        device: the target device.
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch.to(device)
        return
    stream = _copying_stream(device)
    waiting: Batch | None = None
    for batch in batches:
        coming = _send(batch, device, stream)
        if waiting is not None:
            yield _arrived(waiting, device, stream)
        waiting = coming
    if waiting is not None:
        yield _arrived(waiting, device, stream)


@cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device's copies. torch keeps freed memory for each stream, so a new one an epoch would add up."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _send(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    """Start the copy; `non_blocking` copies are asynchronous only from pinned memory."""
    pinned = batch.mapped(Tensor.pin_memory)
    with torch.cuda.stream(stream):
        return pinned.to(device)


def _arrived(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    """Make the current stream, not the host, wait for the copy, and keep the memory as long as that stream uses it."""
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)

    def used_here(tensor: Tensor) -> Tensor:
        tensor.record_stream(current)
        return tensor

    return batch.mapped(used_here)
