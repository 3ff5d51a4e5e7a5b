"""The time that a running sweep still takes, learnt from the trials that ended: for its driver, and for `status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.sweeps.ledger.records import TrialRecord, worker_seconds, worker_spans


@dataclass(frozen=True)
class CellWork:
    """A cell's work, done and to be done.

    Attributes:
        ended: its trials that workers have run to their end, finals included.
        seconds: of a worker, that these took.
        left: its trials that are still to be run.
        weight: relative duration of one of its trials.
    """

    ended: int
    seconds: float
    left: float
    weight: float = 1.0


@dataclass(frozen=True)
class TimeLeft:
    """An estimate, with what it assumes.

    Attributes:
        seconds: until the last final is trained.
        trials: the number of ended trials that it is learnt from.
        at_a_time: the number of trials that are taken to run at a time, from now on.
    """

    seconds: float
    trials: int
    at_a_time: float

    def __str__(self) -> str:
        """`about 12 min left`: one unit, without a precision that an estimate has not."""
        if self.seconds < 90:
            return f"about {max(1, round(self.seconds))} s left"
        if self.seconds < 90 * 60:
            return f"about {round(self.seconds / 60)} min left"
        return f"about {self.seconds / 3600:.1f} h left"

    def as_json(self) -> dict[str, Any]:
        """The document of `status --json` about it."""
        return {"seconds": round(self.seconds), "by_trials": self.trials, "at_a_time": round(self.at_a_time, 1)}


def time_left(cells: Sequence[CellWork], at_a_time: float) -> TimeLeft | None:
    """The estimate; None before a trial has ended, and where none is left.

    A cell's trials are taken to last as its own did on average; those of a cell of which none has ended, as the others'
    did in proportion to their weights. What differs between settings (epochs, early stopping) is not known before they
    ran.
    """
    known = sum(cell.ended * cell.weight for cell in cells)
    if known <= 0:
        return None
    rate = sum(cell.seconds for cell in cells if cell.ended) / known  # seconds for a unit of weight
    left = sum(cell.left * (cell.seconds / cell.ended if cell.ended else rate * cell.weight) for cell in cells)
    return TimeLeft(left / at_a_time, sum(cell.ended for cell in cells), at_a_time) if left else None


def seconds_of(record: TrialRecord) -> float | None:
    """The seconds of a worker that a trial took; None of one that another's result answered, or that ended early.

    One that failed or was stopped took less than those to come will. Trials of one order share its time.
    """
    if record.status != "finished" or record.answered_by is not None:
        return None
    return record.seconds / record.trained_together


def finals_left(planned: int, ended: int) -> int:
    """The finals of a setting that are still to be run: the one with the search's seed is answered by its trial."""
    return max(0, planned - max(1, ended))


def trials_at_a_time(records: Sequence[TrialRecord]) -> float:
    """The mean number of workers that were busy at a time, over the time in which any was."""
    covered, reached = 0.0, float("-inf")
    for start, end in worker_spans(records):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return max(1.0, worker_seconds(records) / covered) if covered else 1.0
