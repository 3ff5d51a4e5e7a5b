"""The time that a running sweep still takes, learnt from the trials that ended in this command, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.results.time_left import CellWork, TimeLeft, finals_left, seconds_of, time_left
from meltpoint.sweeps.search.cell_progress import CellProgress


@dataclass
class RemainingTime:
    """An estimate (`time_left`) that every trial that ends makes better; cells have the weights of their work.

    Attributes:
        slots: gives the number of trials at a time, which follows the cluster.
        measured: cell → (trials that ended in this command, the worker seconds that they took).
    """

    slots: Callable[[], int] = lambda: 1
    measured: dict[CellKey, tuple[int, float]] = field(default_factory=dict)

    def add(self, record: TrialRecord) -> None:
        """Learn from a trial that has ended."""
        taken = seconds_of(record)
        if taken is not None:
            count, seconds = self.measured.get(record.cell, (0, 0.0))
            self.measured[record.cell] = count + 1, seconds + taken

    def seconds_of_trial(self, cell: CellKey) -> float:
        """The worker seconds that a trial of a cell took on average; 0 before any has ended."""
        count, seconds = self.measured.get(cell, (0, 0.0))
        return seconds / max(1, count)

    def estimate(self, cells: Iterable[CellProgress], is_searching: bool = True) -> TimeLeft | None:
        """The time until the last final is trained; None while nothing has ended, and where nothing is left.

        Args:
            cells: the progress of every cell.
            is_searching: False for the time if no search trial began any more.
        """
        work = [
            CellWork(*self.measured.get(one.cell.key, (0, 0.0)), left(one, is_searching), one.work) for one in cells
        ]
        return time_left(work, max(1, self.slots()))

    def in_words(self, cells: Iterable[CellProgress]) -> str:
        """`about 12 min left`; "" where there is no estimate."""
        found = self.estimate(cells)
        return "" if found is None else str(found)


def left(progress: CellProgress, is_searching: bool = True) -> int:
    """The number of a cell's trials that a worker has still to run: of the search, unless it is cut off, and finals."""
    search = 0 if progress.cut or not is_searching else max(0, progress.target - len(progress.search))
    defaults = sum(proposal.id in progress.defaults for proposal in progress.wanted_defaults)
    return (
        search
        + (0 if progress.finals_cut else finals_left(progress.cell.seeds, len(progress.finals)))
        + finals_left(len(progress.wanted_defaults), defaults)
    )
