"""The report as LaTeX: it has every number of the table, and user text is not interpreted as markup."""

from __future__ import annotations

import re

import pytest

from meltpoint.reports.formats import booktabs, latex_text
from meltpoint.reports.report import report
from meltpoint.sweeps.results.summary import SweepSummary

ICE, FIRE, BOTH = "feature_extraction", "fine_tuning", "stack_and_finetune"


@pytest.fixture
def summary(make_cell, make_sweep) -> SweepSummary:
    cells = [
        make_cell(ICE, "sst2", finals=[(0.8, 0.81), (0.8, 0.83)], head="bcn"),
        make_cell(FIRE, "sst2", finals=[(0.9, 0.91), (0.9, 0.89)]),
        make_cell(BOTH, "sst2", finals=[(0.9, "hidden"), (0.88, "hidden")], notes=("test labels hidden",)),
        make_cell(ICE, "a_task", finals=[(0.7, 0.7), (0.7, 0.7)], notes=("a <b>note</b> & 50 % more",)),
    ]
    return make_sweep(*cells)


def test_the_latex_table_has_a_line_a_row_and_as_many_cells_as_columns(summary):
    text = report(summary, "tex")
    (table,) = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL)
    sides = re.search(r"\\begin\{tabular\}\{(\w+)\}", table).group(1)
    lines = [line for line in table.split("\n") if line.endswith(r"\\")]
    assert sides == "llrr"
    assert len(lines) == 1 + 3 + 3, "heads, modes, differences"
    assert all(len(re.split(r"(?<!\\)&", line)) == len(sides) for line in lines)
    assert table.count(r"\midrule") == 2
    assert r"\textbf{90.0 $\pm$ 1.4}" not in table, "no leader where one cell shows dev"
    assert r"frozen feature\_extraction & bcn" in table
    assert r"frozen + tuned stack\_and\_finetune" in table
    assert r"dev 89.0 $\pm$ 1.4\textsuperscript{" in table
    assert r"a\_task (accuracy)" in table
    assert re.search(r"^% \d: the test labels are hidden; dev is shown$", text, re.MULTILINE)


def test_nothing_is_left_in_latex_that_it_would_read_otherwise():
    every = r"\&%$#_{}~^−–±Δ≈×<>❄🔥↳"
    written = latex_text(every)
    assert written.isascii()
    assert not re.search(r"(?<!\\)[&%#_]", written)
    assert booktabs("l", ["a"], [[["b"]], []], "50 %", "x", ["a\nnote"]).endswith("% a note\n")


def test_every_format_of_the_command_line_is_made(summary):
    from meltpoint.sweeps.command_line.options import TableFormat

    assert all(report(summary, form.value) for form in TableFormat)
