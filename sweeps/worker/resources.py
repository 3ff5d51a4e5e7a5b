"""A worker's memory and time: measurement, release, and the response to a pass that did not fit a GPU.

A pass's memory grows with rows × length, so the driver learns a ceiling of that product for each cell and kind of GPU.
A trial that does not fit is retried alone, then on a whole GPU, then with half the rows at a time, but with the
gradient of the whole batch (`Trainer.micro_batch`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Sequence

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.hardware import Hardware
from meltpoint.adapters.hyperparameters import common_value
from meltpoint.sweeps.ledger.attempt import NOTHING_KNOWN, ResourceUse
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.machine.limits import GpuPeak, PeakMemory, ProcessPeak
from meltpoint.sweeps.worker.outcome import OutOfMemory, TrialOutcome, failed, memory_error_in_short
from meltpoint.sweeps.worker.work_order import Order


class _LastOrder:
    """The last order of this process, whose trials left memory behind.

    Attributes:
        cell: of the last order; None before the first.
    """

    cell: CellKey | None = None


def make_room(cell: CellKey) -> None:
    """Release the memory that trials of another cell left, if memory is scarce.

    Otherwise the next trial reuses it. Released in between, it would have to be mapped again page by page: a twentieth
    of a short trial's time (docs/internals/log.md).
    """
    if _LastOrder.cell not in (None, cell) and limits.memory().scarce:
        release_memory()
    _LastOrder.cell = cell


def drop_garbage() -> None:
    """Free a trial's model, which holds reference cycles; another trial may use the GPU's memory next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release_memory() -> None:
    """Release the memory that trials left; neither Python nor malloc does so soon.

    Without this, workers of the 12-cell sweep grew to 10 GB each (docs/internals/log.md).
    """
    drop_garbage()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def longest_input(split: EncodedSplit) -> int:
    """The most subword tokens in one row of a split, over all its inputs."""
    return max((sum(map(len, row.inputs)) for row in split.rows), default=0)


def halved(rows: int) -> int:
    """The next smaller micro-batch."""
    return -(-rows // 2)


def micro_batch_of(order: Order, hardware: Hardware, train: EncodedSplit) -> int:
    """The most rows of an order's batch that pass through the model at once on this hardware."""
    rows = int(common_value(order.setting, "batch_size"))
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
    """The outcome of trials whose worker ran out of GPU memory: they are retried with less, until less is impossible.

    Args:
        error: an error for which `is_gpu_out_of_memory` holds.
    """
    order = orders[0]
    rows, length = micro_batch_of(order, place, train), longest_input(train)
    said = memory_error_in_short(error)
    is_shared = 0 < order.gpus < 1
    if rows == 1 and len(orders) == 1 and not is_shared:
        return failed(
            "setting",
            f"out of memory: {place.name} is too small for one row of {length} subword tokens at a time ({said}); "
            "use a smaller max_pieces, a smaller encoder, or a GPU with more memory",
        )
    lack = OutOfMemory(gpu=place.name, rows=rows, length=length, is_shared=is_shared, together=len(orders))
    return TrialOutcome(status="failed", cause="memory", error=f"out of memory: {said}", out_of_memory=lack)


class ResourceMeter:
    """Time and memory of the trials of one order.

    Args:
        began: time at which the worker picked the order up, by the clock; None for now.
        clock: monotonic seconds.
    """

    def __init__(self, began: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began = clock, clock() if began is None else began
        self.memory: PeakMemory | None = None
        self.peaks: dict[str, int | None] = {}

    def begin(self, hardware: Hardware) -> None:
        """Reset the memory peak: trials begin that train side by side."""
        if self.memory is None:
            self.memory = ProcessPeak() if hardware.device == "cpu" else GpuPeak()
        self.memory.begin()

    def seconds(self) -> float:
        """The seconds that the worker has had the order, without its waits for the driver."""
        return self.clock() - self.began

    def skip(self, since: float) -> None:
        """Exclude the time since `since`, by `seconds`: the worker waited for a suspended or busy driver."""
        self.began += self.seconds() - since

    def lap(self, trials: Sequence[str]) -> None:
        """Assign the use since the last lap to these trials, which trained side by side."""
        if self.memory is None or not trials:
            return
        self.peaks |= dict.fromkeys(trials, self.memory.read())

    def of(self, trial: str) -> ResourceUse:
        """The resources that a trial has used so far; unknown before its first lap."""
        if self.memory is None or trial not in self.peaks:
            return NOTHING_KNOWN
        peak = self.peaks[trial]
        return ResourceUse(peak_memory_bytes=peak, peak_memory_kind=None if peak is None else self.memory.kind)
