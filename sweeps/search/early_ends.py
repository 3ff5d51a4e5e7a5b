"""Early ends of searches: the race between a task's cells (`--race`), and `--trials auto`.

Both decide at checks, after 4, 8, 12, 16, 24, … trials of a cell, from these trials' dev scores alone. A cell waits at
a check until its rivals are there too. So a sweep that was stopped or killed ends the same searches as an undisturbed
one.

The better half of a cell's scores is taken as an exponential tail. Its scale, the mean excess over the next score, says
how far more trials may lead (docs/internals/log.md has the decisions on recorded searches).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.tasks.core.metrics import gain, limits

CHECK = 4
"""The number of trials before the first check, and the fewest between two checks."""
RISK = 0.05
"""The probability with which the best of a cell's remaining trials may exceed `upper_bound`."""
STANDARD_ERRORS = 1.645
"""The standard errors on dev by which a cell may be behind by chance: the normal distribution's one-sided 5 %."""
DIFFERING = 0.25
"""The share of a proportion's variance in which two runs on the same examples differ: the median of 131 pairs of runs
(docs/internals/log.md)."""
WORTH = 0.1
"""The share of the margin that another trial must gain on average with `--trials auto`."""


@dataclass(frozen=True)
class EarlyEnd:
    """The end of a cell's search before its last planned trial.

    Attributes:
        trials: the number of search trials that the cell keeps.
        behind: the distance from the best cell's dev score, a fraction; None if more trials would gain too little.
    """

    trials: int
    behind: float | None = None

    def __str__(self) -> str:
        """`dropped after 4 trials, 9.1 points behind`."""
        if self.behind is None:
            return f"ended after {self.trials} trials: more were unlikely to help"
        return f"dropped after {self.trials} trials, {100 * self.behind:.1f} points behind"

    def as_json(self) -> dict[str, Any]:
        """The object in `status --json`."""
        return {"trials": self.trials, "behind": self.behind}


@dataclass(frozen=True)
class Entrant:
    """A cell as the checks see it.

    Attributes:
        planned: the number of planned search trials.
        dev_examples: the number of dev examples on which its trials are compared.
        ended: number of each search trial that has ended → its dev score, the higher the better; None without one.
        is_over: whether it gets no further trials, because its test split was opened or the time is up.
    """

    key: CellKey
    train_examples: int
    planned: int
    metric: str
    dev_examples: int
    ended: Mapping[int, float | None]
    is_over: bool = False

    @property
    def contest(self) -> tuple[object, ...]:
        """The same for all cells that compete: task, size of train, metric."""
        return (self.key[2], self.train_examples, self.metric)

    def has_ended(self, count: int) -> bool:
        """True if its first trials have ended."""
        return sum(number < count for number in self.ended) >= min(count, self.planned)

    def has_passed(self, count: int) -> bool:
        """True if it has later trials: the check was off when they ran."""
        return any(number >= count for number in self.ended)

    def scores(self, count: int) -> list[float]:
        """The dev scores of its first trials, the best first."""
        early = (score for number, score in self.ended.items() if number < count)
        return sorted((score for score in early if score is not None), reverse=True)

    def variance(self, score: float) -> float:
        """The variance of a score over samples of dev, taken as a proportion; 0 for an error without limits."""
        inside = min(1.0, max(0.0, score))
        return inside * (1 - inside) / self.dev_examples if limits(self.metric)[1] < math.inf else 0.0


def scores_of(records: Iterable[TrialRecord]) -> dict[int, float | None]:
    """`Entrant.ended` of a cell's search trials."""
    return {
        one.number: gain(one.metric, one.dev) if one.status == "finished" and one.dev is not None else None
        for one in records
    }


@dataclass(frozen=True)
class Checked:
    """The decisions of the checks.

    Attributes:
        ends: cell → the early end of its search.
        limits: cell → the number of trials that it may begin before the next decision; other cells may begin all.
    """

    ends: dict[CellKey, EarlyEnd]
    limits: dict[CellKey, int]


