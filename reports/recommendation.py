"""The recommendation for each task: the mode to take, and how certain that is. The first line of every view.

Three certainties, decided per task on the split that the table shows (docs/statistics.md):

- *sure*: the leader is better than every mode that gives the other answer to "to tune or not to tune?" (it trains the
  encoder and they do not, or the other way round), each by an adjusted p below 0.05. Where all modes give the same
  answer, better than every other one.
- *level*: a mode that is as cheap as the leader or cheaper is behind no other by the margin or more (a non-inferiority
  test, p below 0.05 after Holm's adjustment over the table). The cheapest such mode is recommended.
- *provisional*: neither, a mode with the other answer has no result, or runs of the leader failed. The leader is
  recommended, with the seeds or examples that would make it sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from meltpoint.adapters import modes
from meltpoint.reports.formats import bounds_text, symbol
from meltpoint.reports.statistics.comparison import ALPHA, MARGIN, Comparison, holm
from meltpoint.reports.statistics.seeds import rounded_up
from meltpoint.reports.table_values import Delta, Split, over_seeds, place_of
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import difference_text, score_text
from meltpoint.tasks.core.wording import some

Certainty = Literal["sure", "provisional", "level"]


@dataclass(frozen=True)
class Standing:
    """One candidate of a task: a cell with finals.

    Attributes:
        cell: the cell.
        score: its score over seeds, on the recommendation's split.
        is_recommended: True for the winner: the one that every table marks.
        seconds: to train its best setting once (`CellCost.seconds_of_a_final`); None if unknown.
    """

    cell: CellSummary = field(repr=False)
    score: Spread
    is_recommended: bool
    seconds: float | None

    @property
    def mode(self) -> str:
        """Its mode."""
        return self.cell.header.mode


@dataclass(frozen=True)
class Recommendation:
    """A recommendation for a task.

    Attributes:
        task, metric, split: of the scores.
        certainty: `sure`, `provisional` or `level`.
        standings: the candidates, the best score first; at least one.
        against: the candidate that the sentence compares the winner with; None if there is no other.
        comparison: `upper` − `lower` of these two, in either order; None if they cannot be compared.
        bound: for `level`, the most by which the winner may be behind, at 95 %; a fraction.
        untold: other candidates that cannot be told from the winner.
        margin: as a fraction.
        several: True if the candidates have several encoders, so that the text names them.
        missing: the modes of the task that have no result to compare, in the sweep's order.
    """

    task: str
    metric: str
    split: Split
    certainty: Certainty
    standings: tuple[Standing, ...]
    against: Standing | None = None
    comparison: Comparison | None = None
    bound: float | None = None
    untold: tuple[Standing, ...] = ()
    margin: float = MARGIN
    several: bool = False
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence

    def __repr__(self) -> str:
        """The task and the sentence; without the trials of each candidate."""
        return f"Recommendation({self.task}: {self.sentence})"

    @property
    def winner(self) -> Standing:
        """The recommended candidate."""
        return next(one for one in self.standings if one.is_recommended)

    @property
    def sentence(self) -> str:
        """`Fine-tune it: 🔥 92.7, 15.3 above ❄ [+11.8, +18.9]: sure.`"""
        winner = self.winner
        head = f"{self._action(winner)}: {self.name(winner)} {self._score(winner)}"
        head += " on dev" if self.split == "dev" else ""
        if self.against is None:
            missing = f"; {self._missing()}" if self.missing else "."
            return f"{head}, with no other mode to compare it with: provisional{missing}"
        if self.certainty == "level":
            return f"{head}, {self._at_most()}{self._share_of_cost()}: level."
        head += f", {self._lead()}: {self.certainty}"
        if self.certainty == "provisional" and lacks_an_answer(winner.mode, self.missing):
            return f"{head}; {self._missing()}"
        if self.certainty == "provisional" and _without_score(winner):
            return f"{head}; some of its runs ended without a score."
        needs = self.needs
        return f"{head}; {needs}." if needs else f"{head}."

    @property
    def needs(self) -> str:
        """The sizes that would make a provisional recommendation sure; "" if it is not provisional or not known."""
        known = self.comparison
        if self.certainty != "provisional" or known is None:
            return ""
        if known.needed_seeds is not None:
            return f"about {some(rounded_up(known.needed_seeds), 'seed')} would make it sure"
        if known.needed_examples is not None:
            needed = known.with_seeds or 0
            seeds = f" and {some(rounded_up(needed), 'seed')}" if needed > known.seeds else ""
            examples = some(rounded_up(known.needed_examples), f"{self.split} example")
            return f"about {examples}{seeds} would make it sure"
        return known.reason

    @property
    def details(self) -> tuple[str, ...]:
        """Further sentences, the most important first: failed runs, modes that cannot be told apart, these models."""
        encoders = "The encoder is the best one on test; encoders are not compared." if self.several else ""
        missing = self._missing() if self.against else ""
        lines = (*self._failures(), missing, self._untold(), encoders, self.of_these_models)
        return tuple(line for line in lines if line)

    def _missing(self) -> str:
        """`🔥 and ❄🔥 have no result.`"""
        if not self.missing:
            return ""
        *first, last = map(symbol, self.missing)
        return f"{', '.join(first)} and {last} have no result." if first else f"{last} has no result."

    def _failures(self) -> list[str]:
        known = self.comparison
        sides = [one for one in (self.winner, self.against) if one is not None]
        without = [
            f"{some(len(ended), 'run')} of {self.name(one)} ended without a score."
            for one in sides
            if (ended := _without_score(one))
        ]
        if known is None:
            return without
        runs = {known.upper: known.failed_runs[0], known.lower: known.failed_runs[1]}
        return without + [
            f"{some(len(seeds), 'run')} of {self.name(one)} failed ({'seed' if len(seeds) == 1 else 'seeds'} "
            f"{', '.join(map(str, seeds))}): more than 8 points below its best run."
            for one in sides
            if (seeds := runs.get(one.cell.header.key))
        ]

    def _untold(self) -> str:
        if not self.untold:
            return ""
        names = " and ".join(f"{self.name(one)} ({self._score(one)})" for one in self.untold)
        return f"{names} cannot be told apart from {self.name(self.winner)}."

    @property
    def of_these_models(self) -> str:
        """The same comparison of each side's best model, over examples alone, so that one seed is enough; or ""."""
        known = None if self.comparison is None else self.comparison.model
        if known is None or self.against is None:
            return ""
        delta, low, high = self._from_winner(known)
        interval = f"{difference_text(delta, self.metric)} {bounds_text(low, high, self.metric)}"
        pair = f"{self.name(self.winner)} − {self.name(self.against)}"
        return f"The best model of each, over examples alone: {pair} {interval}."

    def name(self, standing: Standing) -> str:
        """`🔥`, with the variant and the encoder if there are several."""
        head = standing.cell.header
        parts = [head.encoder] if self.several else []
        return " ".join([*parts, symbol(head.mode), *([head.variant] if head.variant else [])])

    def as_json(self) -> dict[str, Any]:
        """The object for programs; scores and differences are fractions, `delta` is winner − `against`."""
        known, winner = self.comparison, self.winner
        delta, low, high = (None, None, None) if known is None else self._from_winner(known)
        return {
            "task": self.task, "metric": self.metric, "split": self.split, "certainty": self.certainty,
            "sentence": self.sentence, "details": list(self.details), **_identity(winner),
            "score": winner.score.mean, "std": winner.score.std, "seeds": winner.score.count,
            "against": None if self.against is None else _identity(self.against),
            "delta": delta, "low": low, "high": high, "p": known and known.p_holm, "margin": self.margin,
            "at_most_behind": self.bound,
            "ranking": [
                {**_identity(one), "score": one.score.mean, "std": one.score.std, "seeds": one.score.count,
                 "train_seconds": one.seconds, "is_recommended": one.is_recommended}
                for one in self.standings
            ],
        }  # fmt: skip

    def _action(self, standing: Standing) -> str:
        head = standing.cell.header
        what = head.encoder if self.several else "it"
        known = head.mode in modes.names()
        return modes.get(head.mode).verb.format(what) if known else f"Take {head.mode} of {head.encoder}"

    def _score(self, standing: Standing) -> str:
        return score_text(standing.score.mean, self.metric)

    def _lead(self) -> str:
        assert self.against is not None
        lead = self.winner.score.mean - self.against.score.mean
        words, name = difference_text(abs(lead), self.metric).lstrip("+"), self.name(self.against)
        text = f"{words} {'above' if lead > 0 else 'below'} {name}" if lead else f"as good as {name}"
        _, low, high = (None, None, None) if self.comparison is None else self._from_winner(self.comparison)
        return text if low is None or high is None else f"{text} {bounds_text(low, high, self.metric)}"

    def _from_winner(self, known: Any) -> tuple[Any, Any, Any]:
        """A difference with its interval, if it has one, as winner − `against`."""
        if self.comparison is None or self.comparison.upper == self.winner.cell.header.key:
            return known.delta, known.low, known.high
        return -known.delta, known.high and -known.high, known.low and -known.low

    def _at_most(self) -> str:
        assert self.against is not None
        assert self.bound is not None
        if self.bound <= 0:
            return f"shown not to be behind {self.name(self.against)}"
        points = difference_text(self.bound, self.metric).lstrip("+")
        return f"at most {points} points behind {self.name(self.against)}"

    def _share_of_cost(self) -> str:
        assert self.against is not None
        own, other = self.winner.seconds, self.against.seconds
        if not own or not other or other < 1.5 * own:
            return ""
        cached = "" if _trains(self.winner.mode) else " on cached states"
        return f" at 1/{round(other / own)} of the training time{cached}"


