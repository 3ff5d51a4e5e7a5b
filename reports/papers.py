"""Comparison with the papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field

from meltpoint.reports.formats import QUOTED, signed
from meltpoint.reports.matrix import matrix
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.reports.table_values import (
    EncoderBlock,
    EnsembleOf,
    Matrix,
    ModeVariant,
    RowPair,
    TableEntry,
    TableRow,
    own_columns,
)
from meltpoint.search_spaces import documents
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.user_layout import Strict

MARK = "↳ paper"
RELEASED = {"elmo": 1024, "skipthoughts": 4800}
"""State size of the encoders that are named by their folders, as released: 512 each way (Peters et al. 2018, section
3.4), combine-skip (Kiros et al. 2015, section 3)."""


def paper_table_of(spec: SweepSpec, name: str | None = None) -> PaperTable | None:
    """The paper's table to compare a sweep with: the named table, the table of its specification file, or None.

    Raises:
        ValueError: the name is unknown.
    """
    if name is None:
        return read(spec.origin) if spec.origin in shipped() else None
    return read(name)


def paper_encoder(spec: SweepSpec, header: CellHeader) -> str:
    """The paper's name of a cell's encoder, or of the encoder it stands for, without a folder; "" for a toy."""
    name = spec.stands_for(header.encoder).partition(":")[0]
    return "" if header.encoder_size and RELEASED.get(name, header.encoder_size) != header.encoder_size else name


def with_paper_numbers(
    summary: SweepSummary, paper: PaperTable | None, comparer: Comparer
) -> tuple[Matrix, tuple[str, ...]]:
    """The ❄/🔥 table of a sweep, with a paper's numbers if there are any, and remarks on these numbers.

    Args:
        comparer: as for `matrix`.
    """
    if paper is None:
        return matrix(summary, comparer=comparer), ()
    measured = matrix(summary, paper.split, [row.of for row in paper.differences], comparer)
    names = {cell.header.encoder: paper_encoder(summary.spec, cell.header) for cell in summary.cells}
    of_block = [names.get(block.encoder, block.encoder) for block in measured.blocks]  # some blocks hold only ensembles
    pairs = zip(measured.blocks, of_block, strict=True)
    table = Matrix.of([_joined(block, own, paper) for block, own in pairs], measured.deltas)
    return table, tuple(_notes(summary, paper))


def _joined(block: EncoderBlock, encoder: str, paper: PaperTable) -> EncoderBlock:
    """An encoder's block with the paper's row below each measured row."""
    firsts = zip(block.tasks, own_columns(block.tasks), strict=True)
    columns = [paper.column(task) if is_own else None for (task, _), is_own in firsts]

    def interleaved(ours: Sequence[TableRow], theirs: Sequence[PaperRow | PaperDifference]) -> tuple[TableRow, ...]:
        rows: list[TableRow] = []
        published = {row.of: row for row in theirs if row.encoder == encoder}
        for measured in ours:
            rows.append(measured)
            row = published.get(measured.of) if measured.of else None
            if row is not None and any(column in row.scores for column in columns):
                rows.append(
                    TableRow(MARK, "", tuple(_shown(row, name, paper) for name in columns), row.of, is_paper=True)
                )
        return tuple(rows)

    modes, gaps = interleaved(block.modes, paper.rows), interleaved(block.differences, paper.gaps())
    return replace(block, modes=modes, differences=gaps)


def _shown(row: PaperRow | PaperDifference, column: str | None, paper: PaperTable) -> TableEntry:
    if column is None or column not in row.scores:
        return TableEntry()
    score = row.scores[column]
    if isinstance(row, PaperDifference):
        return TableEntry(signed(f"{score:+.{_decimals(score)}f}"), paper.split, score / 100)
    text, quoted = signed(f"{score:.{_decimals(score)}f}"), row.quoted.get(column)
    if quoted is None:
        return TableEntry(text, paper.split, score / 100)
    return TableEntry(f"{text} {QUOTED}", paper.split, score / 100, (f"{paper.paper} quotes it from {quoted}",))


def _decimals(score: float) -> int:
    """The decimals of a paper's number: two if it has two, else one as in our tables."""
    return 1 if round(score, 1) == score else 2


def _notes(summary: SweepSummary, paper: PaperTable) -> list[str]:
    notes = [
        f"Rows marked {MARK} are not measured here: {paper.paper}, {paper.table}: {paper.title}; on {paper.split}. "
        f"`{QUOTED}` marks numbers that the paper itself took from elsewhere."
    ]
    notes += [f"On the paper's numbers: {note}." for note in paper.notes]
    known = {row.encoder for row in (*paper.rows, *paper.differences)}
    for encoder, header in {cell.header.encoder: cell.header for cell in summary.cells}.items():
        original = summary.spec.stands_for(encoder)
        if not paper_encoder(summary.spec, header):
            name = original.partition(":")[0]
            notes.append(
                f"{encoder} is not the paper's {name}: its states have {header.encoder_size} numbers, not "
                f"{RELEASED[name]}."
            )
        elif original != encoder and original in known and encoder.partition(":")[0] != original:
            notes.append(
                f"{encoder} stands for {original} here: the paper's numbers are from {original}, another encoder."
            )
    return notes


FOLDER = Path(__file__).resolve().parent / "papers"


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
    def of(self) -> ModeVariant:
        """The corresponding row of our table."""
        return ModeVariant(self.mode, self.variant)


class PaperEnsemble(Strict):
    """One side of a difference: the ensemble of these rows."""

    ensemble: tuple[ModeVariant, ...] = Field(min_length=2)


class PaperDifference(PaperScores):
    """A row of differences, `upper` minus `lower`, as the paper prints it; without scores if it prints none.

    Attributes:
        metric: the metric, if it is not each task's own metric.
    """

    scores: dict[str, float] = Field(default_factory=dict)
    upper: ModeVariant | PaperEnsemble
    lower: ModeVariant
    metric: str = ""

    @property
    def of(self) -> RowPair:
        """The corresponding pair of rows of our table."""
        if isinstance(self.upper, PaperEnsemble):
            return RowPair(EnsembleOf(frozenset(self.upper.ensemble)), self.lower, self.metric)
        return RowPair(self.upper, self.lower, self.metric)


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

    def gaps(self) -> list[PaperDifference]:
        """The differences; unprinted ones are computed from the paper's two rows, if it has both."""
        return [gap if gap.scores else gap.model_copy(update={"scores": self._gap(gap)}) for gap in self.differences]

    def _gap(self, gap: PaperDifference) -> dict[str, float]:
        of: dict[object, dict[str, float]] = {row.of: row.scores for row in self.rows if row.encoder == gap.encoder}
        upper, lower = of.get(gap.of.upper, {}), of.get(gap.of.lower, {})
        return {column: round(upper[column] - lower[column], 2) for column in upper if column in lower}


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
