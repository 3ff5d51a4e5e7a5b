"""The process that holds a lease: its identity, and what can be proved about it from another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

PROC = Path("/proc")
DEAD, HALTED = "ZX", "Tt"
"""States in `/proc/PID/stat` of a process that has ended, and of one that was stopped (SIGSTOP, a debugger)."""


class Owner(BaseModel):
    """A process, so that another one can tell whether it still runs.

    Attributes:
        boot: the machine's boot, which tells machines apart too; "" where the system has no name for it.
        namespace: of process ids, which containers have of their own.
        started: when the kernel started the process, in the kernel's own words; tells it from one with a reused id.
        since: local time, for people.
        token: unique.
        has_file_lock: whether it holds the sweep's file lock.
        heartbeat_seconds: how often it renews its lease.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str
    namespace: str
    process: int
    started: str
    since: str
    token: str
    has_file_lock: bool = False
    heartbeat_seconds: float = 5.0

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}"

    def is_of_this_boot(self) -> bool:
        """True if it runs, or ran, under this kernel."""
        return bool(self.boot) and self.boot == boot()

    def is_gone(self, file_lock_is_free: bool) -> bool:
        """True if the process has provably ended. False says nothing.

        Args:
            file_lock_is_free: whether this process could take the sweep's file lock. Under one kernel a lock is freed
                only by the end of its process; another container's process ids cannot be looked up.
        """
        if not self.is_of_this_boot():
            return False
        if self.namespace == namespace():
            found = look_up(self.process)
            return found is None or found.started != self.started or found.state[0] in DEAD
        return self.has_file_lock and file_lock_is_free

    def runs_here(self) -> bool:
        """True if it provably runs on this machine, and is not halted."""
        if not self.is_of_this_boot() or self.namespace != namespace():
            return False
        found = look_up(self.process)
        return found is not None and found.started == self.started and found.state[0] not in DEAD + HALTED


class Found(NamedTuple):
    """A process as the system lists it: its state (one letter, perhaps more behind it) and start."""

    state: str
    started: str


def this_process(token: str, has_file_lock: bool, heartbeat_seconds: float) -> Owner:
    """The owner that this process is."""
    found = look_up(os.getpid())
    return Owner(
        host=socket.gethostname(), boot=boot(), namespace=namespace(), process=os.getpid(),
        started=found.started if found else "", since=time.strftime("%Y-%m-%d %H:%M:%S"), token=token,
        has_file_lock=has_file_lock, heartbeat_seconds=heartbeat_seconds,
    )  # fmt: skip


def look_up(process: int) -> Found | None:
    """A process of this machine and this namespace; None if there is none."""
    if not (PROC / "self" / "stat").exists():
        return _listed(process)
    try:
        stat = (PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return Found(fields[0], fields[19])  # clock ticks since the boot: no change of the clock moves them


def _listed(process: int) -> Found | None:
    """A process where there is no /proc (macOS)."""
    said = _output("ps", "-o", "stat=,lstart=", "-p", str(process)).split(maxsplit=1)
    return Found(*said) if len(said) == 2 else None


def boot() -> str:
    """The id of this boot of this machine; "" where the system gives none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _output("sysctl", "-n", "kern.bootsessionuuid") if sys.platform == "darwin" else ""


def namespace() -> str:
    """The namespace of this process's id; "" where the system has none."""
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _output(*command: str) -> str:
    """The output of a command; "" if it fails."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
