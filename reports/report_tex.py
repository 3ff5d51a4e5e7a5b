"""A sweep's ❄/🔥 table for a paper: `report.tex`, one `table` per encoder."""

from __future__ import annotations

import re

from meltpoint.reports.findings import advice_lines, delta_lines, gain_lines
from meltpoint.reports.latex import booktabs, latex_text
from meltpoint.reports.results import SweepResults
from meltpoint.reports.table_values import EncoderBlock, TableEntry, TableRow
from meltpoint.sweeps.results.summary import SweepSummary


def latex(results: SweepResults) -> str:
    """The ❄/🔥 table, also while the sweep is running; footnotes and conclusions are comments below each table."""
    footnotes = [f"{number}: {text}" for number, text in enumerate(results.table.footnotes, 1)]
    notes = [
        *advice_lines(results.recommendations),
        *footnotes,
        *delta_lines(results),
        *gain_lines(results),
        *results.legend,
    ]
    head = "% \\usepackage{booktabs}\n"
    return head + "\n".join(_table(block, results.summary, notes) for block in results.table.blocks)


def _table(block: EncoderBlock, summary: SweepSummary, notes: list[str]) -> str:
    heads = ["mode", "head", *(f"{task} ({metric})" if metric else task for task, metric in block.tasks)]
    parts = [[_row(row) for row in rows] for rows in (block.modes, block.ensembles, block.differences)]
    state = "" if summary.state == "done" else f" ({summary.state})"
    caption = f"Sweep {summary.name}{state}: {block.encoder}."
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{summary.name}-{block.encoder}").strip("-")
    return booktabs("ll" + "r" * len(block.tasks), [latex_text(head) for head in heads], parts, caption, label, notes)


def _row(row: TableRow) -> list[str]:
    return [latex_text(row.title), latex_text(row.head), *(_shown(shown, row.is_paper) for shown in row.entries)]


def _shown(shown: TableEntry, is_paper: bool) -> str:
    text = latex_text(shown.label)
    around = r"\textit" if is_paper and shown.split else ""
    marks = ",".join(map(str, shown.notes))
    return (f"{around}{{{text}}}" if around else text) + (rf"\textsuperscript{{{marks}}}" if marks else "")
