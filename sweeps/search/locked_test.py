"""Closed cells and test rounds.

A cell is closed once its test split has been opened: a search that continued would choose with the test score known,
and test would no longer be unseen data. A recorded test round reopens the cell, and tells every reader.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.sweeps.ledger.ledger import LAST_MOMENT, Ledger, read_lines
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.storage.files import append_line
from meltpoint.tasks.core.wording import some


class ReopenedCell(BaseModel):
    """A cell whose search a test round has reopened.

    Attributes:
        key: the cell's key.
        scored: ids of its finals whose test split was opened before.
        planned: number of search trials at which the round ends; further ones need another round.
    """

    model_config = ConfigDict(frozen=True)

    key: tuple[str, ...]
    scored: tuple[str, ...]
    planned: int = Field(ge=0)


class TestRound(BaseModel):
    """A line of the log of test rounds; the first round of a sweep has none.

    Attributes:
        round: its number, from 2.
        began_at: in seconds since 1970.
        cells: the cells that it has reopened.
    """

    __test__ = False  # not a test class
    model_config = ConfigDict(frozen=True)

    round: int = Field(ge=2)
    began_at: float = Field(ge=0, le=LAST_MOMENT)
    cells: tuple[ReopenedCell, ...]


@dataclass(frozen=True)
class TestRounds:
    """The log of a sweep's test rounds, by cell.

    Attributes:
        later: the rounds after the first.
    """

    __test__ = False
    later: tuple[TestRound, ...] = ()

    @cached_property
    def last(self) -> dict[CellKey, ReopenedCell]:
        """Cell → its state at the start of its last round; cells without one are in their first round."""
        return {cell.key: cell for one in self.later for cell in one.cells}

    def count(self, key: CellKey) -> int:
        """The number of a cell's rounds, from 1."""
        return 1 + sum(cell.key == key for one in self.later for cell in one.cells)


FIRST_ROUND = TestRounds()


def read_rounds(ledger: Ledger) -> TestRounds:
    """The rounds of a sweep.

    Raises:
        ValueError: a line of the log is damaged.
    """
    return TestRounds(tuple(read_lines(ledger.test_rounds, TestRound)))


class SplitOpening(BaseModel):
    """A line of the log of opened test splits.

    Attributes:
        trial: the finalist that was to be scored.
        opened_at: in seconds since 1970.
    """

    trial: str
    opened_at: float = Field(ge=0, le=LAST_MOMENT)


@dataclass(frozen=True)
class Closing:
    """The final end of a cell's search.

    Attributes:
        trials: number of search trials that ran, however they ended.
        planned: number of planned search trials.
        opened_at: time at which its test split was first opened, in seconds since 1970; None if it has no test split.
        by_budget: whether a budget of time or GPU-hours was spent before the opening.
    """

    trials: int
    planned: int
    opened_at: float | None
    by_budget: bool

    @property
    def is_early(self) -> bool:
        """True if fewer search trials ran than planned."""
        return self.trials < self.planned

    def as_json(self) -> dict[str, Any]:
        """The JSON object in `status --json` and `plan --json`."""
        return {
            "since": self.opened_at, "reason": "finals scored" if self.opened_at is None else "test opened",
            "search_trials": self.trials, "ended_by": "budget" if self.is_early and self.by_budget else None,
        }  # fmt: skip

    def __str__(self) -> str:
        """The number of trials as text: `3 of 50 trials (budget)`."""
        return f"{self.trials} of {self.planned} trials" + (" (budget)" if self.by_budget else "")

    @property
    def cause(self) -> str:
        """The cause as text: `its test split was opened on 2026-11-23 14:02`, local time."""
        if self.opened_at is None:
            return "its finalists were scored"
        return f"its test split was opened on {_moment(self.opened_at)}"


def split_openings(ledger: Ledger) -> list[SplitOpening]:
    """Every opening of a test split, earliest first.

    Raises:
        ValueError: a line of the log of openings is damaged.
    """
    return read_lines(ledger.openings, SplitOpening)


def opened_trials(ledger: Ledger) -> frozenset[str]:
    """The ids of the finalists for which the test split was opened, whether or not a score resulted.

    Raises:
        ValueError: a line of the log of openings is damaged.
    """
    return frozenset(line.trial for line in split_openings(ledger))


