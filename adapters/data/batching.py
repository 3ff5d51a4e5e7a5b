"""Rows → padded batches, in an order that the seed and the epoch alone decide; and windows → sentences again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit, Row
from meltpoint.adapters.data.unpadding import places_of
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.task import Kind

POOL_BATCHES = 50
"""Where batches go by length, rows are sorted within pools of this many: little padding, a new mix each epoch."""


class Features(Protocol):
    """A split's cached states."""

    def gather(self, rows: Sequence[int]) -> Tensor:
        """(layers, rows, longest, dim), 0 where padded."""


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """How many batches a pass over `rows` rows has; the last one may be smaller."""
    return -(-rows // batch_size)


def collate(rows: Sequence[Row], indices: Sequence[int], pad_piece: int, kind: Kind, encoded: bool = False) -> Batch:
    """Pad rows into a batch.

    Args:
        rows: a split's rows.
        indices: which of them, in the batch's order.
        pad_piece: the piece id of padded positions.
        kind: the task's kind, which decides the labels' shape and type.
        encoded: the rows' states are cached, so that no encoder will be given anything.
    """
    chosen = [rows[index] for index in indices]
    counts = np.array([len(row.pieces) for row in chosen])
    lengths = torch.from_numpy(counts)
    pieces = _pad([row.pieces for row in chosen], pad_piece)
    segments = _pad([row.segments for row in chosen], 0) if chosen[0].segments else None
    mask = torch.arange(pieces.shape[1]) < lengths[:, None]
    padded = bool((counts < pieces.shape[1]).any())
    places, ascending = places_of(counts) if padded else (None, ())
    cuts = torch.tensor([row.cut for row in chosen]) if chosen[0].cut else None
    batch = Batch(
        tuple(indices), pieces, mask, segments, padded=padded, parts=_parts(chosen, pieces), cuts=cuts, places=places,
        lengths=ascending,
    )  # fmt: skip
    if not (encoded or all(row.is_its_input for row in chosen)):
        batch = _with_source(batch, chosen, pad_piece)
    return _with_labels(batch, chosen, kind)


def _with_labels(batch: Batch, chosen: Sequence[Row], kind: Kind) -> Batch:
    """The batch with its labels, and with its words where those are labelled."""
    hidden = any(row.label is None for row in chosen)
    if kind != "sequence_labelling":
        dtype = torch.float32 if kind == "pair_regression" else torch.int64
        return replace(batch, labels=None if hidden else torch.tensor([row.label for row in chosen], dtype=dtype))
    starts = _pad([row.word_starts for row in chosen], 0)
    words = torch.tensor([len(row.word_starts) for row in chosen])
    labels = None if hidden else _pad([row.label for row in chosen if isinstance(row.label, tuple)], 0)
    return replace(batch, word_starts=starts, word_mask=torch.arange(starts.shape[1]) < words[:, None], labels=labels)


def _parts(chosen: Sequence[Row], pieces: Tensor) -> Tensor | None:
    """Which sentence of its pair each piece belongs to: (batch, pieces)."""
    if not chosen[0].spans:
        return None
    parts = np.zeros(pieces.shape, dtype=np.int64)
    for line, row in zip(parts, chosen, strict=True):
        for number, (start, stop) in enumerate(row.spans, 1):
            line[start:stop] = number
    return torch.from_numpy(parts)


def _with_source(batch: Batch, chosen: Sequence[Row], pad_piece: int) -> Batch:
    """The batch with the encoder's own inputs, which are not the rows."""
    given = [pair for row in chosen for pair in zip(row.inputs, row.input_segments, strict=True)]
    rows = [Row(number, 0, pieces, segments, (), None) for number, (pieces, segments) in enumerate(given)]
    source = collate(rows, range(len(rows)), pad_piece, "sentence_classification")
    longest, number = source.pieces.shape[1], 0
    places = []
    for row in chosen:
        own = [number * longest + len(row.before) + position for position in range(len(row.pieces))]
        for position in range(row.cut, len(row.pieces)) if row.cut else ():
            own[position] = (number + 1) * longest + position - row.cut
        places.append(own)
        number += len(row.inputs)
    return replace(batch, source=source, source_places=_pad(places, 0))


def _pad(sequences: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Sequences of whole numbers as one (batch, longest) int64 tensor."""
    padded = np.full((len(sequences), max(map(len, sequences))), padding, dtype=np.int64)
    for line, sequence in zip(padded, sequences, strict=True):
        line[: len(sequence)] = sequence
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class Inputs:
    """A split as a model reads it.

    Attributes:
        rows: what batches are made of: the split's own rows, or only the pieces whose cached states the head reads.
        lengths: pieces of each of the split's own rows; they order the batches, the same with and without a cache.
        features: the frozen encoder's states of `rows`; None where the encoder has to run.
    """

    rows: list[Row]
    lengths: NDArray[np.int64]
    features: Features | None = None

    def batch(self, indices: Sequence[int], pad_piece: int, kind: Kind, lanes: int = 1) -> Batch:
        """Rows as a batch, with their states where those are cached."""
        batch = replace(collate(self.rows, indices, pad_piece, kind, self.features is not None), lanes=lanes)
        if self.features is None:
            return batch
        states = self.features.gather(indices)  # (layers, lanes × rows, pieces, dim)
        return replace(batch, states=states.view(len(states), lanes, -1, *states.shape[2:]))


def inputs(split: EncodedSplit, features: Features | None = None, first_pieces: bool = False) -> Inputs:
    """A split's rows, whole, or only the positions of `first_pieces`."""
    lengths = np.array([len(row.pieces) for row in split.rows])
    return Inputs([first_piece_row(row) for row in split.rows] if first_pieces else split.rows, lengths, features)


def first_piece_row(row: Row) -> Row:
    """A row of those pieces alone that a head without context reads (`first_places`); only cached states have it."""
    starts = first_places(row)
    words = tuple(range(len(row.word_starts)))
    pieces = tuple(row.pieces[start] for start in starts)
    spans = tuple((place, place + 1) for place in range(len(row.spans)) if row.cut)
    return replace(
        row, pieces=pieces, segments=(), word_starts=words, spans=spans, cut=int(row.cut > 0), before=(), after=()
    )


def first_places(row: Row) -> tuple[int, ...]:
    """Where a row's first pieces lie: each word's, or each input's ([CLS])."""
    if row.word_starts:
        return row.word_starts
    return (0, row.cut) if row.cut else (0,)


def training_batches(
    inputs: Inputs, kind: Kind, pad_piece: int, batch_size: int, seeds: Sequence[int], epoch: int, by_length: bool
) -> Iterator[Batch]:
    """One epoch of training batches, shuffled.

    The order is a function of (seed, epoch) and the rows' lengths, the same on every machine. The rows that do not
    fill a batch are a random sample too (not the longest or shortest ones), and come last as one smaller batch.

    Args:
        seeds: one a lane; each lane has its own order.
        by_length: whether a batch's rows are of about the same length.
    """
    pool = POOL_BATCHES if by_length else 1
    orders = [training_order(inputs.lengths, batch_size, seed, epoch, pool) for seed in seeds]
    for parts in zip(*orders, strict=True):
        yield inputs.batch([row for part in parts for row in part], pad_piece, kind, len(seeds))


def training_order(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int, pool: int) -> list[list[int]]:
    """Which rows each batch of an epoch has: `steps_per_epoch` lists that hold every row once.

    Args:
        pool: of how many batches at a time the rows are sorted by length; 1 draws every batch at random.
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
    """A shuffle from the raw bits, which NumPy keeps stable between versions (NEP 19); a `Generator`'s may change."""
    return np.argsort(bits.random_raw(size), kind="stable")


def evaluation_batches(inputs: Inputs, kind: Kind, pad_piece: int, batch_size: int) -> Iterator[Batch]:
    """Every row once, the longest first, so that memory runs out at once if at all."""
    order = np.argsort(-inputs.lengths, kind="stable").tolist()
    for start in range(0, len(order), batch_size):
        yield inputs.batch(order[start : start + batch_size], pad_piece, kind)


def stitch(split: EncodedSplit, predictions_by_row: Sequence[Prediction]) -> list[Prediction]:
    """One prediction an example, in the split's order; a sentence's windows are joined again.

    Args:
        split: the tokenised split.
        predictions_by_row: one prediction a row, in the order of `split.rows`.
    """
    assert len(predictions_by_row) == len(split.rows), "one prediction a row"
    if not split.word_counts:
        return list(predictions_by_row)
    sentences: list[list[int]] = [[] for _ in range(split.examples)]
    for row, prediction in zip(split.rows, predictions_by_row, strict=True):
        assert isinstance(prediction, list), "sequence labelling predicts a list a row"
        assert row.offset == len(sentences[row.example]), "windows follow one another"
        sentences[row.example].extend(prediction)
    assert [len(labels) for labels in sentences] == split.word_counts, "one label a word"
    return list(sentences)
