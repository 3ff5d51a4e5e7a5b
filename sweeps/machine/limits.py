"""Limits: the cores and the memory that this process may use (cgroup v2), how trials share a GPU, and how rarely
garbage is collected. Also meters of peak memory: of torch's allocator on a GPU, otherwise of this process.

The guides show the limits on a GPU. Change one only after a measurement on a GPU, with the figures in
`docs/internals/log.md`."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meltpoint.sweeps.ledger.records import MemoryKind

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Memory of this process's machine or container, in bytes.

    Attributes:
        total: the limit.
        free: available without swapping; the page cache counts as free.
    """

    total: int
    free: int

    @property
    def scarce(self) -> bool:
        """True if less than half of the memory is free."""
        return self.free < self.total // 2


def cores(cgroup: Path = CGROUP) -> float:
    """The number of cores that this process may use; a container's limit may be a fraction."""
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    limit, _, period = text(cgroup / "cpu.max").partition(" ")
    return min(usable, int(limit) / int(period)) if limit.isdigit() and period.isdigit() else usable


def memory(cgroup: Path = CGROUP) -> Memory:
    """The memory that this process may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _fields(Path("/proc/meminfo")).get("MemAvailable:", total // 1024) * 1024
    limit, used = text(cgroup / "memory.max"), text(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        held = int(used) - _fields(cgroup / "memory.stat").get("inactive_file", 0)
        total, free = min(total, int(limit)), min(free, int(limit) - held)
    return Memory(total, free)


def _fields(path: Path) -> dict[str, int]:
    """Parse a file whose lines are a name and a number."""
    return {words[0]: int(words[1]) for line in text(path).splitlines() if len(words := line.split()) > 1}


def text(path: Path) -> str:
    """A file's text; empty if it is missing or this user may not read it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


MOST_TRIALS_OF_A_GPU = 8
"""The most trials that share one GPU under `--gpus-per-trial auto`; each has its own process and CUDA context.
Eight that fine-tune all-MiniLM-L6-v2 train 7.7 times as many examples per second as one on an H100; ten on an H200 took
about as long as one (`docs/internals/log.md`, 2026-11-26)."""

GPU_MARGIN = 0.5
"""Extra memory of a trial that shares a GPU, as a fraction of the measured need: torch fragments its memory."""


# Peak memory.

RESET_PEAK = "5"
"""The value that resets the peak resident memory when written to `clear_refs` (Linux 4.0, proc(5))."""


class ProcessPeak:
    """The resident memory of this process, including pages that it shares with others.

    If the peak cannot be reset (not Linux, a sandbox), it covers the time since the process began.

    Args:
        process: the process's folder in `/proc`.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
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
        return None


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


PeakMemory = ProcessPeak | GpuPeak
"""A meter of peak memory; its `kind` says which memory."""


OBJECTS = 100_000
"""Number of new objects that triggers a collection; Python's default is 700. Code that replaces models
(workers, scoring) calls `resources.drop_garbage` after each, since a few objects may hold a model's tensors."""


def raise_gc_threshold() -> None:
    """Collect garbage rarely; called before the imports.

    Importing torch, transformers, Ray and MLflow creates a million long-lived objects. With Python's default threshold,
    collections took a third of the import time (5.0 s instead of 3.4 in the driver), and another second at the exit.
    """
    gc.set_threshold(OBJECTS)


def freeze_heap() -> None:
    """Exclude all existing objects from collection; called after the imports, or before exit."""
    gc.freeze()
