"""Tuning curves: the best score to expect from a number of random trials.

The median curve is F̂⁻¹(0.5^(1/k)), where F̂ is the distribution of the scores of independent random trials; its bands
are exact and hold for the whole curve at once (Lourie, Cho & He 2023, arXiv 2311.09480). Both are computed by opda.

Bands with equal tails (Learned-Miller & DeStefano 2008) are nearly as narrow as opda's default, the highest-density
bands, and take a tenth of the time.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from opda.nonparametric import EmpiricalDistribution

from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import is_lower_better, limits
from meltpoint.tasks.core.wording import some

GPU_SECONDS, CPU_SECONDS = "GPU-seconds", "CPU worker-seconds"

MOST_TRIALS = 256
"""At most this many trials count, the first ones: opda's simulation takes minutes and gigabytes for a thousand."""


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
        scores: their best dev scores, in the order in which they began; only the first ones if there are too many.
        failed: number of scores set to the metric's lowest value because the setting failed.
        lost: random trials that ended without a result for other reasons; they have no score.
        stopped: random trials that were stopped early; they have no score either.
        suggested: source of a setting → number of search trials; "unknown" in older versions' records.
        left_out: number of scores beyond those.
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
        """True unless the version that ran the trials did not record the source of their settings."""
        return set(self.suggested) != {"unknown"}

    @property
    def words(self) -> str:
        """The origins of the settings: `1 first, 15 random`."""
        return ", ".join(f"{count} {source}" for source, count in self.suggested.items())


def random_trials(cell: CellSummary, most: int = MOST_TRIALS) -> RandomTrials:
    """The random trials of a cell's search.

    A setting that failed counts as the metric's lowest value, because a search that draws it gains nothing from that
    trial. Without it, the curve would describe a space in which nothing fails.

    Args:
        cell: a cell of a sweep.
        most: only the first so many trials count. Trials are independent draws, so the first ones are too.
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
    """The mean cost of the trials of a sample; trials without known hardware do not count.

    Args:
        sample: the trials.
        search: all trials of the cell, including those trained side by side with a trial of the sample.
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
    """The share of the GPU that a trial had; 1 on a CPU, where workers are counted."""
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
        lines.append(f"{some(trials.failed, 'random trial')} failed because of the setting, counted as {lowest}")
    if trials.lost:
        lines.append(f"{some(trials.lost, 'random trial')} lost and left out")
    if unknown := trials.suggested.get("unknown", 0):
        lines.append(f"{some(unknown, 'trial')} left out: their version did not record the source of the setting")
    if trials.left_out:
        lines.append(f"the first {len(trials.scores)} random trials only, {trials.left_out} more left out")
    if missing and trials.scores:
        lines.append(f"{some(missing, 'search trial')} not run")
    return lines


LEVELS = (0.95, 0.80)
"""Confidence levels of the bands; the paper's figures and opda's rule for the number of trials use 80 %."""


def bounds(metric: str) -> tuple[float, float]:
    """The worst and the best value of a metric; an error has no largest value."""
    low, high = limits(metric)
    return (high, low) if is_lower_better(metric) else (low, high)


@functools.cache
def simulation_source(count: int) -> np.random.Generator:
    """The source of opda's simulation for a number of trials: equal trials give equal bands in any order of calls.

    opda keeps the simulation's result for each generator, so there is one generator for each number of trials.
    """
    return np.random.default_rng(count)


def distribution_bands(
    scores: Sequence[float], limits: tuple[float, float], level: float
) -> tuple[EmpiricalDistribution, EmpiricalDistribution]:
    """The lower and the upper band of the distribution of scores.

    Equal scores make opda warn, since the coverage is exact for continuous distributions only. With ties it is at
    least the level: scores are a monotone function of uniform variables, whose band is exact.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Duplicates detected in ys", category=RuntimeWarning)
        lower, _, upper = EmpiricalDistribution.confidence_bands(
            list(scores), level, a=limits[0], b=limits[1],
            generator=simulation_source(len(scores)), method="ld_equal_tailed", n_jobs=1,
        )  # fmt: skip
    return lower, upper


@functools.cache
def largest_k(count: int, level: float) -> float:
    """The largest number k of trials, not rounded, up to which the band from `count` random trials is informative.

    Beyond it, the lower band of the distribution does not reach the quantile 0.5^(1/k) at the best score, so the upper
    band of the curve is the metric's highest value, whatever the scores are.
    """
    if count < 1:
        return 0.0
    scores = np.arange(1, count + 1) / (count + 1)
    lower, _ = distribution_bands(scores.tolist(), (0.0, 1.0), level)
    return math.log(0.5) / math.log(float(lower.cdf(scores[-1])))


def valid_trials(count: int, level: float) -> int:
    """The largest whole k up to which the curve of `count` random trials is valid; 0 if there is no curve."""
    return math.floor(largest_k(count, level))


@dataclass(frozen=True)
class CurvePoint:
    """A point of a tuning curve.

    Attributes:
        trials: the number of random trials, not necessarily whole.
        median: the median of the best score of that many trials.
        bands: for each of `LEVELS` the lower and the upper end of the band; None beyond its valid range.
    """

    trials: float
    median: float
    bands: tuple[tuple[float, float] | None, ...]


@dataclass(frozen=True)
class TuningCurve:
    """The median tuning curve of a random search with its bands.

    Attributes:
        scores: the best dev score of each trial, in any order.
        limits: the lowest and the highest value of the metric.
    """

    scores: tuple[float, ...]
    limits: tuple[float, float]

    @property
    def valid(self) -> tuple[int, ...]:
        """For each of `LEVELS` the largest whole number of trials up to which the band is informative."""
        return tuple(valid_trials(len(self.scores), level) for level in LEVELS)

    @property
    def end(self) -> float:
        """The number of trials, not rounded, at which the last band ends."""
        return max(largest_k(len(self.scores), level) for level in LEVELS)

    def at(self, trials: Sequence[float]) -> list[CurvePoint]:
        """The curve's points at some numbers of trials, each at least 1."""
        median = median_curve(self.scores, trials, self.limits)
        columns = [self._band(level, trials) for level in LEVELS]
        bands = zip(*columns, strict=True)
        return [CurvePoint(k, y, band) for k, y, band in zip(trials, median, bands, strict=True)]

    def _band(self, level: float, trials: Sequence[float]) -> list[tuple[float, float] | None]:
        last = largest_k(len(self.scores), level)
        lower, upper = distribution_bands(self._clipped, self.limits, level)
        lows, highs = (band.quantile_tuning_curve(list(trials)) for band in (upper, lower))  # F below: the curve above
        pairs = zip(trials, lows, highs, strict=True)
        return [(float(low), float(high)) if k <= last else None for k, low, high in pairs]

    @property
    def _clipped(self) -> list[float]:
        return _within(self.scores, self.limits)


