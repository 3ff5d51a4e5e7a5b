"""Memory, time and energy of a worker: released, measured, and learnt from a pass that did not fit a GPU.

A pass's need of memory grows with rows × length, so the driver learns a ceiling of that product of a cell for each kind
of GPU. A trial is tried again by itself, then on a GPU of its own, then with half the rows at a time, with the gradient
of the whole batch (`Trainer.micro_batch`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.hardware import Hardware
from meltpoint.sweeps.ledger.attempt import NOTHING_KNOWN, ResourceUse
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.machine.counters import (
    EnergyCounter,
    GpuPeak,
    PeakMemory,
    ProcessPeak,
    gpu_energy,
    package_energy,
)
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


class ResourceMeter:
    """Time, memory and energy of the trials of one order.

    The time between two readings belongs to the trials that trained in it, each an even part, so that the energy of an
    order's trials adds up to the counter's, whoever left early and whatever was tried and did not fit the memory.

    Args:
        began: when the worker took the order up, by the clock; None for now.
        clock: seconds; one that nobody sets.

    Attributes:
        energy: the counter; None before `begin`, and where there is none.
        share: the part of its energy that counts.
    """

    def __init__(self, began: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began = clock, clock() if began is None else began
        self.energy: EnergyCounter | None = None
        self.memory: PeakMemory | None = None
        self.share = 0.0
        self.used: defaultdict[str, float] = defaultdict(float)
        self.peaks: dict[str, int | None] = {}
        self.untold: set[str] = set()

    def begin(self, hardware: Hardware) -> None:
        """Trials begin that train side by side, the first ones or those after them: their peak is counted anew."""
        if self.memory is None:
            self.open(*instruments(hardware))
        assert self.memory is not None
        self.memory.begin()

    def open(self, memory: PeakMemory, energy: EnergyCounter | None, share: float) -> None:
        """Count from here with these."""
        self.memory, self.energy, self.share = memory, energy, share

    def seconds(self) -> float:
        """The seconds that the worker has had the order, without those in which it waited for the driver."""
        return self.clock() - self.began

    def skip(self, since: float) -> None:
        """Leave out the time since then, by `seconds`: the worker waited for a driver that is halted or busy."""
        self.began += self.seconds() - since
        if self.energy is not None:
            self.energy.joules()

    def lap(self, trials: Sequence[str]) -> None:
        """These trials trained side by side since the last lap."""
        if self.memory is None or not trials:
            return
        peak, joules = self.memory.read(), self.energy.joules() if self.energy is not None else None
        for trial in trials:
            self.peaks[trial] = peak
            if joules is None:
                self.untold.add(trial)
            else:
                self.used[trial] += self.share * joules / len(trials)

    def of(self, trial: str) -> ResourceUse:
        """The resources that a trial has used so far; nothing is known of one without a lap."""
        if self.memory is None or trial not in self.peaks:
            return NOTHING_KNOWN
        peak, is_told = self.peaks[trial], self.energy is not None and trial not in self.untold
        return ResourceUse(
            peak_memory_bytes=peak, peak_memory_kind=None if peak is None else self.memory.kind,
            energy_joules=round(self.used[trial], 3) if is_told else None,
            energy_source=self.energy.source if self.energy is not None and is_told else None,
            energy_share=self.share if is_told else None,
        )  # fmt: skip


def instruments(hardware: Hardware) -> tuple[PeakMemory, EnergyCounter | None, float]:
    """The peak, the counter and the share of its energy on some hardware.

    A GPU's energy counts by the share that Ray gave: trials that share one run at different speeds, and nothing tells
    whose the energy was. A CPU's counts by threads of all logical cores.
    """
    if hardware.device == "cpu":
        return ProcessPeak(), package_energy(), min(1.0, hardware.threads / (os.cpu_count() or 1))
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return GpuPeak(), gpu_energy(uuid), min(1.0, hardware.gpu_share)
