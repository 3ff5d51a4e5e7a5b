"""Closed cells: after a cell's test split was opened, its search ends, since it could choose by the test score."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord, reason
from meltpoint.sweeps.storage.files import StoragePath, contents


@dataclass(frozen=True)
class Closing:
    """The final end of a cell's search.

    Attributes:
        trials: number of search trials that were run, however they ended.
        planned: number of planned search trials.
        opened_at: time at which its test split was first opened, in seconds since 1970; None if it has no test split.
        by_budget: whether a time budget was spent before that.
    """

    trials: int
    planned: int
    opened_at: float | None
    by_budget: bool

    @property
    def is_early(self) -> bool:
        """True if fewer search trials were run than planned."""
        return self.trials < self.planned

    def as_json(self) -> dict[str, Any]:
        """The JSON object in `status --json` and `plan --json`."""
        return {
            "since": self.opened_at, "reason": "finals scored" if self.opened_at is None else "test opened",
            "search_trials": self.trials, "ended_by": "time budget" if self.is_early and self.by_budget else None,
        }  # fmt: skip

    def __str__(self) -> str:
        """The number of trials as text: `3 of 50 trials (time budget)`."""
        return f"{self.trials} of {self.planned} trials" + (" (time budget)" if self.by_budget else "")

    @property
    def cause(self) -> str:
        """The cause as text: `its test split was opened on 2026-11-23 14:02`, local time."""
        if self.opened_at is None:
            return "its finalists were scored"
        return f"its test split was opened on {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.opened_at))}"


def opened_trials(ledger: Ledger) -> frozenset[str]:
    """The ids of the finalists for which the test split was opened, whether or not a score came of it.

    Raises:
        ValueError: a line of the log of openings is damaged.
    """
    return frozenset(line.trial for line in _lines(ledger.openings, _Opening))


def is_closed(finals: Iterable[TrialRecord], opened: Collection[str]) -> bool:
    """True if the test split was opened for any of a cell's finalists, or a score of one is recorded.

    Args:
        finals: its finals, those of the published setting too.
    """
    return any(final.test is not None or final.id in opened for final in finals)


def closing_of(ledger: Ledger, records: Iterable[TrialRecord], planned: int) -> Closing | None:
    """The closing of a cell, from its records; None if it is open.

    Raises:
        ValueError: a line of the ledger's logs (`openings`, `budgets`) is damaged.
    """
    roles = [(record.role, record) for record in records]
    finals = {record.id: record for role, record in roles if role != "search"}
    if not is_closed(finals.values(), opened_trials(ledger)):
        return None
    openings = _lines(ledger.openings, _Opening)
    own = [number for number, line in enumerate(openings) if line.trial in finals]
    opened_at = min((openings[number].opened_at for number in own), default=None)
    by_budget = any(spent.is_before(own[0] if own else None, opened_at) for spent in _lines(ledger.budgets, _Budget))
    return Closing(sum(role == "search" for role, _ in roles), planned, opened_at, by_budget)


def note_spent_budget(ledger: Ledger, seconds: float) -> None:
    """Log that a time budget is spent, since trial records do not contain the reason why there are no more of them."""
    opened = len(_lines(ledger.openings, _Opening))
    ledger.append(ledger.budgets, {"time_budget_seconds": seconds, "spent_at": time.time(), "openings": opened})


def in_words(key: CellKey, closing: Closing) -> str:
    """One line for a cell that was closed before all its trials were run, with the remedy."""
    ended = ", then the time budget was spent" if closing.by_budget else ""
    return (
        f"{'.'.join(key)} is closed since {closing.cause}: {closing.trials} of {closing.planned} search trials were "
        f"run{ended}; a new --name searches on."
    )


LAST_MOMENT = 1e11
"""Seconds since 1970, of the year 5138: later ones are damage, and no calendar has the largest."""


class _Opening(BaseModel):
    """A line of the log of opened test splits."""

    trial: str
    opened_at: float = Field(ge=0, le=LAST_MOMENT)


class _Budget(BaseModel):
    """A line of the log of spent time budgets.

    Attributes:
        openings: how many test splits had been opened, which says what came first whatever the clock was set to; None
            in lines of older versions.
    """

    spent_at: float = Field(ge=0, le=LAST_MOMENT)
    openings: int | None = Field(default=None, ge=0)

    def is_before(self, number: int | None, opened_at: float | None) -> bool:
        """True if it was spent before the opening of that number and time; None: before none."""
        if number is None or opened_at is None:
            return True
        return self.spent_at <= opened_at if self.openings is None else self.openings <= number


Line = TypeVar("Line", _Opening, _Budget)


def _lines(path: StoragePath, line_class: type[Line]) -> list[Line]:
    """Read a file of JSON objects, one a line; empty if it does not exist.

    A line without its end was being written as the power failed, and what it is written before was not done: left out.
    """
    try:
        lines = contents(path).decode("utf-8").split("\n")
        return [line_class.model_validate_json(line) for line in lines if _is_whole(line)]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{path} has a line that is damaged ({reason(error)}); delete that line.") from None


def _is_whole(line: str) -> bool:
    return bool(line.strip()) and not (line[0] == "{" and line[-1] != "}")