def recommendations(
    summary: SweepSummary, deltas: Sequence[Delta], split: Split = "test", margin: float = MARGIN
) -> tuple[Recommendation, ...]:
    """A recommendation for each task that has a candidate, in the sweep's order of tasks.

    The encoder and variant of the best score are taken; the certainty is about their modes, which the table compares.

    Args:
        deltas: the table's (`Matrix.deltas`), adjusted.
        split: "dev" if the table shows dev even if there are test scores.
        margin: modes closer than this are level; a fraction.
    """
    found = {(delta.comparison.upper, delta.comparison.lower): delta.comparison for delta in deltas if delta.in_family}
    tasks = dict.fromkeys(cell.header.task for cell in summary.cells)
    fields = [
        _Field.of([cell for cell in summary.cells if cell.header.task == task], found, split, margin) for task in tasks
    ]
    raced = [field for field in fields if field is not None]
    tested = [(field, rival, p) for field in raced for rival, p in field.within_margin()]
    passed = holm([p for *_, p in tested])
    level: dict[str, Standing] = {}
    for (raced_field, rival, _), p in zip(tested, passed, strict=True):  # the cheapest of a task comes first
        if p < ALPHA:
            level.setdefault(raced_field.task, rival)
    return tuple(field.recommendation(level.get(field.task)) for field in raced)