def is_closed(records: Iterable[TrialRecord], opened: Collection[str], again: ReopenedCell | None = None) -> bool:
    """True if the test split was opened for any of a cell's finalists, or one of them has a recorded score.

    Args:
        records: of the cell, including finals of the published setting.
        opened: ids of the finalists for which a test split was opened.
        again: its state at the start of its last test round; only later openings count, and the end of the round's
            search closes it too. None in the first round.
    """
    known = list(records)
    earlier = again.scored if again else ()
    finals = [record for record in known if record.role != "search" and record.id not in earlier]
    is_over = again is not None and sum(r.role == "search" and not r.is_lost for r in known) >= again.planned
    return is_over or any(final.test is not None or final.id in opened for final in finals)


@dataclass(frozen=True)
class ClosingLogs:
    """The logs that explain why cells are closed, read once for all cells of a sweep.

    Attributes:
        openings: of test splits, earliest first.
        budgets: time budgets that were spent.
        numbers: finalist → indices of its openings in `openings`.
    """

    openings: Sequence[SplitOpening]
    budgets: Sequence[_Budget]
    numbers: Mapping[str, Sequence[int]]

    @classmethod
    def read(cls, ledger: Ledger) -> ClosingLogs:
        """The logs of a ledger.

        Raises:
            ValueError: a line of one of them is damaged.
        """
        openings, numbers = split_openings(ledger), defaultdict[str, list[int]](list)
        for number, line in enumerate(openings):
            numbers[line.trial].append(number)
        return cls(openings, read_lines(ledger.budgets, _Budget), numbers)


def closing_of(
    logs: ClosingLogs, records: Iterable[TrialRecord], planned: int, again: ReopenedCell | None = None
) -> Closing | None:  # fmt: skip
    """The closing of a cell, from its records; None if it is open.

    Args:
        logs: of the sweep.
        records, again: as in `is_closed`.
        planned: number of planned search trials.
    """
    known = list(records)
    if not is_closed(known, logs.numbers, again):
        return None
    finals = {record.id for record in known if record.role != "search"}
    finals = finals - set(again.scored if again else ()) or finals
    own = sorted(number for final in finals for number in logs.numbers.get(final, ()))
    opened_at = min((logs.openings[number].opened_at for number in own), default=None)
    by_budget = any(spent.is_before(own[0] if own else None, opened_at) for spent in logs.budgets)
    return Closing(sum(record.role == "search" for record in known), planned, opened_at, by_budget)


def note_spent_budget(ledger: Ledger, seconds: float) -> None:
    """Log that a time budget is spent, since trial records do not explain why no more of them follow."""
    opened = len(split_openings(ledger))
    append_line(ledger.budgets, {"time_budget_seconds": seconds, "spent_at": time.time(), "openings": opened})


def in_words(key: CellKey, closing: Closing) -> str:
    """One line for a cell that was closed before all its trials ran, with the remedy."""
    ended = ", then the budget was spent" if closing.by_budget else ""
    return (
        f"{'.'.join(key)} is closed because {closing.cause}: {closing.trials} of {closing.planned} search trials "
        f"ran{ended}; to continue the search, use a new --name, or --new-test-round, which tables report."
    )


def openings_in_words(openings: Sequence[SplitOpening]) -> str:
    """`Test was opened for 2 finalists: 2026-11-23 14:02 to 2026-11-23 14:10.`, local time; `openings` is not empty."""
    first, last = _moment(openings[0].opened_at), _moment(openings[-1].opened_at)
    until = "" if last == first else f" to {last}"
    return f"Test was opened for {some(len({one.trial for one in openings}), 'finalist')}: {first}{until}."


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


class _Budget(BaseModel):
    """A line of the log of spent time budgets.

    Attributes:
        openings: number of test splits opened before, which gives the order even if the clock was wrong; None in lines
            of older versions.
    """

    spent_at: float = Field(ge=0, le=LAST_MOMENT)
    openings: int | None = Field(default=None, ge=0)

    def is_before(self, number: int | None, opened_at: float | None) -> bool:
        """True if it was spent before the opening with that index and time; also if there was none."""
        if number is None or opened_at is None:
            return True
        return self.spent_at <= opened_at if self.openings is None else self.openings <= number
