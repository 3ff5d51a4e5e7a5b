"""Memory of a worker: released, measured, and learnt from a pass that did not fit a GPU.

A pass's need of memory grows with rows × length, so what is learned of a cell is a ceiling of that product for each
kind of GPU. A trial is tried again by itself, then on a GPU of its own, then with half the rows at a time, with the
gradient of the whole batch (`Trainer.micro_batch`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.hardware import Hardware
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.worker.outcome import OutOfMemory, TrialOutcome, failed, memory_error_in_short
from meltpoint.sweeps.worker.work_order import Order


class _LastOrder:
    """Whose trials left what lies in this process's memory.

    Attributes:
        cell: of the last order, or None before the first.
    """

    cell: CellKey | None = None


def make_room(cell: CellKey) -> None:
    """Give back what trials of another cell left, where memory is scarce.

    Else the next trial takes what the last one left. Given back in between, it would have to be found again page by
    page: a twentieth of a short trial's time (docs/internals/log.md).
    """
    if _LastOrder.cell not in (None, cell) and limits.memory().scarce:
        release_memory()
    _LastOrder.cell = cell


def drop_garbage() -> None:
    """Let go of a trial's model, which holds reference cycles; a GPU's memory may be another trial's next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release_memory() -> None:
    """Give the memory back that trials left: neither Python nor malloc does it soon.

    Without this, workers of the 12-cell sweep grew to 10 GB each (docs/internals/log.md).
    """
    drop_garbage()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def longest_input(split: EncodedSplit) -> int:
    """The most subword tokens that one row of a split has, of all its inputs together."""
    return max((sum(map(len, row.inputs)) for row in split.rows), default=0)


def halved(rows: int) -> int:
    """The next smaller micro-batch."""
    return -(-rows // 2)


def micro_batch_of(order: Order, hardware: Hardware, train: EncodedSplit) -> int:
    """The most rows of an order's batch that go through the model at once on some hardware."""
    rows = int(order.setting["batch_size"])
    if order.micro_batch_size is not None:
        return min(rows, order.micro_batch_size)
    ceiling = order.ceilings.get(hardware.name)
    if ceiling is None:
        return rows
    length = longest_input(train)
    while rows > 1 and rows * length > ceiling:
        rows = halved(rows)
    return rows


def outcome_of(error: Exception, orders: Sequence[Order], place: Hardware, train: EncodedSplit) -> TrialOutcome:
    """The outcome of trials whose worker ran out of GPU memory: they are tried again with less, while there is less.

    Args:
        error: one of `is_gpu_out_of_memory`.
    """
    order = orders[0]
    rows, length = micro_batch_of(order, place, train), longest_input(train)
    said = memory_error_in_short(error)
    is_shared = 0 < order.gpus < 1
    if rows == 1 and len(orders) == 1 and not is_shared:
        return failed(
            "setting",
            f"out of memory: {place.name} is too small for one row of {length} subword tokens at a time ({said}); a "
            "smaller max_pieces, a smaller encoder, or a GPU with more memory",
        )
    lack = OutOfMemory(gpu=place.name, rows=rows, length=length, is_shared=is_shared, together=len(orders))
    return TrialOutcome(status="failed", cause="memory", error=f"out of memory: {said}", out_of_memory=lack)
