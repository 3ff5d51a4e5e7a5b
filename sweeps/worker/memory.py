"""Memory that trials leave behind in a worker, and giving it back."""

from __future__ import annotations

import ctypes
import gc
import sys

import torch

from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine import limits


class _LastOrder:
    """Whose trials left what lies in this process's memory.

    Attributes:
        cell: of the last order, or None before the first.
    """

    cell: CellKey | None = None


def make_room(cell: CellKey) -> None:
    """Give back what trials of another cell left, where memory is scarce.

    Else the next trial takes what the last one left. Given back in between, it would have to be found again page by
    page: a twentieth of a short trial's time (docs/log.md).
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

    Without this, workers of the 12-cell sweep grew to 10 GB each (docs/log.md).
    """
    drop_garbage()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
