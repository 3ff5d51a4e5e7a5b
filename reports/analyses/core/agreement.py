"""The mean of a difference over tasks: its interval, how many tasks agree, and the exact sign test over tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meltpoint.reports.statistics.comparison import ALPHA

MOST_TASKS = 200
"""Where no number of tasks up to this one would do, none is named."""


@dataclass(frozen=True)
class TaskAgreement:
    """The differences of several tasks, taken as a sample of tasks.

    Attributes:
        deltas: one per task, fractions; at least one.
    """

    deltas: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over tasks."""
        return math.fsum(self.deltas) / len(self.deltas)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean over tasks; None for one task."""
        from scipy.stats import sem, t  # takes a second to import

        if len(self.deltas) < 2:
            return None
        error = float(sem(self.deltas))
        if error == 0:
            return self.mean, self.mean
        low, high = t.interval(1 - ALPHA, len(self.deltas) - 1, loc=self.mean, scale=error)
        return float(low), float(high)

    @property
    def above(self) -> int:
        """The number of tasks whose difference is above 0."""
        return sum(delta > 0 for delta in self.deltas)

    @property
    def below(self) -> int:
        """The number of tasks whose difference is below 0."""
        return sum(delta < 0 for delta in self.deltas)

    @property
    def agreeing(self) -> int:
        """The number of tasks on the side that most are on."""
        return max(self.above, self.below)

    @property
    def p_sign(self) -> float:
        """The exact two-sided sign test over the tasks with a difference; 1 if there are none."""
        return _sign_test(self.above, self.above + self.below)

    @property
    def needed_tasks(self) -> int | None:
        """The number of tasks with which a sign test would be below `ALPHA` if as many in a hundred agreed."""
        share = self.agreeing / len(self.deltas)
        if share <= 0.5:
            return None
        sizes = range(len(self.deltas), MOST_TASKS + 1)
        return next((size for size in sizes if _sign_test(math.floor(share * size), size) < ALPHA), None)


def _sign_test(above: int, count: int) -> float:
    from scipy.stats import binomtest  # takes a second to import

    return float(binomtest(above, count).pvalue) if count else 1.0
