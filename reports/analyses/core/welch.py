"""Welch's confidence interval for the difference of two means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meltpoint.sweeps.search.selection import Spread

LEVEL = 0.95


@dataclass(frozen=True)
class MeanDifference:
    """A difference of means with its uncertainty.

    Attributes:
        mean: the difference.
        error: its standard error; None if a side has one seed.
        freedom: Welch's degrees of freedom; None without an error, infinite if the error is 0.
    """

    mean: float
    error: float | None
    freedom: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by Student's t; None without an error."""
        if self.error is None or self.freedom is None:
            return None
        from scipy.stats import t  # takes a second to import

        half = self.error * float(t.ppf((1 + LEVEL) / 2, self.freedom)) if self.error else 0.0
        return self.mean - half, self.mean + half


def mean_difference(upper: Spread, lower: Spread) -> MeanDifference:
    """`upper` − `lower`, with Welch's standard error and the Welch–Satterthwaite degrees of freedom."""
    mean = upper.mean - lower.mean
    if upper.std is None or lower.std is None:
        return MeanDifference(mean, None, None)
    parts = [(side.std or 0.0) ** 2 / side.count for side in (upper, lower)]
    freedoms = [upper.count - 1.0, lower.count - 1.0]
    return MeanDifference(mean, math.sqrt(sum(parts)), _freedom(parts, freedoms))


def average(differences: Sequence[MeanDifference]) -> MeanDifference:
    """The mean of independent differences (one per task), with its error by the same rule."""
    mean, count = sum(one.mean for one in differences) / len(differences), len(differences)
    known = [(one.error, one.freedom) for one in differences if one.error is not None and one.freedom is not None]
    if len(known) < count:
        return MeanDifference(mean, None, None)
    parts = [(error / count) ** 2 for error, _ in known]
    return MeanDifference(mean, math.sqrt(sum(parts)), _freedom(parts, [freedom for _, freedom in known]))


def _freedom(parts: Sequence[float], freedoms: Sequence[float]) -> float:
    """Welch–Satterthwaite: (Σ vᵢ)² / Σ (vᵢ² / νᵢ)."""
    spread = sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return sum(parts) ** 2 / spread if spread else math.inf
