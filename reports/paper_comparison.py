"""A paper's numbers beside ours: rows of the ❄/🔥 table that are marked as the paper's, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meltpoint.reports.differences import Pair, Side, pair_title, side_title
from meltpoint.reports.formats import signed
from meltpoint.reports.matrix import Block, Matrix, Row, Shown, matrix, numbered
from meltpoint.reports.paper_tables import PaperDifference, PaperRow, PaperTable, read, shipped
from meltpoint.sweeps.results.summary import CellHeader, SweepSummary
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

MARK = "↳ paper"
QUOTED = "quoted"


@dataclass(frozen=True)
class Beside:
    """A sweep's table with a paper's numbers in it.

    Attributes:
        table: the rows of both.
        notes: what has to be said of the paper's numbers; empty where there are none.
    """

    table: Matrix
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperScore:
    """A paper's number for one cell: a fraction, its split, where it stands, and whom the paper quotes, if anybody."""

    score: float
    split: str
    source: str
    quoted: str


def table_of(spec: SweepSpec, name: str | None = None) -> PaperTable | None:
    """The table to set beside a sweep: the one that is asked for, or the one of its specification file; else None.

    Raises:
        ValueError: nobody knows the name that is asked for.
    """
    if name is None:
        return read(spec.origin) if spec.origin in shipped() else None
    return read(name)


def family(spec: SweepSpec, encoder: str) -> str:
    """The paper's word for an encoder: the one that it stands for, without a folder behind it."""
    return spec.stands_for(encoder).partition(":")[0]


def set_beside(summary: SweepSummary, name: str | None = None) -> Beside:
    """The ❄/🔥 table of a sweep, with a paper's numbers where its specification or the caller names one.

    Raises:
        ValueError: nobody knows the name that is asked for.
    """
    paper = table_of(summary.spec, name)
    if paper is None:
        return Beside(matrix(summary))
    own = matrix(summary, paper.split, [row.pair for row in paper.differences])
    footnotes = {text: number for number, text in enumerate(own.footnotes, 1)}
    blocks = [_joined(block, family(summary.spec, block.encoder), paper, footnotes) for block in own.blocks]
    there = {family(summary.spec, block.encoder) for block in own.blocks}
    blocks += [_alone(word, paper, footnotes) for word in paper.encoders() if word not in there]
    return Beside(Matrix(tuple(blocks), tuple(footnotes)), tuple(_notes(summary, paper)))


def paper_score(spec: SweepSpec, header: CellHeader, paper: PaperTable | None) -> PaperScore | None:
    """What a paper has for a cell; None where it has nothing."""
    if paper is None:
        return None
    sides = (row for row in paper.rows if row.encoder == family(spec, header.encoder))
    row = next((row for row in sides if (row.mode, row.variant) == (header.mode, header.variant)), None)
    column = paper.column(header.task)
    if row is None or column not in row.scores:
        return None
    source = f"{paper.paper}, {paper.table}"
    return PaperScore(round(row.scores[column] / 100, 6), paper.split, source, row.quoted.get(column, ""))


def _joined(block: Block, word: str, paper: PaperTable, footnotes: dict[str, int]) -> Block:
    """An encoder's block with the paper's row below each of ours, and behind them those that we have not."""
    columns = [paper.column(task) for task, _ in block.tasks]

    def interleaved(ours: Sequence[Row], theirs: Sequence[PaperRow | PaperDifference]) -> tuple[Row, ...]:
        found: list[Row] = []
        left = {_of(row): row for row in theirs if row.encoder == word}
        for own in ours:
            found.append(own)
            found += _paper_rows(left.pop(own.of, None), MARK, columns, paper)
        for row in left.values():
            found += _paper_rows(row, f"{MARK}: {_title(row)}", columns, paper)
        return tuple(numbered(row, footnotes) for row in found)

    modes, gaps = interleaved(block.modes, paper.rows), interleaved(block.differences, paper.differences)
    return replace(block, modes=modes, differences=gaps)


def _alone(word: str, paper: PaperTable, footnotes: dict[str, int]) -> Block:
    """The paper's rows of an encoder that the sweep has not."""
    rows = [row for row in paper.rows if row.encoder == word]
    gaps = [row for row in paper.differences if row.encoder == word]
    every: list[PaperRow | PaperDifference] = [*rows, *gaps]
    columns = [name for name in paper.columns if any(name in row.scores for row in every)]

    def made(own: Sequence[PaperRow | PaperDifference]) -> tuple[Row, ...]:
        found = (_paper_rows(row, f"{MARK}: {_title(row)}", columns, paper) for row in own)
        return tuple(numbered(one, footnotes) for rows in found for one in rows)

    return Block(f"{word}, not in this sweep", tuple((name, "") for name in columns), made(rows), made(gaps))


def _of(row: PaperRow | PaperDifference) -> Side | Pair | None:
    """What a paper's row is of: the row of ours that it belongs to has the same."""
    return row.side if isinstance(row, PaperRow) else row.pair


def _title(row: PaperRow | PaperDifference) -> str:
    return side_title(row.side) if isinstance(row, PaperRow) else pair_title(row.pair)


def _paper_rows(
    row: PaperRow | PaperDifference | None, title: str, columns: Sequence[str | None], paper: PaperTable
) -> list[Row]:
    """A paper's row as one of ours; none where it says nothing of these columns."""
    if row is None or not any(column in row.scores for column in columns):
        return []
    shown = tuple(_shown(row, column, paper) for column in columns)
    return [Row(title, "", shown, _of(row), is_paper=True)]


def _shown(row: PaperRow | PaperDifference, column: str | None, paper: PaperTable) -> Shown:
    if column is None or column not in row.scores:
        return Shown()
    score = row.scores[column]
    if isinstance(row, PaperDifference):
        return Shown(signed(f"{score:+.{_decimals(score)}f}"), paper.split, score / 100)
    text, owner = signed(f"{score:.{_decimals(score)}f}"), row.quoted.get(column)
    if owner is None:
        return Shown(text, paper.split, score / 100)
    return Shown(f"{text} {QUOTED}", paper.split, score / 100, (f"{paper.paper} quotes it from {owner}",))


def _decimals(score: float) -> int:
    """One decimal, as tables have; two where the paper prints two."""
    return 1 if round(score, 1) == score else 2


def _notes(summary: SweepSummary, paper: PaperTable) -> list[str]:
    found = [
        f"Rows marked {MARK} are not measured here: {paper.source}; on {paper.split}. `{QUOTED}` marks numbers that "
        "the paper itself took from elsewhere."
    ]
    found += [f"Of the paper's numbers: {note}." for note in paper.notes]
    for encoder in dict.fromkeys(cell.header.encoder for cell in summary.cells):
        word = summary.spec.stands_for(encoder)
        if word != encoder and word in paper.encoders() and encoder.partition(":")[0] != word:
            found.append(f"{encoder} stands for {word} here: the paper's numbers are of {word}, another encoder.")
    return found
