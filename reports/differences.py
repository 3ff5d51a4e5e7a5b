"""Keys and titles of the rows of the ❄/🔥 table, and differences between cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from meltpoint.reports.formats import symbol, title
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread, spread

Split = Literal["dev", "test"]


@dataclass(frozen=True)
class ModeVariant:
    """The key of a row of cells: a mode, and a variant if the mode has several."""

    mode: str
    variant: str = ""


@dataclass(frozen=True)
class EnsembleOf:
    """The key of the ensemble of exactly these rows' cells of one task."""

    members: frozenset[ModeVariant]


@dataclass(frozen=True)
class RowPair:
    """Two rows whose difference is shown, `upper` minus `lower`; `metric` is "" for each column's own metric."""

    upper: ModeVariant | EnsembleOf
    lower: ModeVariant
    metric: str = ""


@dataclass(frozen=True)
class Difference:
    """The difference between the scores of two cells.

    Attributes:
        mean: the difference of the means, as a fraction.
        error: its standard error, or None if a cell has fewer than two seeds.
        split: the split of both means.
    """

    mean: float
    error: float | None
    split: Split


def side_title(side: ModeVariant) -> str:
    """A row's title: `🔥 fine_tuning`, or `🔥 fine_tuning · crf`."""
    return title(side.mode) + (f" · {side.variant}" if side.variant else "")


def pair_title(pair: RowPair) -> str:
    """`Δ 🔥 − ❄`, with the variants if there are any (once if both are the same)."""
    upper, lower = pair.upper, pair.lower
    behind = f" ({pair.metric})" if pair.metric else ""
    if isinstance(upper, EnsembleOf):
        return f"Δ ensemble − {f'{symbol(lower.mode)} {lower.variant}'.strip()}{behind}"
    if upper.variant == lower.variant:
        variant = f" · {upper.variant}" if upper.variant else ""
        return f"Δ {symbol(upper.mode)} − {symbol(lower.mode)}{variant}{behind}"
    sides = (f"{symbol(side.mode)} {side.variant}".strip() for side in (upper, lower))
    return f"Δ {' − '.join(sides)}{behind}"


def difference(
    upper: CellSummary | Ensemble, lower: CellSummary, split: Split = "test", metric: str = ""
) -> Difference | None:
    """The score of `upper` minus that of `lower`: on test if both have test scores, else on dev; None without scores.

    Args:
        split: "dev" to compare on dev even if there are test scores.
        metric: a metric other than the task's own; "" for the task's own.
    """
    for chosen in ("test", "dev") if split == "test" else ("dev",):
        ahead, behind = over_seeds(upper, chosen, metric), over_seeds(lower, chosen, metric)
        if ahead and behind:
            return difference_of(ahead, behind, chosen)
    return None


def over_seeds(cell: CellSummary | Ensemble, split: Split, metric: str = "") -> Spread | None:
    """A cell's or an ensemble's scores over seeds on a split, by the task's metric or another one."""
    if isinstance(cell, Ensemble):
        return cell.spread(split, metric)
    if not metric or metric == cell.header.metric:
        return cell.test if split == "test" else cell.dev
    each = [(final.test or {}) if split == "test" else final.dev_metrics for final in cell.finals]
    return spread([scores[metric] for scores in each if metric in scores])


def difference_of(upper: Spread, lower: Spread, split: Split) -> Difference:
    """The difference of two means over seeds."""
    error = None
    if upper.std is not None and lower.std is not None:
        error = math.sqrt(upper.std**2 / upper.count + lower.std**2 / lower.count)
    return Difference(upper.mean - lower.mean, error, split)
