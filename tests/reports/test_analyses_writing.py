"""Tables as Markdown, CSV and LaTeX; figures whose bytes are equal for equal data."""

from __future__ import annotations

import csv
import io
import re
import struct
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.analyses.core.output import (
    COLOURS,
    DASHES,
    MARKERS,
    AnalysisTable,
    Column,
    Line,
    Panel,
    Score,
    draw,
    figures,
    in_rows,
    latex_text,
    points,
)

TABLE = AnalysisTable(
    "made_up", "50 % of a_b & c",
    (Column("task"), points("dev"), points("Δ", "+.1f"), figures("layer", "d"), Column("advice")),
    (("a|b_c", 0.8125, -0.011, 3, "use ❄"), ("x\ny", None, 0.0625, None, "❄ ≈ 🔥")),
    ("A note\nof two lines, 10 %.",),
)  # fmt: skip
LINES = (
    Line("pretrained", (1.0, 2.0, 4.0)), Line("fine-tuned", (2.0, 3.0, 9.0), (0.1, 0.2, 0.3)),
    Line("chance", (1.0,) * 3, is_reference=True),
)  # fmt: skip
ONE = [[Panel("one", "score", LINES)]]
ROWS = [[*ONE[0], Panel("two", "score", LINES[:1])], [Panel("three", "bits", LINES[1:], (0.0, 1.0))]]


def test_every_markdown_row_is_whole_and_figures_are_set_to_the_right():
    title, table, notes = TABLE.markdown().split("\n\n")
    lines = table.split("\n")
    assert title == "# 50 % of a_b & c"
    assert lines[1] == "| --- | ---: | ---: | ---: | --- |"
    assert lines[2] == "| a\\|b_c | 81.2 | −1.1 | 3 | use ❄ |"
    assert lines[3] == "| x y | – | +6.2 | – | ❄ ≈ 🔥 |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6}
    assert notes == "- A note of two lines, 10 %.\n"


def test_the_csv_holds_the_values_themselves():
    rows = list(csv.reader(io.StringIO(TABLE.comma_separated(), newline="")))
    assert rows[0] == ["task", "dev", "Δ", "layer", "advice"]
    assert rows[1] == ["a|b_c", "0.8125", "-0.011", "3", "use ❄"]
    assert rows[2] == ["x\ny", "", "0.0625", "", "❄ ≈ 🔥"]


def test_an_error_is_shown_in_its_own_unit_beside_fractions_in_points():
    rows = tuple(Score.each((score, difference), metric) for metric, score, difference in (
        ("mse", 0.4126, -0.021), ("pearson", 0.4126, -0.021), ("mae", None, 0.5),
    ))  # fmt: skip
    table = AnalysisTable("t", "t", (points("dev"), points("Δ", "+.1f")), rows)
    assert table.texts() == [["0.413", "−0.021"], ["41.3", "−2.1"], ["–", "+0.500"]]
    assert table.comma_separated().splitlines()[1:] == ["0.4126,-0.021", "0.4126,-0.021", ",0.5"]


def test_the_latex_is_a_table_whose_text_holds_no_command():
    text = TABLE.latex()
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().split("\n")
    assert body[0] == r"a|b\_c & 81.2 & $-$1.1 & 3 & use frozen \\"
    assert body[1] == r"x y & -- & +6.2 & -- & frozen $\approx$ tuned \\"
    assert r"\begin{tabular}{lrrrl}" in text
    assert r"\caption{50 \% of a\_b \& c}" in text
    assert r"\label{tab:made_up}" in text
    assert text.rstrip().split("\n")[-1] == "% A note of two lines, 10 %."
    assert text.count(r"\begin") == text.count(r"\end") == 2


@pytest.mark.parametrize("sign", list("&%$#_{}~^\\"))
def test_every_sign_of_latex_is_escaped(sign):
    escaped = latex_text(f"a{sign}b")
    assert escaped not in (f"a{sign}b", "ab")
    assert escaped.startswith("a\\")
    assert escaped.endswith("b")


def test_a_row_of_another_width_is_a_mistake_of_the_analysis():
    with pytest.raises(AssertionError, match="another width"):
        AnalysisTable("t", "t", (Column("a"),), ((1, 2),))


def test_the_same_numbers_give_the_same_bytes():
    drawn = draw(ONE, "svg")
    assert draw(ONE, "svg") == drawn
    assert draw([[Panel("one", "score", (Line("pretrained", (1.0, 2.0, 4.5)), *LINES[1:]))]], "svg") != drawn


def test_a_row_has_at_most_four_panels_and_none_is_lost():
    panels = [Panel(str(number), "y", LINES) for number in range(9)]
    assert [len(row) for row in in_rows(panels)] == [4, 4, 1]
    assert [panel for row in in_rows(panels) for panel in row] == panels


def test_the_svg_is_one_with_every_line_in_its_own_colour():
    drawn = ET.fromstring(draw(ONE, "svg"))
    text = ET.tostring(drawn, encoding="unicode")
    assert drawn.tag.endswith("svg")
    assert all(colour.lower() in text.lower() for colour in COLOURS[:2])
    assert not re.search(r"\d{4}-\d\d-\d\dT", text)  # a date would differ between runs


def test_the_png_is_large_enough_for_print():
    drawn = draw(ROWS, "png")
    width, height = struct.unpack(">II", drawn[16:24])
    assert drawn.startswith(b"\x89PNG\r\n")
    assert width >= 2 * 3.2 * 200
    assert height >= 2 * 2.5 * 200


def test_five_lines_are_told_apart_without_colour():
    assert len(set(MARKERS)) == len(set(map(str, DASHES))) == len(set(COLOURS)) == 5


@pytest.mark.parametrize(
    ("asked", "option", "said"),
    [
        ("cost,guidelines", ["--corpus", "x.txt"], "--corpus has no part in cost, guidelines; leave it out"),
        ("", [], "Name an analysis: cost, diagnostic_classifiers, "),
    ],
)
def test_an_option_that_no_asked_analysis_reads_is_refused(tmp_path, asked, option, said):
    result = CliRunner().invoke(app, ["analyse", "-", asked, "--storage", str(tmp_path), *option])
    assert result.exit_code == 2
    assert said in result.stderr