@dataclass(frozen=True)
class _Field:
    """The candidates of one task, the best first, and their comparisons."""

    standings: tuple[Standing, ...]
    comparisons: Mapping[tuple[CellKey, CellKey], Comparison]
    split: Split
    margin: float
    missing: tuple[str, ...]

    @classmethod
    def of(
        cls, cells: Sequence[CellSummary], comparisons: Mapping[tuple[CellKey, CellKey], Comparison], split: Split,
        margin: float,
    ) -> _Field | None:  # fmt: skip
        for chosen in ("test", "dev") if split == "test" else ("dev",):
            scores = [(cell, over_seeds(cell, chosen)) for cell in cells]
            entered = [
                Standing(cell, over, False, cell.cost.seconds_of_a_final) for cell, over in scores if over is not None
            ]
            # Of several sizes of train, only the largest is recommended from: less data is no choice.
            most = max((one.cell.header.train_examples for one in entered), default=0)
            cells = [cell for cell in cells if cell.header.train_examples >= most]
            entered = [one for one in entered if one.cell.header.train_examples == most]
            # A task is ranked on test only when every cell that has finals has test scores.
            if entered and (chosen == "dev" or len(entered) == sum(bool(cell.finals) for cell in cells)):
                metric = cells[0].header.metric
                entered.sort(key=lambda one: (-gain(metric, one.score.mean), _cost(one)))
                group = _group(entered[0])
                here = {one.mode for one in entered if _group(one) == group}
                modes = dict.fromkeys(
                    cell.header.mode for cell in cells
                    if (cell.header.encoder, cell.header.variant) == group
                    or cell.header.mode not in {one.mode for one in entered}
                )  # fmt: skip
                missing = tuple(mode for mode in modes if mode not in here)
                return cls(tuple(entered), comparisons, chosen, margin, missing)
        return None

    @property
    def task(self) -> str:
        return self.standings[0].cell.header.task

    @property
    def leader(self) -> Standing:
        return self.standings[0]

    @property
    def rivals(self) -> list[Standing]:
        """The other modes of the leader's encoder and variant."""
        return [one for one in self.standings[1:] if _group(one) == _group(self.leader)]

    @property
    def is_open(self) -> bool:
        """True if a mode that gives the other answer has no result."""
        return lacks_an_answer(self.leader.mode, self.missing)

    def between(self, one: Standing, other: Standing) -> Comparison | None:
        """Their comparison, in either order, if it is on the split of the ranking."""
        keys = one.cell.header.key, other.cell.header.key
        found = self.comparisons.get(keys) or self.comparisons.get(keys[::-1])
        return found if found is not None and found.split == self.split else None

    def within_margin(self) -> list[tuple[Standing, float]]:
        """The leader and cheaper modes, the cheapest first, each with the p of "behind by the margin".

        A mode has to pass against every other mode, so the largest p-value counts and needs no adjustment here (an
        intersection-union test, Berger 1982).
        """
        group = [self.leader, *self.rivals]
        if len(group) < 2 or self.is_open:
            return []
        cheaper = sorted((one for one in group if _cost(one) <= _cost(self.leader)), key=_cost)
        found = []
        for one in cheaper:
            others = [self.between(one, other) for other in group if other is not one]
            each = [None if known is None else known.behind(one.cell.header.key).p for known in others]
            known = [p for p in each if p is not None]
            found += [(one, max(known))] if len(known) == len(each) else []
        return found

    def recommendation(self, level: Standing | None) -> Recommendation:
        """The recommendation, given the cheapest mode that is within the margin of all others."""
        others = [one for one in self.rivals if _trains(one.mode) != _trains(self.leader.mode)] or self.rivals
        beaten = {id(one): self._is_beaten(one) for one in self.rivals}
        winner, against = self.leader, others[0] if others else None
        bound: float | None = None
        is_sure = bool(others) and all(beaten[id(one)] for one in others) and not self.is_open
        certainty: Certainty = "sure" if is_sure and not _without_score(self.leader) else "provisional"
        if level is not None and not (level is self.leader and certainty == "sure"):
            winner, certainty = level, "level"
            ahead = [one for one in (self.leader, *self.rivals) if one is not level]
            bounds = [(known.behind(level.cell.header.key).bound or 0.0, one) for one in ahead
                      if (known := self.between(level, one)) is not None]  # fmt: skip
            bound, against = max(bounds, key=lambda pair: pair[0])
        elif certainty == "provisional":
            against = next((one for one in others if not beaten[id(one)]), against)
        untold = tuple(one for one in self.rivals if not beaten[id(one)] and one is not against)
        standings = tuple(replace(one, is_recommended=one is winner) for one in self.standings)
        several = len({one.cell.header.encoder for one in self.standings}) > 1
        head = winner.cell.header
        return Recommendation(
            head.task, head.metric, self.split, certainty, standings, against,
            None if against is None else self.between(winner, against), bound,
            () if certainty == "level" else untold, self.margin, several, self.missing,
        )  # fmt: skip

    def _is_beaten(self, one: Standing) -> bool:
        known = self.between(self.leader, one)
        return known is not None and known.is_claimed


def _cost(one: Standing) -> tuple[float, int]:
    """Seconds to train a mode; if unknown, its place by cost."""
    return (one.seconds or 0.0, place_of(one.mode))


def _trains(mode: str) -> bool:
    """True if the mode trains the encoder."""
    return mode not in modes.names() or modes.get(mode).trains_encoder


def lacks_an_answer(mode: str, missing: Sequence[str]) -> bool:
    """True if a missing mode gives the other answer to "to tune or not to tune?"."""
    return any(_trains(other) != _trains(mode) for other in missing)


def _without_score(one: Standing) -> list[TrialRecord]:
    """The finals that ended without a score because of their setting: not finite, or out of memory."""
    return [final for final in one.cell.failed_finals if not final.is_lost]


def _group(one: Standing) -> tuple[str, str]:
    return one.cell.header.encoder, one.cell.header.variant


def _identity(one: Standing) -> dict[str, str]:
    head = one.cell.header
    return {"encoder": head.encoder, "mode": head.mode, "variant": head.variant}
