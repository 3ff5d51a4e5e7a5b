"""Score against cost: the tables in `report`, and the Pareto set of cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meltpoint.reports.formats import duration, interval_text, listed, name_of, symbol
from meltpoint.reports.table_values import TUNED, Delta, Split
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.cost import NOTHING, CellCost, spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import counted

KINDS = {
    "gpu_allocated": "tensors on the GPU", "process": "the worker process", "process_lifetime": "the worker process",
}  # fmt: skip

COST_NOTE = (
    "Scores have 95 % intervals over seeds and examples. "
    "Seconds are those in which workers were busy; trials that train side by side share them. GPU-hours: seconds × the "
    "share of a GPU. Peak memory: the highest of any trial. Next task adds: the weights to keep for each further task "
    "on the same encoder. One run: the best setting's epochs, the median over its finals, without set-up; of a "
    "frozen encoder, with its pass over the data only if that run was the first to need it."
)
BYTES_OF_A_WEIGHT = 4
"""Weights are kept in float32."""


@dataclass(frozen=True)
class Point:
    """A cell's score and cost.

    Attributes:
        cell: its key.
        score: as the metric gives it.
        cost: lower is better.
        metric: of the score.
    """

    cell: CellKey
    score: float
    cost: float
    metric: str = ""

    @property
    def gain(self) -> float:
        """The score with the sign that makes higher better."""
        return gain(self.metric, self.score)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats, by cost, then in the order given; equal points are all kept."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.gain)):
        last = kept[-1] if kept else None
        if last is None or point.gain > last.gain or (point.score, point.cost) == (last.score, last.cost):
            kept.append(point)
    return kept


Group = tuple[str, str, str, Split]
"""Encoder, task, metric, and split of the scores: test if all of the cells are scored there, else dev."""


def trade_offs(cells: Sequence[CellSummary]) -> dict[Group, list[Point]]:
    """Each encoder's cells on each task that have finals, with the seconds of one run of its best setting."""
    groups: dict[tuple[str, str], list[CellSummary]] = {}
    for cell in cells:
        if cell.dev is not None and cell.cost.seconds_of_a_final is not None:
            groups.setdefault((cell.header.encoder, cell.header.task), []).append(cell)
    found: dict[Group, list[Point]] = {}
    for (encoder, task), group in groups.items():
        split: Split = "test" if all(cell.test is not None for cell in group) else "dev"
        scored = [(cell, cell.test if split == "test" else cell.dev) for cell in group]
        metric = group[0].header.metric
        found[encoder, task, metric, split] = [
            Point(cell.header.key, score.mean, cell.cost.seconds_of_a_final or 0.0, metric)
            for cell, score in scored if score is not None
        ]  # fmt: skip
    return found


# Tables.


def cost_rows(
    summary: SweepSummary, deltas: Sequence[Delta], intervals: Mapping[CellKey, tuple[float, float]]
) -> list[list[str]]:
    """The table of scores and costs as text: its heads, then one row per cell.

    Args:
        deltas: the comparisons of cells (`table_values.Matrix`).
        intervals: of the scores (`SweepResults`).
    """
    names = ["encoder", "mode", "task", *(["variant"] if summary.has_variants else [])]
    to_tuned = {cell.header.key: _to_tuned(cell, deltas) for cell in summary.cells}
    scores = ["score", *([f"Δ to {symbol(TUNED)}"] if any(to_tuned.values()) else [])]
    heads = ["search", "finals", "GPU-hours", "peak memory", "weights trained", "next task adds", "one run"]
    rows = [
        [*name_of(cell)[: len(names)], *[_score(cell, intervals), to_tuned[cell.header.key] or NOTHING][: len(scores)],
         *cost_texts(cell.cost)]
        for cell in summary.cells
    ]  # fmt: skip
    return [[*names, *scores, *heads], *rows]


def _score(cell: CellSummary, intervals: Mapping[CellKey, tuple[float, float]]) -> str:
    """`85.1 [83.4, 86.8]`, or `85.1 ± 0.3` without an interval; after `dev` without test scores."""
    shown, metric = cell.test or cell.dev, cell.header.metric
    text = NOTHING if shown is None else spread_text(shown, metric)
    if shown is not None and (bounds := intervals.get(cell.header.key)):
        text = f"{score_text(shown.mean, metric)} [{', '.join(score_text(bound, metric) for bound in bounds)}]"
    return text if cell.test or shown is None else f"dev {text}"


def _to_tuned(cell: CellSummary, deltas: Sequence[Delta]) -> str:
    """The cell's score minus that of fine-tuning on the same task, with its interval; "" if they are not compared."""
    encoder, _, *rest = key = cell.header.key
    for known in (delta.comparison for delta in deltas if delta.in_family):
        if known.low is None or known.high is None or {known.upper, known.lower} != {key, (encoder, TUNED, *rest)}:
            continue
        if known.upper == key:
            return interval_text(known.delta, known.low, known.high, known.metric)
        return interval_text(-known.delta, -known.high, -known.low, known.metric)
    return ""


def cost_texts(cost: CellCost) -> list[str]:
    """A cell's cost in the columns of `cost_rows`."""
    peak, trained, run = cost.peak_memory_bytes, cost.trained_parameters, cost.seconds_of_a_final
    share = f" ({100 * (trained or 0) / cost.model_parameters:.3g} %)" if cost.model_parameters else ""
    return [
        seconds_text(cost.search_seconds), seconds_text(cost.final_seconds),
        f"{cost.gpu_hours:.3g}",
        NOTHING if peak is None else f"{peak / 1e9:.2f} GB",
        NOTHING if trained is None else f"{counted(trained)}{share}",
        NOTHING if trained is None else _bytes_text(trained * BYTES_OF_A_WEIGHT),
        NOTHING if run is None else seconds_text(run),
    ]  # fmt: skip


def _bytes_text(count: int) -> str:
    """`3.1 kB`, `29 MB`."""
    return f"{count / 1e6:.3g} MB" if count >= 100_000 else f"{count / 1e3:.2g} kB"


def seconds_text(seconds: float) -> str:
    """A duration, with a decimal if it is short."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"


def by_mode(summary: SweepSummary, of_cost: Callable[[CellCost], float]) -> dict[str, float]:
    """Mode → the sum of a figure over its cells."""
    modes: dict[str, float] = defaultdict(float)
    for cell in summary.cells:
        modes[cell.header.mode] += of_cost(cell.cost)
    return modes


def price_text(summary: SweepSummary) -> str:
    """`12.40 at 2.5 an hour (❄ 1.20, 🔥 11.20)`: the price of training; "" without a price per hour."""
    price = summary.spec.price_per_hour
    if price is None:
        return ""
    modes = by_mode(summary, lambda cost: price * (cost.gpu_hours or cost.seconds / 3600))
    each = ", ".join(f"{symbol(mode)} {cost:.2f}" for mode, cost in modes.items())
    return f"{sum(modes.values()):.2f} at {price:g} an hour ({each})"


def cost_notes(summary: SweepSummary) -> list[str]:
    """The meaning of the table's figures, and the price of the sweep."""
    costs = [cell.cost for cell in summary.cells]
    kinds = sorted({kind for cost in costs for kind in cost.peak_memory_kinds})
    lines = [COST_NOTE, *([f"Price: {price}."] if (price := price_text(summary)) else [])]
    if kinds:
        lines.append(f"Peak memory is of {listed(KINDS[kind] for kind in kinds)}.")
    if "process_lifetime" in kinds:
        lines.append("Some peaks are since the worker began, including earlier trials: its system counts no other.")
    return lines
