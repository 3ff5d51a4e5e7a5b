"""The time that a running sweep still takes, learnt from the trials that ended on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.search.cell_progress import CellProgress


@dataclass
class RemainingTime:
    """An estimate that every trial that ends makes better.

    A cell's trials are taken to last as its own did so far; those of a cell of which none has ended, as the others' did
    in proportion to their work (`CellProgress.work`). What differs between settings (epochs, early stopping) is not
    known before they ran.

    Attributes:
        slots: gives the number of trials at a time, which follows the cluster.
        measured: cell → (trials that ended in this command, the worker seconds that they took).
    """

    slots: Callable[[], int] = lambda: 1
    measured: dict[CellKey, tuple[int, float]] = field(default_factory=dict)

    def add(self, record: TrialRecord) -> None:
        """Learn from a trial that a worker has run to its end; one that failed or was stopped took less than others."""
        if record.status != "finished" or record.answered_by is not None:
            return
        count, seconds = self.measured.get(record.cell, (0, 0.0))
        self.measured[record.cell] = count + 1, seconds + record.seconds / record.trained_together

    def seconds(self, cells: Iterable[CellProgress]) -> float | None:
        """Seconds until the last final is trained; None while nothing has ended.

        Args:
            cells: the progress of every cell.
        """
        cells = list(cells)
        known = [progress for progress in cells if progress.cell.key in self.measured]
        work = sum(self.measured[one.cell.key][0] * one.work for one in known)
        if not known or work <= 0:
            return None
        rate = sum(self.measured[one.cell.key][1] for one in known) / work  # seconds for a unit of work
        return sum(left(one) * self._of_a_trial(one, rate) for one in cells) / max(1, self.slots())

    def _of_a_trial(self, progress: CellProgress, rate: float) -> float:
        count, seconds = self.measured.get(progress.cell.key, (0, 0.0))
        return seconds / count if count else rate * progress.work

    def in_words(self, cells: Iterable[CellProgress]) -> str:
        """`about 12 min left, by 5 trials`; "" while nothing has ended, and where nothing is left."""
        seconds = self.seconds(cells)
        trials = sum(count for count, _ in self.measured.values())
        return f"about {_rounded(seconds)} left, by {trials} so far" if seconds else ""


def left(progress: CellProgress) -> int:
    """The number of a cell's trials that a worker has still to run: of the search, unless it is cut off, and finals.

    Of the finals of a setting, the one with the search's seed is answered by the search trial.
    """
    search = 0 if progress.cut else max(0, progress.target - len(progress.search))
    finals = progress.cell.seeds - max(1, len(progress.finals))
    ended = sum(proposal.id in progress.defaults for proposal in progress.wanted_defaults)
    defaults = len(progress.wanted_defaults) - max(1, ended)
    return search + max(0, finals) + max(0, defaults)


def _rounded(seconds: float) -> str:
    """One unit, without a precision that an estimate has not."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
