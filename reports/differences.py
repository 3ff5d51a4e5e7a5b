"""What rows of the ❄/🔥 table are of, what they are called, and how far one is ahead of another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from meltpoint.reports.formats import symbol, title
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread, spread

Split = Literal["dev", "test"]


@dataclass(frozen=True)
class Side:
    """What a row of cells has in common: a mode, and the variant where there are several of it."""

    mode: str
    variant: str = ""


@dataclass(frozen=True)
class Pair:
    """Two rows whose difference is shown, `upper` minus `lower`; `metric` where it is not of each task's own."""

    upper: Side
    lower: Side
    metric: str = ""


@dataclass(frozen=True)
class Difference:
    """How far one cell is ahead of another.

    Attributes:
        mean: the difference of the means, as a fraction.
        error: its standard error, or None where a side has fewer than two seeds.
        split: what both means are of.
    """

    mean: float
    error: float | None
    split: Split


def side_title(side: Side) -> str:
    """A row's title: `🔥 fine_tuning`, or `🔥 fine_tuning · crf`."""
    return title(side.mode) + (f" · {side.variant}" if side.variant else "")


def pair_title(pair: Pair) -> str:
    """`Δ 🔥 − ❄`, with the variants where there are any: once where both sides have the same."""
    upper, lower = pair.upper, pair.lower
    behind = f" ({pair.metric})" if pair.metric else ""
    if upper.variant == lower.variant:
        variant = f" · {upper.variant}" if upper.variant else ""
        return f"Δ {symbol(upper.mode)} − {symbol(lower.mode)}{variant}{behind}"
    sides = (f"{symbol(side.mode)} {side.variant}".strip() for side in (upper, lower))
    return f"Δ {' − '.join(sides)}{behind}"


def difference(upper: CellSummary, lower: CellSummary, split: Split = "test", metric: str = "") -> Difference | None:
    """How far `upper` is ahead of `lower`: on test where both are scored there, else on dev; None where neither.

    Args:
        split: "dev" for dev in any case.
        metric: another metric than the task's own.
    """
    for chosen in ("test", "dev") if split == "test" else ("dev",):
        ahead, behind = _over_seeds(upper, chosen, metric), _over_seeds(lower, chosen, metric)
        if ahead and behind:
            return _difference(ahead, behind, chosen)
    return None


def _over_seeds(cell: CellSummary, split: Split, metric: str) -> Spread | None:
    """A cell's figure on a split, by its own metric or another one."""
    if not metric or metric == cell.header.metric:
        return cell.test if split == "test" else cell.dev
    each = [(final.test or {}) if split == "test" else final.dev_metrics for final in cell.finals]
    return spread([scores[metric] for scores in each if metric in scores])


def _difference(upper: Spread, lower: Spread, split: Split) -> Difference:
    error = None
    if upper.std is not None and lower.std is not None:
        error = math.sqrt(upper.std**2 / upper.count + lower.std**2 / lower.count)
    return Difference(upper.mean - lower.mean, error, split)
