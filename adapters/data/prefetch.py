"""Prefetching: batches are copied to the GPU one step ahead, so that copies overlap with computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch


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
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: Batch | None = None
    for batch in batches:
        coming = _send(batch, device, stream)
        if waiting is not None:
            yield _arrived(waiting, device, stream)
        waiting = coming
    if waiting is not None:
        yield _arrived(waiting, device, stream)


def _send(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    """Start the copy; `non_blocking` copies are asynchronous only from pinned memory."""
    pinned = with_tensors(batch, Tensor.pin_memory)
    with torch.cuda.stream(stream):
        return pinned.to(device)


def _arrived(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    """Make the current stream, not the host, wait for the copy, and keep the memory as long as that stream uses it."""
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)

    def used_here(tensor: Tensor) -> Tensor:
        tensor.record_stream(current)
        return tensor

    return with_tensors(batch, used_here)


def with_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """A batch with `function` applied to each of its tensors, its source's too; fields that are None stay None."""
    fields: dict[str, Any] = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    moved: dict[str, Any] = {name: function(v) for name, v in fields.items() if isinstance(v, Tensor)}
    if batch.source is not None:
        moved["source"] = with_tensors(batch.source, function)
    return dataclasses.replace(batch, **moved)