def check_searches(entrants: Sequence[Entrant], race: bool, auto: bool, margin: float) -> Checked:
    """Decide which searches end early, as far as the results allow.

    Args:
        race: whether cells that are unlikely to come within the margin of the best are dropped.
        auto: whether searches end that would gain little.
        margin: a fraction.
    """
    found = Checked({}, {})
    groups: dict[tuple[object, ...], list[Entrant]] = {}
    for one in entrants if race or auto else ():
        groups.setdefault(one.contest if race else one.key, []).append(one)
    for group in groups.values():
        _check_group(group, race, auto, margin, found)
    return found


def _check_group(group: Sequence[Entrant], race: bool, auto: bool, margin: float, found: Checked) -> None:
    for count in checks(max(one.planned for one in group)):
        going = [one for one in group if one.key not in found.ends]
        if not all(one.is_over or one.has_ended(count) for one in going):
            found.limits.update({one.key: count for one in going if one.planned > count})
            return
        leader = max((scores[0] for one in group if (scores := one.scores(count))), default=None)
        for one in going:
            if leader is None or one.planned <= count or one.has_passed(count) or not one.has_ended(count):
                continue
            scores = one.scores(count)
            if race and scores and can_no_longer_win(one, count, leader, margin):
                found.ends[one.key] = EarlyEnd(count, leader - scores[0])
            elif auto and len(scores) >= CHECK and _is_worthless(one, scores, margin):
                found.ends[one.key] = EarlyEnd(count)


def can_no_longer_win(one: Entrant, count: int, leader: float, margin: float) -> bool:
    """True if neither the rest of a cell's trials nor noise on dev is likely to bring it within the margin of a leader.

    The noise is that of two independent proportions, which is more than that of two models on the same examples. A cell
    whose metric is an error in the task's own unit has no known noise, and is never dropped.
    """
    scores = one.scores(count)
    if len(scores) < CHECK // 2 or limits(one.metric)[1] == math.inf or _has_no_tail(one, scores):
        return False
    noise = math.sqrt(one.variance(scores[0]) + one.variance(leader))
    return leader - upper_bound(scores, one.planned - count) > margin + STANDARD_ERRORS * noise


def _has_no_tail(one: Entrant, scores: Sequence[float]) -> bool:
    """True if the better half has one score below the best possible: all such trials may have collapsed."""
    return tail(scores)[1] == 0 and scores[0] < limits(one.metric)[1]


def _is_worthless(one: Entrant, scores: Sequence[float], margin: float) -> bool:
    """True if another trial would gain too little. Of an error in the task's own unit, the margin says nothing."""
    if limits(one.metric)[1] == math.inf or _has_no_tail(one, scores):
        return False
    return expected_gain(scores, DIFFERING * one.variance(scores[0])) < WORTH * margin


def tail(scores: Sequence[float]) -> tuple[int, float]:
    """(size of the better half, its mean excess over the next score): scores from the best, at least two."""
    half = max(1, len(scores) // 2)
    return half, sum(scores[:half]) / half - scores[half]


def upper_bound(scores: Sequence[float], more: int) -> float:
    """The score that the best of `more` further trials exceeds with the probability `RISK`; at least the best so far.

    One trial exceeds the next score after the better half by y with the probability h/n · exp(−y / scale).
    """
    half, scale = tail(scores)
    often = more * half / (len(scores) * RISK)
    return max(scores[0], scores[half] + scale * math.log(max(1.0, often)))


def expected_gain(scores: Sequence[float], noise: float = 0.0) -> float:
    """The mean true gain of one more trial.

    With an exponential tail, one more trial raises the best score on dev by scale / (number of trials then). Only the
    share of the scores' variance that is not noise is a true gain; choosing by the rest is overtuning.

    Args:
        scores: dev scores, the best first.
        noise: the variance of the scores over samples of dev examples.
    """
    spread = statistics.variance(scores)
    true = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    return true * tail(scores)[1] / (len(scores) + 1)


def checks(planned: int) -> Iterator[int]:
    """The numbers of trials after which a search of this many may end: 4, 8, 12, 16, 24, 36, …."""
    count = CHECK
    while count < planned:
        yield count
        count += max(CHECK, count // 2 // CHECK * CHECK)
