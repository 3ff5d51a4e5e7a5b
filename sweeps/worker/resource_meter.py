"""The meter of a worker's order: how much time, memory and energy its trials use."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from meltpoint.adapters.hardware import Hardware
from meltpoint.sweeps.ledger.resource_use import NOTHING_KNOWN, ResourceUse
from meltpoint.sweeps.machine.counters import (
    EnergyCounter,
    GpuPeak,
    PeakMemory,
    ProcessPeak,
    gpu_energy,
    package_energy,
)


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
