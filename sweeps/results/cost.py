"""The cost of a cell: the time, energy and memory of its trials, and the size of what was trained."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meltpoint.sweeps.ledger.records import TrialRecord, worker_seconds
from meltpoint.sweeps.ledger.resource_use import EnergySource, MemoryKind

GPU_HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class CellCost:
    """What a cell's trials took; those that share another one's run are counted once.

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
        peak_memory_kinds: what was counted.
        trained_parameters: how many numbers the best setting trains; None where its record does not say.
        seconds_of_a_final: to train the best setting once and score dev after each epoch: the median over its finals,
            without set-up; its search trial's where there is no final yet. Of trials that train side by side an even
            part of each epoch's time; where hidden states were cached, without computing them.
        energy_of_a_final: the median of its finals' energy; None where one of them lacks it.
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
    energy_of_a_final: float | None = None

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
    each = [energy_of(final) for final in finals]
    told = [joules for joules in each if joules is not None]
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
        energy_of_a_final=statistics.median(told) if told and len(told) == len(each) else None,
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
