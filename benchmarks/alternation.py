"""Two sides measured in turn: single times on a shared machine are noise, ratios of neighbours are not."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Measurement:
    """One run of one side.

    Attributes:
        seconds: wall time.
        details: whatever else was seen in that run, name → figure.
    """

    seconds: float
    details: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """A figure over several runs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} – {self.high:.3g})"


@dataclass(frozen=True)
class Comparison:
    """What alternating runs gave.

    Attributes:
        claim: what is compared, in words.
        rival: the other side's name.
        ours, theirs: the runs, in the order in which they were made; run i of one neighbours run i of the other.
        seconds_ours, seconds_theirs, ratio: over the runs; a ratio above 1 means that Meltpoint is faster.
    """

    claim: str
    rival: str
    ours: list[Measurement]
    theirs: list[Measurement]
    seconds_ours: Spread
    seconds_theirs: Spread
    ratio: Spread


def spread(values: list[float]) -> Spread:
    """Median, lowest and highest."""
    return Spread(statistics.median(values), min(values), max(values))


def alternate(
    claim: str, rival: str, ours: Callable[[], Measurement], theirs: Callable[[], Measurement], repeats: int
) -> Comparison:
    """Run both sides in turn; who begins changes with each round, so that a machine that slows down favours neither."""
    runs: dict[str, list[Measurement]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for number in range(repeats):
        for name, side in sides if number % 2 == 0 else reversed(sides):
            runs[name].append(side())
            who = "meltpoint" if name == "ours" else rival
            print(f"{number + 1}/{repeats}  {who}: {runs[name][-1].seconds:.1f} s", file=sys.stderr)
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
