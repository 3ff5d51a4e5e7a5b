"""The cores and the memory that this process may use: the machine's, or those of its container (cgroup v2)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CGROUP", "Memory", "cores", "memory", "text"]

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
