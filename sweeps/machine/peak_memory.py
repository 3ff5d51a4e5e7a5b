"""Peak memory while a trial runs: of torch's allocator on a GPU, or of this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from meltpoint.sweeps.ledger.resource_use import MemoryKind
from meltpoint.sweeps.machine.limits import text

PROCESS = Path("/proc/self")

RESET_PEAK = "5"
"""Written to `clear_refs`, it sets the peak resident memory back to the present one (Linux 4.0, proc(5))."""


class PeakMemory(Protocol):
    """A peak of memory.

    Attributes:
        kind: what it is, since the last `begin`.
    """

    kind: MemoryKind

    def begin(self) -> None:
        """Count from here."""

    def read(self) -> int | None:
        """The peak since then in bytes; None where the system does not tell."""


class ProcessPeak:
    """The resident memory of this process: pages that it shares with others are counted.

    Where the peak cannot be set back (another system than Linux, a sandbox), it is the one since the process began.

    Args:
        process: the process's folder in `/proc`.
    """

    def __init__(self, process: Path = PROCESS) -> None:
        self.process = process
        self.kind: MemoryKind = "process_lifetime"

    def begin(self) -> None:
        """Count from here, where the system allows it."""
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
    """The peak since this process began, as `getrusage` says; None on systems without it."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class GpuPeak:
    """The tensors of torch's allocator on the first visible GPU; the CUDA context and other processes are not in it."""

    kind: MemoryKind = "gpu_allocated"

    def begin(self) -> None:
        """Count from here."""
        import torch

        torch.cuda.reset_peak_memory_stats(0)

    def read(self) -> int | None:
        """The peak in bytes."""
        import torch

        return int(torch.cuda.max_memory_allocated(0))
