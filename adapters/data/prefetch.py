"""Batches on the device one step ahead, so that a GPU never waits for a copy and the host never waits for the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch


def prefetched(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches in the same order, on `device`.

    On a GPU the next batch is made, pinned and sent on a stream of its own before this one is handed out: while the
    GPU is busy with a step, the CPU collates the next. On the CPU nothing is copied and nothing is read ahead.

    Args:
        batches: on the CPU.
        device: where they are wanted.
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
    """Start the copy; only from pinned memory does `non_blocking` mean what it says."""
    pinned = with_tensors(batch, Tensor.pin_memory)
    with torch.cuda.stream(stream):
        return pinned.to(device)


def _arrived(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    """Make the device's work wait for the copy (the host does not), and its memory live as long as that work."""
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)

    def used_here(tensor: Tensor) -> Tensor:
        tensor.record_stream(current)
        return tensor

    return with_tensors(batch, used_here)


def with_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """A batch with each of its tensors put through `function`; what is None stays None."""
    fields: dict[str, Any] = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    moved: dict[str, Any] = {name: function(v) for name, v in fields.items() if isinstance(v, Tensor)}
    return dataclasses.replace(batch, **moved)