def _within(scores: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """The scores between the metric's limits, which a correlation may leave by a rounding error."""
    return [min(max(score, limits[0]), limits[1]) for score in scores]


def median_curve(scores: Sequence[float], trials: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """The median of the best of k scores, F̂⁻¹(0.5^(1/k)), for each k.

    Args:
        scores: of independent random trials.
        trials: the numbers k, each at least 1, not necessarily whole.
        limits: the lowest and the highest value that a score can have.
    """
    distribution = EmpiricalDistribution(_within(scores, limits), a=limits[0], b=limits[1])
    return [float(score) for score in distribution.quantile_tuning_curve(list(trials))]


def shown_trials(last: int) -> list[int]:
    """The numbers of trials of a table: 1, 2, 4, 8, … and the last one."""
    doubling = [2**power for power in range(last.bit_length())]
    return sorted({*doubling, last} if last else set())


NOT_RECORDED = "no curve: that version did not record the source of the settings"


@dataclass(frozen=True)
class CellCurve:
    """A cell's tuning curve, or the reason why there is none.

    Attributes:
        header: the cell.
        trials: its random trials.
        curve: of their scores; None if they allow none.
        reason: the reason for a missing curve; "" if there is one.
        notes: omissions and assumptions of the curve, one line each.
    """

    header: CellHeader
    trials: RandomTrials
    curve: TuningCurve | None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def valid_words(self) -> str:
        """The valid range: `from 16 random trials: valid up to 1 trial (95 % band), 2 trials (80 % band)`."""
        if self.curve is None:
            return self.reason
        ranges = zip(LEVELS, self.curve.valid, strict=True)
        parts = [f"{some(last, 'trial') if last else 'none'} ({level:.0%} band)" for level, last in ranges]
        text = f"from {some(len(self.trials.scores), 'random trial')}: valid up to {', '.join(parts)}"
        return text.replace("%", " %")

    def seconds(self, trials: float) -> float | None:
        """The expected cost of a number of trials, in the unit of `trials.cost`: the number times the mean of one."""
        cost = self.trials.cost
        return None if cost is None else trials * cost.seconds


def cell_curve(cell: CellSummary, most: int = MOST_TRIALS) -> CellCurve:
    """The tuning curve of a cell, from its random trials alone.

    Args:
        cell: a cell of a sweep.
        most: only the first so many random trials count.
    """
    trials = random_trials(cell, most)
    missing = cell.counts.get("running", 0) + cell.counts.get("missing", 0)
    notes = tuple(sample_notes(trials, cell.header.metric, missing))
    if reason := _reason(cell, trials):
        return CellCurve(cell.header, trials, None, reason, notes)
    curve = TuningCurve(trials.scores, bounds(cell.header.metric))
    if not any(curve.valid):
        count = some(len(trials.scores), "random trial")
        reason = f"no curve: {count}; `--searcher random` or more trials give one"
        return CellCurve(cell.header, trials, None, reason, notes)
    return CellCurve(cell.header, trials, curve, "", notes)


def _reason(cell: CellSummary, trials: RandomTrials) -> str:
    """The reason why the trials of a cell allow no curve, however many they are; "" if they do."""
    if cell.search and not trials.is_recorded:
        return NOT_RECORDED
    if is_lower_better(cell.header.metric):
        return f"no curve: {cell.header.metric} is an error without a largest value, which the bands need"
    if trials.stopped:
        count = some(trials.stopped, "random trial")
        return f"no curve: {count} stopped early, with unknown best scores; search without early stopping"
    return ""
