"""Test rounds: the search of a closed cell begins again only in a new round, which the ledger records and tables name.

A cell is closed once its test split was opened. Whoever searches it on chooses with the test score known, so that the
score is no longer one of unseen data; a recorded round says so to every reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.log_lines import LAST_MOMENT, read_lines
from meltpoint.sweeps.ledger.records import CellKey


class ReopenedCell(BaseModel):
    """A cell whose search a round has begun again.

    Attributes:
        key: the cell's.
        scored: ids of its finals whose test split was opened before.
        planned: number of search trials up to which the round goes; further ones need another round.
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
        cells: those that it has begun again.
    """

    __test__ = False  # no class of tests
    model_config = ConfigDict(frozen=True)

    round: int = Field(ge=2)
    began_at: float = Field(ge=0, le=LAST_MOMENT)
    cells: tuple[ReopenedCell, ...]


@dataclass(frozen=True)
class TestRounds:
    """What the log of a sweep's test rounds says, by cell.

    Attributes:
        later: the rounds after the first.
        last: cell → how its last round found it; cells without one are in their first round.
        counts: cell → the number of its rounds.
    """

    __test__ = False
    later: tuple[TestRound, ...] = ()
    last: Mapping[CellKey, ReopenedCell] = field(default_factory=dict)
    counts: Mapping[CellKey, int] = field(default_factory=dict)

    @classmethod
    def of(cls, later: Iterable[TestRound]) -> TestRounds:
        """The rounds of a log's lines."""
        known, last, counts = tuple(later), dict[CellKey, ReopenedCell](), dict[CellKey, int]()
        for one in known:
            for cell in one.cells:
                last[cell.key] = cell
                counts[cell.key] = counts.get(cell.key, 1) + 1
        return cls(known, last, counts)

    @property
    def count_all(self) -> int:
        """How many rounds there were, the first one included."""
        return 1 + len(self.later)

    def count(self, key: CellKey) -> int:
        """The number of a cell's rounds, from 1."""
        return self.counts.get(key, 1)


FIRST_ROUND = TestRounds()


def read_rounds(ledger: Ledger) -> TestRounds:
    """The rounds of a sweep.

    Raises:
        ValueError: a line of the log is damaged.
    """
    return TestRounds.of(read_lines(ledger.test_rounds, TestRound))


def next_round(ledger: Ledger, cells: Iterable[ReopenedCell]) -> TestRound:
    """The round that begins these cells again, now; nothing is recorded yet."""
    return TestRound(round=read_rounds(ledger).count_all + 1, began_at=time.time(), cells=tuple(cells))


def record_round(ledger: Ledger, begun: TestRound) -> None:
    """Add a round to the log."""
    ledger.append(ledger.test_rounds, begun.model_dump(mode="json"))
