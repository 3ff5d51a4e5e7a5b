"""The cost of a sweep: seconds, operations, and the time left."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from meltpoint.sweeps.ledger.records import MemoryKind, TrialRecord
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.scoring import score_text, scores_text
from meltpoint.tasks.core.wording import some

NOTHING = "–"
"""The placeholder for a missing score."""


def spread_text(spread: Spread | None, metric: str) -> str:
    """`85.1 ± 0.3`, in the metric's unit; no deviation for a single seed; a dash without scores."""
    return NOTHING if spread is None else scores_text(spread.mean, spread.std, metric)


def best_dev_text(best: TrialRecord | None) -> str:
    """The dev score of a cell's best trial; a dash if it has none yet."""
    return NOTHING if best is None or best.dev is None else score_text(best.dev, best.metric)


@dataclass(frozen=True)
class CellWork:
    """A cell's work, done and left.

    Attributes:
        ended: the number of its trials that workers have finished, finals included.
        seconds: the worker seconds that these took.
        left: the number of its trials that are still to run.
        weight: the relative duration of one of its trials.
    """

    ended: int
    seconds: float
    left: float
    weight: float = 1.0


@dataclass(frozen=True)
class TimeLeft:
    """An estimate, with its assumptions.

    Attributes:
        seconds: the time until the last final is trained.
        trials: the number of ended trials on which it is based.
        at_a_time: the assumed number of concurrent trials from now on.
    """

    seconds: float
    trials: int
    at_a_time: float

    def __str__(self) -> str:
        """`about 12 min left`: one unit, which is as precise as an estimate can be."""
        if self.seconds < 90:
            return f"about {max(1, round(self.seconds))} s left"
        if self.seconds < 90 * 60:
            return f"about {round(self.seconds / 60)} min left"
        return f"about {self.seconds / 3600:.1f} h left"

    def as_json(self) -> dict[str, Any]:
        """Its entry in `status --json`."""
        return {"seconds": round(self.seconds), "by_trials": self.trials, "at_a_time": round(self.at_a_time, 1)}


def time_left(cells: Sequence[CellWork], at_a_time: float) -> TimeLeft | None:
    """The estimate; None before the first trial has ended, and if no trial is left.

    A cell's remaining trials are assumed to take its average so far. A cell without ended trials takes the average of
    the others, in proportion to their weights. Differences between settings (epochs, early stopping) are unknown before
    they run.
    """
    known = sum(cell.ended * cell.weight for cell in cells)
    if known <= 0:
        return None
    rate = sum(cell.seconds for cell in cells if cell.ended) / known  # seconds for a unit of weight
    trials = [cell.seconds / cell.ended if cell.ended else rate * cell.weight for cell in cells]
    left = sum(cell.left * each for cell, each in zip(cells, trials, strict=True))
    # One trial runs on one worker, however many there are.
    longest = max((each for cell, each in zip(cells, trials, strict=True) if cell.left), default=0.0)
    seconds = max(left / at_a_time, longest)
    return TimeLeft(seconds, sum(cell.ended for cell in cells), at_a_time) if left else None


def is_typical(record: TrialRecord) -> bool:
    """True if a trial's time tells that of later ones: it did not end early, or share another trial's run."""
    return record.status == "finished" and record.answered_by is None


def finals_left(planned: int, ended: int) -> int:
    """The number of a setting's finals left to run. The final with the search's seed reuses its search trial."""
    return max(0, planned - max(1, ended))


def trials_at_a_time(records: Sequence[TrialRecord]) -> float:
    """The mean number of busy workers, over the time in which at least one was busy."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(_spans(records)[0].items()):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return max(1.0, worker_seconds(records) / covered) if covered else 1.0


@dataclass(frozen=True)
class CellCost:
    """The cost of a cell's trials. Trials that share a run are counted once.

    Attributes:
        trials: the number of trials that ran.
        search_seconds: the worker seconds of its search trials, including earlier attempts that some resumed from.
        final_seconds: the worker seconds of its finals, including finals of the published setting.
        gpu_hours: the sum of these seconds × each trial's share of a GPU, in hours; 0 on CPUs. A trial that ended
            before its hardware was known is not included.
        peak_memory_bytes: the largest peak of any trial; None if unknown for all.
        peak_memory_kinds: the kinds of memory counted.
        trained_parameters: the number of parameters that the best setting trains; None if its record does not have it.
        model_parameters: the number of all parameters of its model; None if its record does not have it.
        seconds_of_a_final: the time to train the best setting once and score dev after each epoch: the median over its
            finals, without set-up, or its search trial before any final. Trials that train side by side split each
            epoch's time evenly. A frozen encoder's pass over the data is included only if that run was the first to
            need it.
    """

    trials: int = 0
    search_seconds: float = 0.0
    final_seconds: float = 0.0
    gpu_hours: float = 0.0
    peak_memory_bytes: int | None = None
    peak_memory_kinds: tuple[MemoryKind, ...] = ()
    trained_parameters: int | None = None
    model_parameters: int | None = None
    seconds_of_a_final: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of search and finals together."""
        return self.search_seconds + self.final_seconds


