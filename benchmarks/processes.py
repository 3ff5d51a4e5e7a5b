"""A command as its own process: wall time from its spawn to its exit, and the memory of it and all its children."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.5  # between looks at the processes, at least
SAMPLE_SHARE = 0.01  # of one core, at most: a look at two workers of 1.4 GB took 67 ms on a busy machine


@dataclass(frozen=True)
class Finished:
    """A command that ended well.

    Attributes:
        began: when it was spawned, in seconds since 1970.
        seconds: wall time from spawn to exit.
        cpu_seconds: processor time of it and all its children, as last seen: what comes after the last look is missed.
        peak_bytes: the most memory that its processes held together; pages that they share are counted once.
        output: its standard output.
    """

    began: float
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def run_timed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; the message ends with what it said last.
    """
    with tempfile.TemporaryFile("w+") as talk, tempfile.TemporaryFile("w+") as output:
        began, started = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=talk, env={**os.environ, **(environment or {})}, encoding="utf-8"
        )
        with _Watch(process.pid) as watch:
            status = process.wait()
            seconds = time.perf_counter() - started
        talk.seek(0)
        output.seek(0)
        if status:
            raise RuntimeError(f"{' '.join(command[:4])} … ended with status {status}:\n{talk.read()[-2000:]}")
        return Finished(began, seconds, sum(watch.cpu_seconds.values()), watch.peak_bytes, output.read())


class _Watch:
    """Samples the memory and the processor time of a process and its children until it is left."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.peak_bytes = 0
        self.cpu_seconds: dict[int, float] = {}  # process → what it had used when it was last seen
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while True:
            started = time.perf_counter()
            tree = processes(self.process)
            self.peak_bytes = max(self.peak_bytes, sum(proportional_bytes(one.pid) for one in tree))
            for one in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    self.cpu_seconds[one.pid] = times.user + times.system
            if self.over.wait(max(SAMPLE_SECONDS, (time.perf_counter() - started) / SAMPLE_SHARE)):
                return


def processes(root: int) -> list[psutil.Process]:
    """A process and all its children; empty once it is gone."""
    try:
        parent = psutil.Process(root)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def proportional_bytes(process: int) -> int:
    """A process's own pages and its share of those that it has in common with others (Linux); 0 once it is gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
