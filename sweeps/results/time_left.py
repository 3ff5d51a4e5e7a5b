"""The time that a running sweep still takes, estimated from its records: for `status`, in another process than it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.sweeps.ledger.records import TrialRecord, worker_seconds, worker_spans


@dataclass(frozen=True)
class CellWork:
    """A cell's work, done and to be done.

    Attributes:
        ended: its trials that a worker has run, finals included.
        seconds: in which workers were busy with them.
        left: its trials that are still to be run; one that runs is half of one.
    """

    ended: int
    seconds: float
    left: float


@dataclass(frozen=True)
class TimeLeft:
    """An estimate, with what it assumes.

    Attributes:
        seconds: until the last trial is trained.
        trials: the number of ended trials that it is learnt from.
        at_a_time: the number of trials that are taken to run at a time, from now on.
    """

    seconds: float
    trials: int
    at_a_time: float

    def as_json(self) -> dict[str, Any]:
        """The document of `status --json` about it."""
        return {"seconds": round(self.seconds), "by_trials": self.trials, "at_a_time": round(self.at_a_time, 1)}


def time_left(cells: Sequence[CellWork], at_a_time: float) -> TimeLeft | None:
    """The estimate; None before a trial has ended, and where none is left.

    A cell's trials are taken to last as its own did on average; those of a cell without any, as those of all cells.
    """
    ended, seconds = sum(cell.ended for cell in cells), sum(cell.seconds for cell in cells)
    if not ended or not seconds:
        return None
    left = sum(
        cell.left * (cell.seconds / cell.ended if cell.ended else seconds / ended) for cell in cells
    )  # fmt: skip
    return TimeLeft(left / at_a_time, ended, at_a_time) if left else None


def trials_at_a_time(records: Sequence[TrialRecord]) -> float:
    """The mean number of workers that were busy at a time, over the time in which any was."""
    covered, reached = 0.0, float("-inf")
    for start, end in worker_spans(records):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return max(1.0, worker_seconds(records) / covered) if covered else 1.0


def run_by_workers(records: Iterable[TrialRecord]) -> int:
    """The number of records that are not another trial's answer."""
    return sum(record.answered_by is None for record in records)
