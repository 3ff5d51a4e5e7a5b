"""Worker utilisation of a finished sweep, from its ledger: the share of wall time in which workers had a trial."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord, worker_spans


@dataclass(frozen=True)
class Utilisation:
    """Utilisation of the workers between the first trial's start and the last one's end.

    Attributes:
        trials: the trials that ran, without finals whose result was taken from the search.
        slots: the number of concurrent trials.
        wall_seconds: from the first start to the last end.
        busy_share: trial seconds over slot seconds.
        computing_share: the same for the epochs only, without start, end and communication of the trials.
        longest_idle_seconds: the longest stretch in which no slot had a trial; for a sweep that was
            interrupted and resumed, this is the interruption, and the shares are meaningless.
        tail_seconds: from the moment when the first slot had no more trials, to the end.
    """

    trials: int
    slots: int
    wall_seconds: float
    busy_share: float
    computing_share: float
    longest_idle_seconds: float
    tail_seconds: float


def utilisation(records: Sequence[TrialRecord], slots: int | None = None) -> Utilisation:
    """Compute the utilisation from a ledger's records.

    Args:
        slots: the number of concurrent trials; None for the maximum in the records.

    Raises:
        ValueError: no trial ran, or more ran together than there are slots.
    """
    ran = [record for record in records if record.answered_by is None]
    if not ran:
        raise ValueError("No trial of this sweep has ended yet; run it first.")
    spans = worker_spans(ran)
    together = most_together(spans)
    slots = together if slots is None else slots
    if together > slots:
        raise ValueError(f"{together} trials ran together, so --slots {slots} cannot be right; leave it out.")
    first, last = spans[0][0], max(end for _, end in spans)
    wall = max(last - first, 1e-9)
    computing = sum(epoch.train_seconds + epoch.dev_seconds for record in ran for epoch in record.epochs)
    return Utilisation(
        trials=len(ran), slots=slots, wall_seconds=wall,
        busy_share=sum(end - start for start, end in spans) / (slots * wall),
        computing_share=computing / (slots * wall), longest_idle_seconds=longest_gap(spans),
        tail_seconds=last - sorted(end for _, end in spans)[-slots:][0],
    )  # fmt: skip


def most_together(spans: Sequence[tuple[float, float]]) -> int:
    """The maximum number of overlapping spans; touching spans do not overlap."""
    edges = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    return max(itertools.accumulate(change for _, change in edges))


def longest_gap(spans: Sequence[tuple[float, float]]) -> float:
    """The longest stretch between the spans (sorted by their starts) that none of them covers."""
    ends = itertools.accumulate((end for _, end in spans), max)
    return max([0.0, *(start - end for (start, _), end in zip(spans[1:], ends, strict=False))])


def main() -> None:
    """Read a sweep's ledger and print its utilisation."""
    parser = argparse.ArgumentParser(prog="worker_utilisation", description=__doc__)
    parser.add_argument("name", help="the sweep's name")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="as for `meltpoint sweep`")
    parser.add_argument("--slots", type=int, help="concurrent trials; by default the maximum in the ledger")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        result = utilisation(Ledger(options.storage.absolute() / options.name).records(), options.slots)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(asdict(result), indent=1))
        return
    print(f"{options.name}: {result.trials} trials on {result.slots} slots in {result.wall_seconds:.0f} s")
    print(
        f"  workers had a trial {100 * result.busy_share:.1f} % of the time, "
        f"computed {100 * result.computing_share:.1f} %"
    )
    print(
        f"  no worker had one for at most {result.longest_idle_seconds:.1f} s; "
        f"the last slots ran dry over {result.tail_seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
