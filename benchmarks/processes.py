"""Timed commands: wall time from start to exit, and memory and CPU time of the process and its children."""

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

SAMPLE_SECONDS = 0.5  # minimum interval between samples
SAMPLE_SHARE = 0.01  # maximum share of one core: sampling two workers of 1.4 GB took 67 ms on a busy machine


@dataclass(frozen=True)
class Finished:
    """A command that exited with status 0.

    Attributes:
        began: the start time, in seconds since 1970.
        seconds: wall time from start to exit.
        cpu_seconds: CPU time of it and all its children, as of the last sample.
        peak_bytes: the maximum memory of all its processes together; shared pages are counted once.
        output: its standard output.
    """

    began: float
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def run_timed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command and wait for its end.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        began, started = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env={**os.environ, **(environment or {})}, encoding="utf-8"
        )
        with _Sampler(process.pid) as sampler:
            status = process.wait()
            seconds = time.perf_counter() - started
        errors.seek(0)
        output.seek(0)
        if status:
            raise RuntimeError(f"{' '.join(command[:4])} … ended with status {status}:\n{errors.read()[-2000:]}")
        return Finished(began, seconds, sum(sampler.cpu_seconds.values()), sampler.peak_bytes, output.read())


class _Sampler:
    """Samples the memory and the CPU time of a process and its children, as a context manager."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.peak_bytes = 0
        self.cpu_seconds: dict[int, float] = {}  # process → CPU seconds at its last sample
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Sampler:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()

    def _sample(self) -> None:
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
    """A process and all its children; empty after its end."""
    try:
        parent = psutil.Process(root)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def proportional_bytes(process: int) -> int:
    """The proportional set size of a process in bytes (Linux); 0 after its end."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
