"""Rows → padded batches, in an order that the seed and the epoch alone decide; and windows → sentences again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters.batch import Batch, EncodedSplit, Row
from meltpoint.adapters.head import Prediction
from meltpoint.tasks.core.task import Kind

POOL_BATCHES = 50
"""Rows are sorted by length within pools of this many batches: little padding, and still a different mix each epoch."""


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """How many batches a pass over `rows` rows has; the last one may be smaller."""
    return -(-rows // batch_size)


def collate(rows: Sequence[Row], indices: Sequence[int], pad_piece: int, kind: Kind) -> Batch:
    """Pad rows into a batch.

    Args:
        rows: a split's rows.
        indices: which of them, in the batch's order.
        pad_piece: the piece id of padded positions.
        kind: the task's kind, which decides the labels' shape and type.
    """
    chosen = [rows[index] for index in indices]
    lengths = torch.tensor([len(row.pieces) for row in chosen])
    pieces = _pad([row.pieces for row in chosen], pad_piece)
    segments = _pad([row.segments for row in chosen], 0) if chosen[0].segments else None
    mask = torch.arange(pieces.shape[1]) < lengths[:, None]
    hidden = any(row.label is None for row in chosen)
    if kind != "sequence_labelling":
        dtype = torch.float32 if kind == "pair_regression" else torch.int64
        labels = None if hidden else torch.tensor([row.label for row in chosen], dtype=dtype)
        return Batch(tuple(indices), pieces, mask, segments, labels=labels)
    starts = _pad([row.word_starts for row in chosen], 0)
    words = torch.tensor([len(row.word_starts) for row in chosen])
    word_mask = torch.arange(starts.shape[1]) < words[:, None]
    labels = None if hidden else _pad([row.label for row in chosen if isinstance(row.label, tuple)], 0)
    return Batch(tuple(indices), pieces, mask, segments, starts, word_mask, labels)


def _pad(sequences: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Sequences of whole numbers as one (batch, longest) int64 tensor."""
    padded = np.full((len(sequences), max(map(len, sequences))), padding, dtype=np.int64)
    for line, sequence in zip(padded, sequences, strict=True):
        line[: len(sequence)] = sequence
    return torch.from_numpy(padded)


def training_batches(
    split: EncodedSplit, kind: Kind, pad_piece: int, batch_size: int, seed: int, epoch: int
) -> Iterator[Batch]:
    """One epoch of training batches, shuffled, each of rows of about the same length.

    The order is a function of (seed, epoch) and the rows' lengths, the same on every machine. The rows that do not
    fill a batch are a random sample too (not the longest or shortest ones), and come as one smaller batch.
    """
    lengths = np.array([len(row.pieces) for row in split.rows])
    for indices in training_order(lengths, batch_size, seed, epoch):
        yield collate(split.rows, indices, pad_piece, kind)


def training_order(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Which rows each batch of an epoch has: `steps_per_epoch` lists that hold every row once."""
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    order = _permutation(len(lengths), bits)
    full = len(order) // batch_size * batch_size
    pools = [
        order[start : min(start + POOL_BATCHES * batch_size, full)]
        for start in range(0, full, POOL_BATCHES * batch_size)
    ]
    batches = [order[full:]] if full < len(order) else []
    for pool in pools:
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches.extend(pool.reshape(-1, batch_size))
    return [batches[index].tolist() for index in _permutation(len(batches), bits)]


def _permutation(size: int, bits: np.random.Philox) -> NDArray[np.int64]:
    """A shuffle from the raw bits, which NumPy keeps stable between versions (NEP 19); a `Generator`'s may change."""
    return np.argsort(bits.random_raw(size), kind="stable")


def evaluation_batches(split: EncodedSplit, kind: Kind, pad_piece: int, batch_size: int) -> Iterator[Batch]:
    """Every row once, the longest first, so that memory runs out at once if at all."""
    lengths = np.array([len(row.pieces) for row in split.rows])
    order = np.argsort(-lengths, kind="stable").tolist()
    for start in range(0, len(order), batch_size):
        yield collate(split.rows, order[start : start + batch_size], pad_piece, kind)


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
