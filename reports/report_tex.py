"""A sweep's ❄/🔥 table for a paper: `report.tex`, one `table` an encoder."""

from __future__ import annotations

import re

from meltpoint.reports.ensembles import ENSEMBLE_NOTE
from meltpoint.reports.latex import booktabs, latex_text
from meltpoint.reports.matrix import BOLD_NOTE, DIFFERENCE_NOTE, SPREAD_NOTE, Block, Row, Shown
from meltpoint.reports.paper_comparison import set_beside
from meltpoint.sweeps.results.summary import SweepSummary


def latex(summary: SweepSummary, beside: str | None = None) -> str:
    """The ❄/🔥 table, whatever has finished so far; the footnotes' numbers are explained in comments below.

    Raises:
        ValueError: nobody knows the paper's table that is to stand beside.
    """
    both = set_beside(summary, beside)
    footnotes = [f"{number}: {text}" for number, text in enumerate(both.table.footnotes, 1)]
    legend = [SPREAD_NOTE, DIFFERENCE_NOTE, BOLD_NOTE, *([ENSEMBLE_NOTE] if summary.ensembles else [])]
    notes = [*footnotes, *both.notes, *legend]
    head = "% \\usepackage{booktabs}\n"
    return head + "\n".join(_table(block, summary, notes) for block in both.table.blocks)


def _table(block: Block, summary: SweepSummary, notes: list[str]) -> str:
    heads = ["mode", "head", *(f"{task} ({metric})" if metric else task for task, metric in block.tasks)]
    parts = [[_row(row) for row in rows] for rows in (block.modes, block.ensembles, block.differences)]
    state = "" if summary.state == "done" else f" ({summary.state})"
    caption = f"Sweep {summary.name}{state}: {block.encoder}."
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{summary.name}-{block.encoder}").strip("-")
    return booktabs("ll" + "r" * len(block.tasks), [latex_text(head) for head in heads], parts, caption, label, notes)


def _row(row: Row) -> list[str]:
    return [latex_text(row.title), latex_text(row.head), *(_shown(shown, row.is_paper) for shown in row.shown)]


def _shown(shown: Shown, is_paper: bool) -> str:
    text = latex_text(shown.label)
    around = r"\textbf" if shown.is_best else r"\textit" if is_paper and shown.split else ""
    marks = ",".join(map(str, shown.notes))
    return (f"{around}{{{text}}}" if around else text) + (rf"\textsuperscript{{{marks}}}" if marks else "")
