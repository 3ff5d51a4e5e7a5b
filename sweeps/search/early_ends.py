"""Early ends of searches: the race between a task's cells (`--race`), and `--trials auto`.

Both decide at checks, after 4, 8, 12, 16, 24, … trials of a cell, from these trials' dev scores alone. A cell waits at
a check until its rivals are there too. So a sweep that was stopped or killed ends the same searches as an undisturbed
one.

Scores above the middle of a cell's trials are taken to fall off exponentially, as the best of few random settings do on
recorded searches. The scale of that tail, the mean excess of the better half, says how far more trials may lead.
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
"""The probability with which the remaining trials of a cell may go beyond the score that they are expected to reach."""
NOISE = 1.645
"""Standard errors of the difference on dev that a cell may be behind by chance: its one-sided quantile for `RISK`."""
SHARED_NOISE = 0.5
"""The share of a proportion's variance that differs between two settings on the same examples."""
WORTH = 0.1
"""The share of the margin that another trial has to gain on average with `--trials auto`."""


@dataclass(frozen=True)
class EarlyEnd:
    """The end of a cell's search before its last planned trial.

    Attributes:
        trials: the number of search trials that the cell keeps.
        behind: points of the task's metric (a fraction) behind the best cell of its task; None if the search ended
            because another trial is expected to gain too little.
    """

    trials: int
    behind: float | None = None

    def __str__(self) -> str:
        """`dropped after 4 trials, 9.1 points behind`."""
        if self.behind is None:
            return f"ended after {self.trials} trials, since more would gain little"
        return f"dropped after {self.trials} trials, {100 * self.behind:.1f} points behind"

    def as_json(self) -> dict[str, Any]:
        """The object in `status --json`."""
        return {"trials": self.trials, "behind": self.behind}


@dataclass(frozen=True)
class Entrant:
    """A cell as the checks see it.

    Attributes:
        rivals: the same for all cells that compete: a task and a size of train.
        planned: the number of planned search trials.
        dev_examples: the number of dev examples on which its trials are compared.
        ended: number of each search trial that has ended → its dev score, the higher the better; None without one.
        is_over: whether it gets no further trials, because its test split was opened or the time is up.
    """

    key: CellKey
    rivals: tuple[object, ...]
    planned: int
    metric: str
    dev_examples: int
    ended: Mapping[int, float | None]
    is_over: bool = False

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

    def chance(self, scores: Sequence[float]) -> float:
        """The variance between its trials that chance makes on its dev examples; 0 for an error without limits.

        Trials see the same examples, so it is half of that of independent proportions: two settings that are right on
        93 % disagree on some 6 % of the examples.
        """
        bounded = limits(self.metric)[1] < math.inf
        return SHARED_NOISE * _variance(scores[0]) / self.dev_examples if bounded else 0.0


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
        race: whether cells that can no longer win by more than the margin are dropped.
        auto: whether searches end that would gain little.
        margin: a fraction.
    """
    found = Checked({}, {})
    groups: dict[tuple[object, ...], list[Entrant]] = {}
    for one in entrants if race or auto else ():
        groups.setdefault(one.rivals if race else one.key, []).append(one)
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
            elif auto and len(scores) >= CHECK and expected_gain(scores, one.chance(scores)) < WORTH * margin:
                found.ends[one.key] = EarlyEnd(count)


def can_no_longer_win(one: Entrant, count: int, leader: float, margin: float) -> bool:
    """True if neither the rest of a cell's trials nor noise on dev is likely to bring it within the margin of a leader.

    The noise is that of two independent proportions, which is more than that of two models on the same examples. A cell
    whose metric is an error in the task's own unit has no such bound, and is never dropped.
    """
    scores = one.scores(count)
    if len(scores) < CHECK // 2 or limits(one.metric)[1] == math.inf:
        return False
    noise = math.sqrt(sum(_variance(score) for score in (scores[0], leader)) / one.dev_examples)
    return leader - reach(scores, one.planned - count) > margin + NOISE * noise


def _variance(score: float) -> float:
    """The variance of one example's score, if a metric is a proportion."""
    inside = min(1.0, max(0.0, score))
    return inside * (1 - inside)


def tail(scores: Sequence[float]) -> tuple[int, float]:
    """(size of the better half, its mean excess over the next score): scores from the best, at least two."""
    half = max(1, len(scores) // 2)
    return half, sum(scores[:half]) / half - scores[half]


def reach(scores: Sequence[float], more: int) -> float:
    """The score that the best of `more` further trials exceeds with the probability `RISK`; at least the best so far.

    One trial exceeds the next score after the better half by y with the probability h/n · exp(−y / scale).
    """
    half, scale = tail(scores)
    often = more * half / (len(scores) * RISK)
    return max(scores[0], scores[half] + scale * math.log(max(1.0, often)))


def expected_gain(scores: Sequence[float], chance: float = 0.0) -> float:
    """The mean true gain of one more trial.

    With an exponential tail, the best score on dev gains its scale by the number of trials then. The same share of that
    is true as of the variance of the scores: the rest is chance, and choosing by it is overtuning.

    Args:
        chance: the variance of the scores by chance.
    """
    spread = statistics.variance(scores)
    true = max(0.0, 1 - chance / spread) if spread > 0 else 0.0
    return true * tail(scores)[1] / (len(scores) + 1)


def checks(planned: int) -> Iterator[int]:
    """The numbers of trials after which a search of this many may end: 4, 8, 12, 16, 24, 36, …."""
    count = CHECK
    while count < planned:
        yield count
        count += max(CHECK, count // 2 // CHECK * CHECK)
