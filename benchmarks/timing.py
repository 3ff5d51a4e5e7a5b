"""Timed commands, and alternating measurements of two sides, whose ratios do not depend on the load of the machine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


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
        ratio: of neighbouring runs; above 1 means that Meltpoint is faster.
    """

    claim: str
    rival: str
    ours: list[Measurement]
    theirs: list[Measurement]
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
    return Comparison(claim, rival, runs["ours"], runs["theirs"], spread(ratios))


def show(comparison: Comparison, as_json: bool) -> None:
    """Print a comparison: one JSON document, or a few lines."""
    if as_json:
        print(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
        return
    repeats = len(comparison.ours)
    print(f"{comparison.claim}; median of {repeats} alternating runs (lowest – highest)")
    print(f"  ratio      {comparison.ratio}")
    for name, runs in (("meltpoint", comparison.ours), (comparison.rival, comparison.theirs)):
        print(f"  {name}  {spread([run.seconds for run in runs])} s")
    for name in comparison.ours[0].details:
        both = [spread([run.details[name] for run in side]) for side in (comparison.ours, comparison.theirs)]
        print(f"  {name}: meltpoint {both[0]}, {comparison.rival} {both[1]}")


@dataclass(frozen=True)
class Finished:
    """A command that exited with status 0.

    Attributes:
        began: the start time, in seconds since 1970.
        seconds: wall time from start to exit.
    """

    began: float
    seconds: float


def run_timed(command: Sequence[str]) -> Finished:
    """Run a command and wait for its end.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    began, started = time.time(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return Finished(began, seconds)
