"""Counters of a trial's resources: energy (NVML of a GPU, RAPL of the processor packages) and peak memory.

An energy counter costs two reads, counts every program on its hardware, and never raises: a value that is unreadable or
in doubt is None. Peak memory is of torch's allocator on a GPU, otherwise of this process."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from meltpoint.sweeps.ledger.attempt import EnergySource, MemoryKind
from meltpoint.sweeps.machine.limits import text

POWERCAP = Path("/sys/class/powercap")

MOST_WATTS = 1000.0
"""Upper bound on the power of a processor package (the largest have 500 W, with peaks of twice that), and so on how
soon a counter may wrap around."""

MICRO, MILLI = 1e-6, 1e-3


class EnergyCounter(Protocol):
    """A counter of energy.

    Attributes:
        source: the kind of counter.
    """

    source: EnergySource

    def joules(self) -> float | None:
        """The energy since the last call, or since the counter was created; None if unknown."""


class GpuEnergy:
    """The counter of one GPU board: `nvmlDeviceGetTotalEnergyConsumption`, in mJ since its driver was loaded.

    Args:
        nvml: the module `pynvml`.
        handle: NVML's handle of the GPU.
    """

    source: EnergySource = "nvml"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.last = self._read()

    def joules(self) -> float | None:
        """The energy since the last call; None if the driver was reloaded, or does not answer."""
        before, self.last = self.last, self._read()
        if before is None or self.last is None or self.last < before:
            return None
        return MILLI * (self.last - before)

    def _read(self) -> int | None:
        try:
            return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))
        except self.nvml.NVMLError:
            return None


def gpu_energy(uuid: str, nvml: Any | None = None) -> GpuEnergy | None:
    """The counter of a GPU; None without `nvidia-ml-py` or a counter, and for a part of a GPU (MIG), which has none.

    Args:
        uuid: the GPU's, from torch (`get_device_properties(0).uuid`): Ray may show a worker one GPU of several.
        nvml: the module `pynvml`; None imports it.
    """
    nvml = nvml if nvml is not None else load_nvml()
    if nvml is None:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except nvml.NVMLError:
        return None
    counter = GpuEnergy(nvml, handle)
    return None if counter.last is None or _is_divided(nvml, handle) else counter


def load_nvml() -> Any | None:
    """The module `pynvml` (package `nvidia-ml-py`, extra `energy`), ready; None without it, or without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _is_divided(nvml: Any, handle: Any) -> bool:
    """True for a GPU in MIG mode; NVML raises for GPUs without this mode."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


class PackageEnergy:
    """The counters of all processor packages together (powercap, `intel-rapl`; also on AMD processors).

    A counter wraps around at its range, after some 20 minutes at 200 W. If a whole round fits into the time since the
    last call, at twice the package's own power limit, the energy is unknown.

    Args:
        zones: the packages' folders.
        clock: monotonic seconds.
    """

    source: EnergySource = "rapl"

    def __init__(self, zones: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self.zones, self.clock = tuple(zones), clock
        self.ranges = [_number(zone / "max_energy_range_uj") for zone in self.zones]
        self.watts = [_most_watts(zone) for zone in self.zones]
        self.last, self.at = self._read(), self.clock()

    def joules(self) -> float | None:
        """The energy of all packages since the last call."""
        before, began = self.last, self.at
        self.last, self.at = self._read(), self.clock()
        seconds = self.at - began
        each = [self._of_one(place, before[place], self.last[place], seconds) for place in range(len(self.zones))]
        known = [joules for joules in each if joules is not None]
        return sum(known) if len(known) == len(each) else None

    def _of_one(self, place: int, before: int | None, now: int | None, seconds: float) -> float | None:
        around = self.ranges[place]
        if before is None or now is None or around is None or MICRO * around <= seconds * self.watts[place]:
            return None
        return MICRO * (now - before if now >= before else now - before + around)

    def _read(self) -> list[int | None]:
        return [_number(zone / "energy_uj") for zone in self.zones]


def package_energy(folder: Path = POWERCAP) -> PackageEnergy | None:
    """The packages' counter; None if it is missing, or not fully readable by this user (mostly, only root may)."""
    zones = packages(folder)
    counter = PackageEnergy(zones)
    return counter if zones and all(value is not None for value in counter.last) else None


def packages(folder: Path = POWERCAP) -> list[Path]:
    """The zones of whole packages, without their parts (`intel-rapl:0:0`) and the platform (`psys`) around them."""
    zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    return [zone for zone in zones if text(zone / "name").startswith("package")]


def _most_watts(zone: Path) -> float:
    """Twice the package's short-term limit if it has one, and at most `MOST_WATTS`."""
    limits = [_number(zone / f"constraint_{number}_power_limit_uw") for number in (0, 1)]
    known = [MICRO * limit for limit in limits if limit]
    return min(MOST_WATTS, 2 * max(known)) if known else MOST_WATTS


def _number(path: Path) -> int | None:
    found = text(path)
    return int(found) if found.isdigit() else None


PROCESS = Path("/proc/self")

RESET_PEAK = "5"
"""The value that resets the peak resident memory when written to `clear_refs` (Linux 4.0, proc(5))."""


class PeakMemory(Protocol):
    """A meter of peak memory.

    Attributes:
        kind: the kind of memory measured since the last `begin`.
    """

    kind: MemoryKind

    def begin(self) -> None:
        """Reset the peak."""

    def read(self) -> int | None:
        """The peak since `begin` in bytes; None if the system does not report it."""


class ProcessPeak:
    """The resident memory of this process, including pages that it shares with others.

    If the peak cannot be reset (not Linux, a sandbox), it covers the time since the process began.

    Args:
        process: the process's folder in `/proc`.
    """

    def __init__(self, process: Path = PROCESS) -> None:
        self.process = process
        self.kind: MemoryKind = "process_lifetime"

    def begin(self) -> None:
        """Reset the peak, if the system allows it."""
        try:
            (self.process / "clear_refs").write_text(RESET_PEAK, encoding="ascii")
            self.kind = "process"
        except OSError:
            self.kind = "process_lifetime"

    def read(self) -> int | None:
        """The peak in bytes."""
        for line in text(self.process / "status").splitlines():
            name, _, amount = line.partition(":")
            if name == "VmHWM":
                return 1024 * int(amount.split()[0])
        return _lifetime_peak() if self.kind == "process_lifetime" else None


def _lifetime_peak() -> int | None:
    """The peak since this process began, from `getrusage`; None on systems without it."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class GpuPeak:
    """The memory of torch's allocator on the first visible GPU, without the CUDA context and other processes."""

    kind: MemoryKind = "gpu_allocated"

    def begin(self) -> None:
        """Reset the peak."""
        import torch

        torch.cuda.reset_peak_memory_stats(0)

    def read(self) -> int | None:
        """The peak in bytes."""
        import torch

        return int(torch.cuda.max_memory_allocated(0))
