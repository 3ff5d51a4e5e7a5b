"""Cost of a sweep: seconds, energy, operations, the time left."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.sweeps.ledger.attempt import EnergySource, MemoryKind
from meltpoint.sweeps.ledger.records import TrialRecord, worker_seconds, worker_spans
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.scoring import score_text, scores_text
from meltpoint.tasks.core.wording import some

NOTHING = "–"
"""Stands where there is no score."""


def spread_text(spread: Spread | None, metric: str) -> str:
    """`85.1 ± 0.3`, in the metric's unit; without the deviation of a single seed; a dash without scores."""
    return NOTHING if spread is None else scores_text(spread.mean, spread.std, metric)


def best_dev_text(best: TrialRecord | None) -> str:
    """The dev score of a cell's best trial; a dash where there is none yet."""
    return NOTHING if best is None or best.dev is None else score_text(best.dev, best.metric)


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
    """An estimate, with its assumptions.

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
    did in proportion to their weights. Differences between settings (epochs, early stopping) are not known before they
    run.
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


GPU_HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class CellCost:
    """The cost of a cell's trials; those that share a run are counted once.

    Attributes:
        trials: how many ran.
        search_seconds: in which workers were busy with its search trials, earlier attempts that some went on from
            included.
        final_seconds: the same for its finals, those of the published setting among them.
        gpu_hours: these seconds × the share of a GPU that each had; 0 on CPUs. A trial that ended before its hardware
            was known is not in it.
        energy_joules: of all its trials; None where one of them does not tell (`energy_lacking`), or none ran.
        energy_known_joules: of those that do.
        energy_lacking: how many trials tell no energy, or only that of their last attempt.
        energy_sources: the counters.
        peak_memory_bytes: the most that any trial had; None where none tells.
        peak_memory_kinds: the kinds of memory counted.
        trained_parameters: how many numbers the best setting trains; None where its record does not say.
        seconds_of_a_final: to train the best setting once and score dev after each epoch: the median over its finals,
            without set-up; its search trial's where there is no final yet. Of trials that train side by side an even
            part of each epoch's time; where hidden states were cached, without computing them.
    """

    trials: int = 0
    search_seconds: float = 0.0
    final_seconds: float = 0.0
    gpu_hours: float = 0.0
    energy_joules: float | None = None
    energy_known_joules: float = 0.0
    energy_lacking: int = 0
    energy_sources: tuple[EnergySource, ...] = ()
    peak_memory_bytes: int | None = None
    peak_memory_kinds: tuple[MemoryKind, ...] = ()
    trained_parameters: int | None = None
    seconds_of_a_final: float | None = None

    @property
    def seconds(self) -> float:
        """Of the search and the finals."""
        return self.search_seconds + self.final_seconds


def cell_cost(
    records: Iterable[TrialRecord], best: TrialRecord | None, finals: Sequence[TrialRecord]
) -> CellCost:  # fmt: skip
    """The cost of a cell.

    Args:
        records: all of the cell that ended.
        best: its best search trial.
        finals: of that setting.
    """
    ran = [record for record in records if record.answered_by is None]
    search = [record for record in ran if record.role == "search"]
    others = [record for record in ran if record.role != "search"]
    known = [joules for record in ran if (joules := energy_of(record)) is not None]
    peaks = [record.peak_memory_bytes for record in ran if record.peak_memory_bytes is not None]
    run_seconds = [seconds_of_a_run(record) for record in finals or ([best] if best else [])]
    return CellCost(
        trials=len(ran), search_seconds=worker_seconds(search), final_seconds=worker_seconds(others),
        gpu_hours=(gpu_seconds(search) + gpu_seconds(others)) / GPU_HOUR_SECONDS,
        energy_joules=sum(known) if ran and len(known) == len(ran) else None, energy_known_joules=sum(known),
        energy_lacking=len(ran) - len(known),
        energy_sources=tuple(sorted({record.energy_source for record in ran if record.energy_source is not None})),
        peak_memory_bytes=max(peaks, default=None),
        peak_memory_kinds=tuple(sorted({record.peak_memory_kind for record in ran if record.peak_memory_kind})),
        trained_parameters=best.trained_parameters if best else None,
        seconds_of_a_final=statistics.median(run_seconds) if run_seconds else None,
    )  # fmt: skip


def energy_of(record: TrialRecord) -> float | None:
    """A trial's energy; None where an earlier attempt, whose energy is lost, trained some of its epochs."""
    return record.energy_joules if record.seconds_before == 0.0 else None


def seconds_of_a_run(record: TrialRecord) -> float:
    """The time of a trial's epochs, training and scoring on dev."""
    return sum(epoch.train_seconds + epoch.dev_seconds for epoch in record.epochs)


def gpu_seconds(records: Iterable[TrialRecord]) -> float:
    """Seconds × share of a GPU of records that all ran; those that one worker took up at once share its time."""
    orders: dict[tuple[float, float], list[TrialRecord]] = {}
    for record in records:
        share = record.gpu_share
        if share:
            orders.setdefault((share, record.started_at), []).append(record)
    return sum(share * worker_seconds(together) for (share, _), together in orders.items())


def planned_work(cells: int, search: int, finals: int, defaults: int = 0) -> str:
    """`1 cell: 8 search trials + 4 finals, 1 answered by its search trial`.

    The final with the search's own seed is the search trial of that setting: it is not trained again. With finals of
    the published setting: `… + 4 finals + up to 4 default finals, 1 of each answered by its search trial`.

    Args:
        cells: how many there are.
        search: search trials of all cells.
        finals: finals of all cells, the answered ones counted.
        defaults: finals of the published setting likewise; not run in a cell where that turns out to be the best one.
    """
    its = "its search trial" if cells == 1 else "their search trials"
    parts = [some(search, "search trial"), some(finals, "final")]
    parts += [f"up to {some(defaults, 'default final')}"] if defaults else []
    answered = f"{cells} of each" if defaults else f"{cells}"
    return f"{some(cells, 'cell')}: {' + '.join(parts)}, {answered} answered by {its}"
