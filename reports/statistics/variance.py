"""The variance of a score by source of randomness (Bouthillier et al. 2021), with intervals of its deviations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """The deviation of a score over repeated runs.

    Attributes:
        count: number of runs.
        mean: their mean.
        std: sample standard deviation, with `count − 1`; None for one run.
        low, high: the ends of its 95 % interval; None like `std`.
    """

    count: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


def deviation(scores: Sequence[float], level: float = 0.95) -> Deviation:
    """The standard deviation of scores, with its chi-square interval, which supposes that they are normal.

    The interval is wide for few runs: of five it reaches from 0.60 to 2.87 times the estimate.

    Args:
        scores: of one run or more.
    """
    count, mean = len(scores), statistics.fmean(scores)
    if count < 2:
        return Deviation(count, mean, None, None, None)
    from scipy.stats import chi2  # takes a second to import

    std, freedom = statistics.stdev(scores), count - 1
    low, high = (
        std * math.sqrt(freedom / float(chi2.ppf(place, freedom))) for place in ((1 + level) / 2, (1 - level) / 2)
    )
    return Deviation(count, mean, std, low, high)


@dataclass(frozen=True)
class Share:
    """The variance of one source as a share of another's, with its 95 % interval."""

    value: float
    low: float
    high: float


def share(part: Deviation, whole: Deviation, level: float = 0.95) -> Share | None:
    """The variance of one source as a share of the variance with all sources; None where either is unknown or 0.

    The interval is that of F, which supposes normal scores of independent runs. Of five runs each it reaches from a
    tenth to ten times the estimate.
    """
    if part.std is None or not whole.std:
        return None
    from scipy.stats import f  # takes a second to import

    value, freedoms = (part.std / whole.std) ** 2, (part.count - 1, whole.count - 1)
    low, high = (value / float(f.ppf(place, *freedoms)) for place in ((1 + level) / 2, (1 - level) / 2))
    return Share(value, low, high)