def cell_cost(
    records: Iterable[TrialRecord], best: TrialRecord | None, finals: Sequence[TrialRecord]
) -> CellCost:  # fmt: skip
    """The cost of a cell.

    Args:
        records: all ended trials of the cell.
        best: its best search trial.
        finals: the finals of that setting.
    """
    ran = [record for record in records if record.answered_by is None]
    search = [record for record in ran if record.role == "search"]
    others = [record for record in ran if record.role != "search"]
    peaks = [record.peak_memory_bytes for record in ran if record.peak_memory_bytes is not None]
    run_seconds = [
        sum(epoch.train_seconds + epoch.dev_seconds for epoch in record.epochs)
        for record in finals or ([best] if best else [])
    ]
    return CellCost(
        trials=len(ran), search_seconds=worker_seconds(search), final_seconds=worker_seconds(others),
        gpu_hours=(gpu_seconds(search) + gpu_seconds(others)) / 3600,
        peak_memory_bytes=max(peaks, default=None),
        peak_memory_kinds=tuple(sorted({record.peak_memory_kind for record in ran if record.peak_memory_kind})),
        trained_parameters=best.trained_parameters if best else None,
        model_parameters=best.model_parameters if best else None,
        seconds_of_a_final=statistics.median(run_seconds) if run_seconds else None,
    )  # fmt: skip


def gpu_seconds(records: Iterable[TrialRecord]) -> float:
    """Seconds × GPU share, for records that all ran. Trials that one worker started together share its time."""
    orders: dict[tuple[float, float], list[TrialRecord]] = {}
    for record in records:
        share = record.gpu_share
        if share:
            orders.setdefault((share, record.started_at), []).append(record)
    return sum(share * worker_seconds(together) for (share, _), together in orders.items())


def planned_work(cells: int, search: int, finals: int, defaults: int = 0, may_end_early: bool = False) -> str:
    """`1 cell: 8 search trials + 4 finals, 1 answered by its search trial`.

    The final with the search's seed reuses the search trial of that setting and is not trained again. With finals of
    the published setting: `… + 4 finals + up to 4 default finals, 1 of each answered by its search trial`.

    Args:
        cells: the number of cells.
        search: the search trials of all cells.
        finals: the finals of all cells, including the answered ones.
        defaults: likewise for the published setting; a cell does not run them if that setting turns out to be the best.
        may_end_early: whether searches may end early.
    """
    its = "its search trial" if cells == 1 else "their search trials"
    parts = [some(search, "search trial"), some(finals, "final")]
    parts += [f"up to {some(defaults, 'default final')}"] if defaults else []
    answered = f"{cells} of each" if defaults else f"{cells}"
    most = "at most " if may_end_early else ""
    return f"{some(cells, 'cell')}: {most}{' + '.join(parts)}, {answered} answered by {its}"


_times = attrgetter("answered_by", "started_at", "seconds", "seconds_before")


def worker_seconds(records: Iterable[TrialRecord]) -> float:
    """Seconds that workers spent on trials, including earlier attempts that trials resumed from."""
    ends, before = _spans(records)
    return before + sum(end - start for start, end in ends.items())


def _spans(records: Iterable[TrialRecord]) -> tuple[dict[float, float], float]:
    """The end of each interval in which a worker had an order, by its start, and the seconds of earlier attempts.

    In one pass, because a hundred thousand records do not fit in a CPU cache.
    """
    ends: dict[float, float] = {}
    before = 0.0
    for answered_by, started_at, seconds, seconds_before in map(_times, records):
        if answered_by is None:
            before += seconds_before
            ends[started_at] = max(ends.get(started_at, 0.0), started_at + seconds)
    return ends, before
