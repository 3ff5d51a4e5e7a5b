"""Writing of frozen states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import ENCODING_BATCH, FeatureKey
from meltpoint.adapters.hardware import is_gpu_out_of_memory
from meltpoint.tasks.core.task import Kind


def encode(
    encoder: Encoder, split: EncodedSplit, kind: Kind, rows: Sequence[int], layers: Sequence[int], key: FeatureKey,
    device: torch.device,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield the hidden states of rows, batch by batch, without gradients or dropout.

    Args:
        encoder: in evaluation mode on the device (`at_rest`).
        rows: the rows of whole batches of `ENCODING_BATCH`, in the layout's order.
        layers: indices of the encoder's layers, bottom → top.

    Yields:
        (layers, positions of all rows of the batch, dim) in the key's type, on the CPU.
    """
    top = encoder.layers - 1

    def read(rows: Sequence[int]) -> Tensor:
        batch = collate(split.rows, rows, encoder.tokenizer.pad_piece, kind).to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=key.precision == "bf16"):
            found = {top: encoder.read_top(batch)} if tuple(layers) == (top,) else dict(enumerate(encoder.read(batch)))
        return torch.stack([_positions(found[layer], batch, key).to(key.dtype) for layer in layers]).cpu()

    for start in range(0, len(rows), ENCODING_BATCH):
        yield _in_parts(read, rows[start : start + ENCODING_BATCH])


def _in_parts(read: Callable[[Sequence[int]], Tensor], rows: Sequence[int]) -> Tensor:
    """The states that `read` gives of some rows, (layers, positions, dim); by halves where a GPU's memory is too small.

    Raises:
        RuntimeError: it is too small for one row (`is_gpu_out_of_memory`).
    """
    try:
        return read(rows)
    except RuntimeError as error:
        if not is_gpu_out_of_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():  # here the error has let go of what the pass had taken
        torch.cuda.empty_cache()
    half = len(rows) // 2
    return torch.cat([_in_parts(read, rows[:half]), _in_parts(read, rows[half:])], 1)


@contextmanager
def at_rest(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Put the encoder in evaluation mode on a device; its mode and device are restored afterwards."""
    training, home = encoder.training, next(encoder.parameters()).device
    encoder.to(device).eval()
    try:
        yield
    finally:
        encoder.to(home).train(training)


def _positions(states: Tensor, batch: Batch, key: FeatureKey) -> Tensor:
    """(batch, pieces, dim) → (positions, dim): all real pieces, or the first ones (`batching.first_places`)."""
    if key.pieces == "all":
        return states[batch.piece_mask]
    if batch.word_starts is None or batch.word_mask is None:
        first = states[:, 0]
        if batch.cuts is None:
            return first
        second = states[torch.arange(len(batch), device=states.device), batch.cuts]
        return torch.stack([first, second], 1).flatten(0, 1)
    rows = torch.arange(len(batch), device=states.device)[:, None].expand_as(batch.word_starts)
    return states[rows[batch.word_mask], batch.word_starts[batch.word_mask]]
