"""Published numbers with their sources: `papers/*.yaml`, one file per table of a paper."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.reports.differences import EnsembleOf, ModeVariant, RowPair
from meltpoint.search_spaces import documents
from meltpoint.tasks.core.registry import unknown

FOLDER = Path(__file__).resolve().parent / "papers"


class Strict(BaseModel):
    """An immutable model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperScores(Strict):
    """An encoder with its scores: column → number in percent points (correlations × 100)."""

    encoder: str
    scores: dict[str, float]


class PaperRow(PaperScores):
    """A row of scores.

    Attributes:
        mode, variant: the cells of the row; the variant is that of the specification file of the same name.
        quoted: column → the source of a number that the paper took from elsewhere.
    """

    mode: str
    variant: str = ""
    quoted: dict[str, str] = Field(default_factory=dict)

    @property
    def side(self) -> ModeVariant:
        """The corresponding row of our table."""
        return ModeVariant(self.mode, self.variant)


class PaperSide(Strict):
    """One side of a difference: a row."""

    mode: str
    variant: str = ""

    @property
    def key(self) -> ModeVariant:
        """The corresponding row of our table."""
        return ModeVariant(self.mode, self.variant)


class PaperEnsemble(Strict):
    """One side of a difference: the ensemble of these rows."""

    ensemble: tuple[PaperSide, ...] = Field(min_length=2)

    @property
    def key(self) -> EnsembleOf:
        """The corresponding ensemble of ours."""
        return EnsembleOf(frozenset(side.key for side in self.ensemble))


class PaperDifference(PaperScores):
    """A row of differences, `upper` minus `lower`, as the paper prints it; without scores where it prints none.

    Attributes:
        metric: the metric, if it is not each task's own metric.
    """

    scores: dict[str, float] = Field(default_factory=dict)
    upper: PaperSide | PaperEnsemble
    lower: PaperSide
    metric: str = ""

    @property
    def pair(self) -> RowPair:
        """The corresponding pair of rows of our table."""
        return RowPair(self.upper.key, self.lower.key, self.metric)


class PaperTable(Strict):
    """A table of a paper.

    Attributes:
        paper: its short name, such as `Peters, Ruder & Smith 2019`.
        table: the number of the table.
        title: the paper's title and place of publication.
        split: the split of the scores.
        columns: column → patterns of task names; `*` matches anything.
        notes: remarks on the numbers, one line each.
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
        """The column of a task, or None."""
        fitting = (name for name, patterns in self.columns.items() if any(fnmatchcase(task, one) for one in patterns))
        return next(fitting, None)

    def encoders(self) -> list[str]:
        """The encoders of the table."""
        rows: tuple[PaperScores, ...] = (*self.rows, *self.differences)
        return list(dict.fromkeys(row.encoder for row in rows))

    def gaps(self) -> list[PaperDifference]:
        """The differences; those that the paper does not print are those of its two rows, if it has both."""
        return [gap if gap.scores else gap.model_copy(update={"scores": self._gap(gap)}) for gap in self.differences]

    def _gap(self, gap: PaperDifference) -> dict[str, float]:
        of: dict[ModeVariant | EnsembleOf, dict[str, float]] = {
            row.side: row.scores for row in self.rows if row.encoder == gap.encoder
        }
        upper, lower = of.get(gap.upper.key, {}), of.get(gap.lower.key, {})
        return {column: round(upper[column] - lower[column], 2) for column in upper if column in lower}

    def row(self, encoder: str, side: ModeVariant) -> PaperRow | None:
        """The row of an encoder's mode and variant."""
        return next((row for row in self.rows if row.encoder == encoder and row.side == side), None)

    @property
    def source(self) -> str:
        """The reference to the table, in one line."""
        return f"{self.paper}, {self.table}: {self.title}"


def shipped() -> list[str]:
    """The names of the papers' tables."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> PaperTable:
    """Read a table by its name.

    Raises:
        ValueError: the name is unknown; close matches are listed.
    """
    if name not in shipped():
        raise unknown(name, "table of a paper", shipped())
    return PaperTable.model_validate(documents.read(FOLDER / f"{name}.yaml"))
