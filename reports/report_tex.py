"""A sweep's ❄/🔥 table for a paper: `report.tex`, one `table` per encoder."""

from __future__ import annotations

import re

from meltpoint.reports.ensembles import ENSEMBLE_NOTE
from meltpoint.reports.latex import booktabs, latex_text
from meltpoint.reports.matrix import BOLD_NOTE, DIFFERENCE_NOTE, SPREAD_NOTE, EncoderBlock, TableEntry, TableRow
from meltpoint.reports.paper_comparison import with_paper_numbers
from meltpoint.sweeps.results.summary import SweepSummary


def latex(summary: SweepSummary, beside: str | None = None) -> str:
    """The ❄/🔥 table, also while the sweep is running; the footnotes are comments below each table.

    Raises:
        ValueError: the paper's table is unknown.
    """
    comparison = with_paper_numbers(summary, beside)
    footnotes = [f"{number}: {text}" for number, text in enumerate(comparison.table.footnotes, 1)]
    legend = [SPREAD_NOTE, DIFFERENCE_NOTE, BOLD_NOTE, *([ENSEMBLE_NOTE] if summary.ensembles else [])]
    notes = [*footnotes, *comparison.notes, *legend]
    head = "% \\usepackage{booktabs}\n"
    return head + "\n".join(_table(block, summary, notes) for block in comparison.table.blocks)


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
    around = r"\textbf" if shown.is_best else r"\textit" if is_paper and shown.split else ""
    marks = ",".join(map(str, shown.notes))
    return (f"{around}{{{text}}}" if around else text) + (rf"\textsuperscript{{{marks}}}" if marks else "")
