from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch

from meltpoint.adapters.data.batch import Batch, Row
from meltpoint.adapters.data.batching import collate, prefetched, with_tensors
from meltpoint.tasks.core.task import Kind

CPU = torch.device("cpu")


def batch_of(kind: Kind, lengths: list[int]) -> Batch:
    label = (0, 1) if kind == "sequence_labelling" else 1
    starts = (0, 1) if kind == "sequence_labelling" else ()
    rows = [Row(i, 0, tuple(range(2, 2 + n)), (0,) * n, starts, label) for i, n in enumerate(lengths)]
    return collate(rows, range(len(rows)), 0, kind)


@pytest.mark.parametrize("kind", ["sentence_classification", "sequence_labelling"])
def test_batches_come_whole_and_in_order(kind: Kind):
    batches = [batch_of(kind, [3, size]) for size in (2, 3, 4)]
    found = list(prefetched(batches, CPU))
    assert [batch.padded for batch in found] == [True, False, True]
    for one, other in zip(found, batches, strict=True):
        for name in ("pieces", "piece_mask", "segments", "word_starts", "word_mask", "labels"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None and second is None) or torch.equal(first, second)
        assert one.rows == other.rows


def test_nothing_is_read_ahead_on_the_cpu():
    made = []

    def batches() -> Iterator[Batch]:
        for size in (2, 3):
            made.append(size)
            yield batch_of("sentence_classification", [size])

    next(prefetched(batches(), CPU))
    assert made == [2]


def test_the_tensors_of_a_batchs_source_are_mapped_too():
    source = batch_of("sentence_classification", [4, 2])
    batch = dataclasses.replace(batch_of("sentence_classification", [3, 2]), source=source)
    seen: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(id(tensor))
        return tensor

    mapped = with_tensors(batch, note)
    tensors = [one for part in (batch, source) for one in vars(part).values() if isinstance(one, torch.Tensor)]
    assert sorted(seen) == sorted(map(id, tensors))
    assert mapped.source is not None
    assert torch.equal(mapped.source.pieces, source.pieces)


def test_every_tensor_of_a_batch_is_mapped_and_the_rest_stays():
    batch = batch_of("sequence_labelling", [3, 5])
    seen: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor.clone()

    mapped = with_tensors(batch, note)
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert {id(t) for t in seen} == {id(t) for t in tensors}
    assert mapped.rows == batch.rows
    assert mapped.padded is batch.padded
    assert torch.equal(mapped.pieces, batch.pieces)
    assert mapped.pieces is not batch.pieces


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_arrive_whole_one_step_ahead():
    device = torch.device("cuda:0")
    made = []

    def batches() -> Iterator[Batch]:
        for size in (2, 3, 4):
            made.append(size)
            yield batch_of("sentence_classification", [size, 5])

    stream = prefetched(batches(), device)
    first = next(stream)
    assert made == [2, 3]
    assert first.pieces.device == device
    assert torch.equal(first.pieces.cpu(), batch_of("sentence_classification", [2, 5]).pieces)
    assert [len(batch) for batch in stream] == [2, 2]


def test_an_unpadded_batch_gives_the_same_states_without_its_mask(load_tiny: Callable, family: str):
    encoder = load_tiny(family)
    batch = batch_of("sentence_classification", [6, 6])
    batch = batch if encoder.tokenizer.sentence("a", 8)[1] else Batch(batch.rows, batch.pieces, batch.piece_mask)
    with torch.no_grad():
        plain = encoder(Batch(batch.rows, batch.pieces, batch.piece_mask, batch.segments, padded=False))
        masked = encoder(Batch(batch.rows, batch.pieces, batch.piece_mask, batch.segments))
    for one, other in zip(plain, masked, strict=True):
        torch.testing.assert_close(one, other)
