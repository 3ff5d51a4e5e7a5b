"""report.md and report.csv: they have the values of the summary, complete tables, and all notes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meltpoint.reports.report import COLUMNS
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tests.reports.stored_sweeps import read_csv, render

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


@pytest.fixture
def mixed(make_cell, make_sweep) -> SweepSummary:
    """Three modes × two tasks: test scores, hidden labels, a cell whose trials all failed, awkward text."""
    done = [make_cell(mode, finals=[(0.8, 0.79), (0.8, 0.81)], input_notes=("train: 3 cut",)) for mode in MODES]
    hidden = [make_cell(mode, "mnli", finals=[(0.7, "hidden")], notes=("test labels hidden",)) for mode in MODES[:2]]
    broken = make_cell(MODES[2], "mnli", search=(), failed=['ValueError: "a | b",\nc'], notes=("test labels hidden",))
    return make_sweep(*done, *hidden, broken, state="failed", overrides=("epochs=3",), space="/a/b/mine.yaml")


def tables(text: str) -> list[list[str]]:
    """The lines of every Markdown table."""
    runs = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [run.splitlines() for run in runs]


def columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def test_every_row_of_every_markdown_table_has_as_many_columns_as_its_head(mixed, make_cell, make_sweep):
    blocks = tables(render(mixed)["report.md"])
    odd = make_cell(task="a|b", encoder="hf:x\n|y", finals=[(0.8, 0.8)], setting={"learning_rate": 0.1})
    # each with 2 head lines: 3 modes and 3 differences; 4 of the differences have a value; 6 cells; their costs
    assert [len(lines) for lines in blocks] == [8, 6, 8, 8]
    for lines in (*blocks, *tables(render(make_sweep(odd))["report.md"])):
        assert {columns(line) for line in lines} == {columns(lines[0])}


def test_the_matrix_shows_modes_by_tasks_with_a_footnote_for_every_mark(mixed: SweepSummary) -> None:
    text = render(mixed)["report.md"]
    head, _, ice, fire, stack, first, _, second = tables(text)[0]
    assert head == "| mode | head | sst2 (accuracy) | mnli (accuracy) |"
    assert ice == "| ❄ feature_extraction | linear | ★ 80.0 ± 1.4 | ★ dev 70.0¹,² |"
    assert fire.startswith("| 🔥 fine_tuning | linear |")
    assert stack == "| ❄🔥 stack_and_finetune | linear | 80.0 ± 1.4 | –³ |"
    assert first == "| Δ 🔥 − ❄ |  | 0.0 ± 1.4⁴ | dev 0.0⁴ |"
    assert second == "| Δ ❄🔥 − 🔥 |  | 0.0 ± 1.4⁴ | – |"
    for said in (
        "¹ the test labels are hidden; dev is shown.", "² 1 of 2 seeds finished.", "³ every trial failed.",
        "⁴ no interval: no stored predictions; a ± is the standard error over seeds", "sqrt(s1²/n1 + s2²/n2)",
        "★ marks the recommended mode",
    ):  # fmt: skip
        assert said in text, said
    cells = text.partition("## Cells")[2].partition("## Notes")[0]
    assert "learning_rate 4.25e-5, dropout 0.1, epochs 3 |" in cells
    assert "weight_decay" not in cells, "only what is searched"


def test_the_notes_state_data_inputs_seeds_searcher_code_and_the_rule_of_selection(make_cell, make_sweep):
    carved = ("test = train[-1000:]", "1 000 of 6 920 training examples, seed 0")
    cut = ("train: 3 of 1000 examples cut to max_pieces = 128; --set max_pieces=256 reads more",)
    cells = [make_cell(mode, finals=[(0.8, 0.8)] * 2, notes=carved, input_notes=cut) for mode in MODES[:2]]
    summary = make_sweep(*cells, searcher="random", seed=7, overrides=("epochs=3",), space="/a/b/mine.yaml")
    text = render(summary)["report.md"].partition("## Notes")[2]
    for note in (
        "sst2: 6 920 training and 872 dev examples; test = train[-1000:]; 1 000 of 6 920 training examples, seed 0",
        f"Inputs of sst2, minilm (❄, 🔥): {cut[0]}.",
        "random, 4 trials planned per cell, seed 7",
        "seeds 0, 1; 2 planned per cell",
        "epochs=3",
        "mine.yaml",
        "Test CPU (cpu, 1 thread, bf16)",
        "meltpoint 0.1.0+abc",
        "the best epoch of a trial by dev, the earliest among equals",
    ):
        assert note in text, note
    assert text.count("Data of sst2") == 1
    assert "/a/b" not in text


def test_the_csv_parses_back_to_the_summarys_own_numbers(mixed: SweepSummary) -> None:
    text = render(mixed)["report.csv"]
    rows = read_csv(text)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(mixed.cells)
    for row, cell in zip(rows, mixed.cells, strict=True):
        assert None not in row
        assert (row["encoder"], row["mode"], row["task"]) == cell.header.key
        assert row["dev_mean"] == ("" if cell.dev is None else repr(cell.dev.mean))
        assert row["test_std"] == ("" if cell.test is None or cell.test.std is None else repr(cell.test.std))
        assert float(row["train_seconds"]) == cell.seconds
        assert {word: int(row[f"trials_{word}"]) for word in cell.counts} == cell.counts
        if cell.best is None:
            assert row["best_dev"] == row["best_trial"] == row["setting"] == ""
        else:
            assert float(row["best_dev"]) == cell.best.dev
            assert json.loads(row["setting"]) == cell.best.setting


def test_text_with_commas_quotes_and_line_breaks_survives_the_csv(make_cell, make_sweep) -> None:
    cell = make_cell(task='a,"b"\nc', notes=('1 000 of 2 000, "seed 0"',), finals=[(0.8, 0.8)])
    rows = read_csv(render(make_sweep(cell))["report.csv"])
    assert rows[0]["task"] == 'a,"b"\nc'
    assert rows[0]["notes"] == '1 000 of 2 000, "seed 0"'


def test_a_sweep_that_has_only_just_begun_can_be_reported(make_cell, make_sweep) -> None:
    cells = [make_cell(mode, search=(), planned=4) for mode in MODES]
    files = render(make_sweep(*cells, state="running"))
    assert set(files) == {"report.md", "report.csv", "report.json", "report.tex"}
    assert "State: running; 0 of 3 cells done; 0 s of training." in files["report.md"]
    assert "Finals: none yet; 2 planned per cell." in files["report.md"]


def test_the_guide_explains_every_column_of_the_csv_in_order(checkout: Path) -> None:
    guide = (checkout / "docs" / "tables.md").read_text(encoding="utf-8").partition("## `report.csv`")[2]
    rows = re.findall(r"^- (`[^:]*`):", guide, re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", " ".join(rows))) == COLUMNS
