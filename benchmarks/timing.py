"""Timed commands, and alternating measurements of two sides, whose ratios do not depend on the load of the machine."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Measurement:
    """One run of one side.

    Attributes:
        seconds: wall time.
        details: further figures of the run, by name.
    """

    seconds: float
    details: dict[str, float]


@dataclass(frozen=True)
class RunSpread:
    """The median and range of a figure over several runs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} – {self.high:.3g})"


@dataclass(frozen=True)
class Comparison:
    """The results of alternating runs.

    Attributes:
        claim: a description of the comparison.
        rival: the other side's name.
        ours, theirs: the runs in order; run i of one side is next to run i of the other.
        seconds_ours, seconds_theirs, ratio: over the runs; a ratio above 1 means that Meltpoint is faster.
    """

    claim: str
    rival: str
    ours: list[Measurement]
    theirs: list[Measurement]
    seconds_ours: RunSpread
    seconds_theirs: RunSpread
    ratio: RunSpread


def spread(values: list[float]) -> RunSpread:
    """Median, lowest and highest."""
    return RunSpread(statistics.median(values), min(values), max(values))


def alternate(
    claim: str, rival: str, ours: Callable[[], Measurement], theirs: Callable[[], Measurement], repeats: int
) -> Comparison:
    """Run both sides alternately; the first side changes each round, so that a slowing machine favours neither."""
    runs: dict[str, list[Measurement]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for number in range(repeats):
        for name, side in sides if number % 2 == 0 else reversed(sides):
            runs[name].append(side())
            label = "meltpoint" if name == "ours" else rival
            print(f"{number + 1}/{repeats}  {label}: {runs[name][-1].seconds:.1f} s", file=sys.stderr)
    ratios = [b.seconds / a.seconds for a, b in zip(runs["ours"], runs["theirs"], strict=True)]
    return Comparison(
        claim, rival, runs["ours"], runs["theirs"], spread([run.seconds for run in runs["ours"]]),
        spread([run.seconds for run in runs["theirs"]]), spread(ratios),
    )  # fmt: skip


def show(comparison: Comparison, as_json: bool) -> None:
    """Print a comparison: one JSON document, or a few lines."""
    if as_json:
        print(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
        return
    repeats = len(comparison.ours)
    print(f"{comparison.claim}; median of {repeats} alternating runs (lowest – highest)")
    print(f"  ratio      {comparison.ratio}")
    print(f"  meltpoint  {comparison.seconds_ours} s")
    print(f"  {comparison.rival}  {comparison.seconds_theirs} s")
    for name in comparison.ours[0].details:
        both = [spread([run.details[name] for run in side]) for side in (comparison.ours, comparison.theirs)]
        print(f"  {name}: meltpoint {both[0]}, {comparison.rival} {both[1]}")


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
