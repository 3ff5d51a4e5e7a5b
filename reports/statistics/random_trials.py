"""The random trials of a cell: the sample that its tuning curve is computed from, and what a trial of it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meltpoint.reports.statistics.tuning_curves import MOST_TRIALS, bounds
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core.wording import some

GPU_SECONDS, CPU_SECONDS = "GPU-seconds", "CPU worker-seconds"


@dataclass(frozen=True)
class Cost:
    """The mean cost of a random trial.

    Attributes:
        seconds: of one trial; trials that trained side by side share the time of their order equally.
        unit: `GPU-seconds` (times the trial's share of its GPU) or `CPU worker-seconds`.
    """

    seconds: float
    unit: str


@dataclass(frozen=True)
class RandomTrials:
    """The random trials of a cell's search.

    Attributes:
        scores: their best dev scores, in the order in which they began; of too many the first ones.
        failed: how many of the scores are the metric's lowest value, because the setting failed.
        lost: random trials that ended without a result for other reasons; they have no score.
        stopped: random trials that were stopped early; they have no score either.
        suggested: where all search trials' settings come from → how many do; "unknown" in older versions' records.
        left_out: how many scores there are beyond those.
        cost: of one of them; None if it is not known, or some ran on GPUs and some on CPUs.
    """

    scores: tuple[float, ...]
    failed: int
    lost: int
    stopped: int
    suggested: Mapping[str, int]
    left_out: int = 0
    cost: Cost | None = None

    @property
    def is_recorded(self) -> bool:
        """True unless the version that ran the trials did not record where their settings come from."""
        return set(self.suggested) != {"unknown"}

    @property
    def words(self) -> str:
        """Where the settings come from: `1 first, 15 random`."""
        return ", ".join(f"{count} {source}" for source, count in self.suggested.items())


def random_trials(cell: CellSummary, most: int = MOST_TRIALS) -> RandomTrials:
    """The random trials of a cell's search.

    A setting that failed counts as the metric's lowest value: whoever draws it has nothing from that trial. Without
    it, the curve would be that of a space in which nothing fails.

    Args:
        cell: a cell of a sweep.
        most: of more trials the first so many count. They are independent draws, so the first ones are as well.
    """
    ran = [record for record in cell.search if record.suggested_by == "random"]
    lost = [record for record in ran if record.is_lost]
    stopped = [record for record in ran if record.status == "stopped"]
    counted = [record for record in ran if not record.is_lost and record.status != "stopped"]
    sample = counted[:most]
    lowest = bounds(cell.header.metric)[0]
    scores = [lowest if record.status == "failed" or record.dev is None else record.dev for record in sample]
    return RandomTrials(
        scores=tuple(scores), failed=sum(record.status == "failed" for record in sample), lost=len(lost),
        stopped=len(stopped), suggested=Counter(record.suggested_by or "unknown" for record in cell.search),
        left_out=len(counted) - len(sample), cost=_cost(sample, cell.search),
    )  # fmt: skip


def _cost(sample: Sequence[TrialRecord], search: Iterable[TrialRecord]) -> Cost | None:
    """The mean cost of the trials of a sample; those without known hardware do not count.

    Args:
        sample: the trials.
        search: all of the cell's, among them those that trained side by side with one of the sample.
    """
    ran = [record for record in sample if record.hardware is not None]
    devices = {_is_gpu(record) for record in ran}
    if len(devices) != 1:
        return None
    longest: dict[float, float] = {}  # start of an order → its length; trials of one order start at the same time
    for record in search:
        longest[record.started_at] = max(longest.get(record.started_at, 0.0), record.seconds)
    on_gpu = devices.pop()
    total = sum(_share(record) * _own_seconds(record, longest[record.started_at]) for record in ran)
    return Cost(total / len(ran), GPU_SECONDS if on_gpu else CPU_SECONDS)


def _own_seconds(record: TrialRecord, order_seconds: float) -> float:
    return order_seconds / record.trained_together + record.seconds_before


def _is_gpu(record: TrialRecord) -> bool:
    return record.hardware is not None and record.hardware.device != "cpu"


def _share(record: TrialRecord) -> float:
    """The share of the GPU that a trial had; 1 on a CPU, where its worker is what is counted."""
    return record.hardware.gpu_share or 1.0 if record.hardware is not None and _is_gpu(record) else 1.0


def sample_notes(trials: RandomTrials, metric: str, missing: int) -> list[str]:
    """Notes on the trials that a curve leaves out or counts by convention, one line each.

    Args:
        metric: of the scores.
        missing: search trials that are running or were not run.
    """
    lines = []
    if trials.failed:
        lowest = f"{bounds(metric)[0]:g}"
        lines.append(f"{some(trials.failed, 'random trial')} failed by the setting, counted as {lowest}")
    if trials.lost:
        lines.append(f"{some(trials.lost, 'random trial')} lost and left out")
    if unknown := trials.suggested.get("unknown", 0):
        lines.append(f"{some(unknown, 'trial')} left out whose version did not record where the setting comes from")
    if trials.left_out:
        lines.append(f"the first {len(trials.scores)} random trials only, {trials.left_out} more left out")
    if missing and trials.scores:
        lines.append(f"{some(missing, 'search trial')} not run")
    return lines
