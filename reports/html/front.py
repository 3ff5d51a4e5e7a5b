"""The front of the page as values: the verdict of each task in words, and the ❄/🔥 table with a row for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meltpoint.reports.findings import delta_row
from meltpoint.reports.formats import marks, p_text
from meltpoint.reports.results import SweepResults
from meltpoint.reports.statistics.comparison import ALPHA
from meltpoint.reports.table_values import Delta, EncoderBlock, TableEntry, TableRow
from meltpoint.sweeps.results.score_words import NOTHING
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tasks.core.counts import some


@dataclass(frozen=True)
class Finding:
    """A difference of the table in words.

    Attributes:
        words: the conclusion.
        encoder, title: of the difference: `minilm`, `Δ 🔥 − ❄`.
        figures: as in the table of differences of the other formats: `+8.2 [+6.5, +9.9], adjusted p 0.004`.
        is_claimed: True if the adjusted p-value allows to claim it.
    """

    words: str
    encoder: str
    title: str
    figures: str
    is_claimed: bool


@dataclass(frozen=True)
class Verdict:
    """The differences of one task.

    Attributes:
        findings: one for each difference of the table by the task's own metric.
        missing: why there are none; "" where there are.
    """

    task: str
    metric: str
    findings: tuple[Finding, ...]
    missing: str


@dataclass(frozen=True)
class FrontEntry:
    """An entry of the table: its text, the adjusted p-value of a difference, and its look."""

    text: str
    marks: str = ""
    p: str = ""
    is_best: bool = False
    is_paper: bool = False


@dataclass(frozen=True)
class FrontTable:
    """The table of one encoder, turned: a row for each task and metric, a column for each mode and difference."""

    encoder: str
    heads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[FrontEntry, ...]], ...]


def verdicts(results: SweepResults) -> list[Verdict]:
    """The verdict of every task of a sweep, in the order of its cells."""
    metrics = {cell.header.task: cell.header.metric for cell in results.summary.cells}
    found = []
    for task, metric in metrics.items():
        findings = tuple(_finding(delta) for delta in results.family if delta.task == task)
        found.append(Verdict(task, metric, findings, "" if findings else _missing(results.summary, task)))
    return found


def _finding(delta: Delta) -> Finding:
    encoder, _, title, value, interval, p, chance, words = delta_row(delta)
    parts = [value if interval == NOTHING else f"{value} {interval}"]
    parts += [f"adjusted p {p}"] * (p != NOTHING) + [f"P(A > B) {chance}"] * (chance != NOTHING)
    holm = delta.comparison.p_holm
    return Finding(words, encoder, title, ", ".join(parts), holm is not None and holm < ALPHA)


def _missing(summary: SweepSummary, task: str) -> str:
    cells = [cell for cell in summary.cells if cell.header.task == task]
    done = sum(cell.dev is not None for cell in cells)
    if len(cells) < 2:
        return "One mode was searched: there is nothing to compare."
    return f"No comparison yet: {done} of {some(len(cells), 'cell')} have finals."


def front_tables(results: SweepResults) -> list[FrontTable]:
    """The tables of all encoders."""
    return [_table(block, results.table.deltas) for block in results.table.blocks]


def _table(block: EncoderBlock, deltas: Sequence[Delta]) -> FrontTable:
    columns = (*block.modes, *block.ensembles, *block.differences)
    p_values = {
        (delta.task, delta.comparison.metric, delta.title): p_text(delta.comparison.p_holm)
        for delta in deltas if delta.encoder == block.encoder and delta.comparison.p_holm is not None
    }  # fmt: skip
    rows = []
    for place, (task, metric) in enumerate(block.tasks):
        entries = (_entry(row, row.entries[place], p_values.get((task, metric, row.title), "")) for row in columns)
        rows.append((f"{task} ({metric})" if metric else task, tuple(entries)))
    return FrontTable(block.encoder, tuple((row.title, row.head) for row in columns), tuple(rows))


def _entry(row: TableRow, entry: TableEntry, p: str) -> FrontEntry:
    return FrontEntry(entry.label, marks(entry.notes), p, entry.is_best, row.is_paper and entry.split is not None)
