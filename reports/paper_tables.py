"""The papers' numbers, as data with their source: `papers/*.yaml`, one file a table."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.reports.differences import Pair, Side
from meltpoint.search_spaces import documents
from meltpoint.tasks.core.registry import unknown

FOLDER = Path(__file__).resolve().parent / "papers"


class Strict(BaseModel):
    """A value that never changes and takes no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Scores(Strict):
    """What every row has: the encoder that it is of, and column → number, in percent points; correlations × 100."""

    encoder: str
    scores: dict[str, float]


class PaperRow(Scores):
    """A row of scores.

    Attributes:
        mode, variant: what it is of; the variant is the one of the specification file of the same name.
        quoted: column → whose number it is, where the paper took it from elsewhere.
    """

    mode: str
    variant: str = ""
    quoted: dict[str, str] = Field(default_factory=dict)

    @property
    def side(self) -> Side:
        """The row of ours that it belongs to."""
        return Side(self.mode, self.variant)


class PaperSide(Strict):
    """One side of a difference."""

    mode: str
    variant: str = ""


class PaperDifference(Scores):
    """A row of differences, `upper` minus `lower`, as the paper prints it.

    Attributes:
        metric: of what, where it is not each task's own metric.
    """

    upper: PaperSide
    lower: PaperSide
    metric: str = ""

    @property
    def pair(self) -> Pair:
        """The pair of our rows that it belongs to."""
        upper, lower = (Side(side.mode, side.variant) for side in (self.upper, self.lower))
        return Pair(upper, lower, self.metric)


class PaperTable(Strict):
    """A table of a paper.

    Attributes:
        paper: its short name, as `Peters, Ruder & Smith 2019`.
        table: which of its tables.
        title: the paper's title, and where it is.
        split: what its scores are of.
        columns: column → the tasks that it stands for; `*` stands for anything in a task's name.
        notes: what has to be said of the numbers, a line each.
    """

    paper: str
    table: str
    title: str
    split: Literal["dev", "test"]
    columns: dict[str, tuple[str, ...]]
    rows: tuple[PaperRow, ...] = ()
    differences: tuple[PaperDifference, ...] = ()
    notes: tuple[str, ...] = ()

    def column(self, task: str) -> str | None:
        """The column that a task belongs to; None where there is none."""
        fitting = (name for name, own in self.columns.items() if any(fnmatchcase(task, pattern) for pattern in own))
        return next(fitting, None)

    def encoders(self) -> list[str]:
        """The encoders that it has numbers of."""
        rows: tuple[Scores, ...] = (*self.rows, *self.differences)
        return list(dict.fromkeys(row.encoder for row in rows))

    def row(self, encoder: str, side: Side) -> PaperRow | None:
        """The row of an encoder's mode and variant."""
        return next((row for row in self.rows if row.encoder == encoder and row.side == side), None)

    @property
    def source(self) -> str:
        """Where the numbers stand, in one line."""
        return f"{self.paper}, {self.table}: {self.title}"


def shipped() -> list[str]:
    """The names of the papers' tables."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> PaperTable:
    """A table by its name.

    Raises:
        ValueError: nobody knows the name; near misses are named.
    """
    if name not in shipped():
        raise unknown(name, "table of a paper", shipped())
    return PaperTable.model_validate(documents.read(FOLDER / f"{name}.yaml"))
