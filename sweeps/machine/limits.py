"""What of this machine a process may use: the machine's, or a container's share of it (cgroup v2)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CGROUP", "Memory", "cores", "memory", "text"]

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """In bytes.

    Attributes:
        total: what there is.
        free: what could be had without swapping; files that the system keeps only to read them faster count as free.
    """

    total: int
    free: int

    @property
    def scarce(self) -> bool:
        """Whether less than half of it is free."""
        return self.free < self.total // 2


def cores(cgroup: Path = CGROUP) -> float:
    """The processor's cores that this process may use; a container's share may end in a fraction."""
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
    """A file of lines that are a name and a number."""
    return {words[0]: int(words[1]) for line in text(path).splitlines() if len(words := line.split()) > 1}


def text(path: Path) -> str:
    """A file's text; empty where it is missing or closed to this user."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
