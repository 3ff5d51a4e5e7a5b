"""Terminal tables: complete at 80 columns, plain when piped, user text not interpreted as markup."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from meltpoint.reports.console_tables import show_rows
from meltpoint.reports.results import results_of
from meltpoint.reports.screen import show_checks, show_outcome, show_plan, show_summary
from meltpoint.reports.status_view import show_status
from meltpoint.sweeps.command_line.listing import ROWS, inventory
from meltpoint.sweeps.driver.plan import PlannedCell, SweepPlan
from meltpoint.sweeps.driver.run import Outcome
from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.sweeps.machine.services import Check
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.search.locked_test import Closing, SplitOpening
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.space_rules import CellLength
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.stored_sweeps import render, store_sweep

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TASKS = ("demo_sentiment", "demo_entailment", "demo_similarity", "demo_entities")


LENGTHS = ("yahoo, minilm: max_pieces = 512 (the 99.5th percentile of 2 000 training examples): 7 are cut",)
LENGTH = CellLength(32, 32, "measured", 9, 0.0, 0.0, 32, 8.0, ())
RANGES = {"learning_rate": "log_uniform [1e-05, 0.0001]", "bilstm.hidden_size": "choice [9, 99]"}


def planned(mode: str, task: str, head: str = "bilstm_crf", encoder: str = "minilm", **changes: Any) -> PlannedCell:
    """A cell of a plan."""
    values = {
        "head_source": "a paper", "variant": "", "trials": 21, "finals": 5, "defaults": 0, "answered": 3,
        "estimated_seconds": 4800.0, "least_seconds": 4800.0, "length": LENGTH,
        "metric": "accuracy", "searcher": "tpe", "dev_examples": 872,
        "test_examples": None, "train_examples": 6920, "searched": RANGES,
    }  # fmt: skip
    return PlannedCell(encoder, mode, task, head, **(values | changes))


def plan_of(*cells: PlannedCell) -> SweepPlan:
    return SweepPlan(list(cells), 2, 4800.0, 4800.0, ["expect a factor of two either way"], LENGTHS)


def shown(show: Callable[..., None], what: object, width: int = 80, **options: bool) -> str:
    """The output to a pipe."""
    show(what, Console(file=(file := io.StringIO()), width=width, highlight=False), **options)
    return file.getvalue()


def widest(text: str) -> int:
    return max(cell_len(line.rstrip()) for line in text.splitlines())


@pytest.mark.parametrize(("count", "most"), [(1, 25), (4, 40)])
def test_a_sweep_ends_in_few_lines_whatever_it_has_to_say(count, most, make_cell, make_sweep, capsys):
    cells = [
        make_cell(mode, task, finals=[(0.8, 0.8 + 0.003 * place), (0.79, 0.78)], failed=["nan"], planned=9,
                  notes=("test = train[-1000:]", f"dev has 200 examples of {task}"))
        for task in TASKS[:count] for place, mode in enumerate(MODES)
    ]  # fmt: skip
    early = Closing(2, 9, 1_795_442_520.0, by_budget=True)
    sweep = make_sweep(*(replace(cell, closing=early) for cell in cells))
    outcome = Outcome("done", sweep, Path("runs/first"), "sqlite:///runs/mlflow.db", [])
    results = results_of(sweep, comparer=FixedComparer(0.02))
    text = shown(lambda _, console: show_outcome(outcome, Resources(), "meltpoint sweep", console, results), None)
    said = text + capsys.readouterr().err
    parts = ("provisional", "★", "Cost: ", "Warning: ", "(budget)", "Page  runs/first/report.html", "--explain")
    for part in (*parts, "test = train[-1000:]" if count == 1 else "Samples and splits of "):
        assert part in said
    assert len(said.splitlines()) <= most, said


def test_status_gives_every_error_one_line_and_takes_no_text_for_markup(make_cell, make_sweep):
    errors = ["ValueError: [red]no[/red] [/x]\n  at line 3", "out of memory: " + "x" * 200]
    lines = shown(show_status, make_sweep(make_cell(failed=errors), state="failed")).splitlines()
    errors = [line for line in lines if line.startswith("✗")]
    assert len(errors) == 2
    assert errors[0].endswith("ValueError: [red]no[/red] [/x] at line 3")
    assert errors[1].endswith("x" * 200)
    many = make_sweep(make_cell(failed=["the loss is not finite"] * 700), state="failed")
    errors = [line for line in shown(show_status, many).splitlines() if line.startswith("✗")]
    assert len(errors) == 21
    assert errors[-1].endswith("680 more errors")


def test_status_says_when_test_was_opened_and_for_how_many_finalists(make_cell, make_sweep):
    sweep = make_sweep(make_cell(finals=[(0.8, 0.7), (0.8, 0.75)]))
    opened = [SplitOpening(trial=f"{trial:016x}", opened_at=1_795_442_520.0 + 600 * trial) for trial in (1, 2)]
    first, last = (time.strftime("%Y-%m-%d %H:%M", time.localtime(one.opened_at)) for one in opened)
    text = shown(show_status, replace(sweep, openings=tuple(opened)), 120)
    assert f"Test was opened for 2 finalists: {first} to {last}." in text
    assert "Test was opened for 1 finalist: " in shown(show_status, replace(sweep, openings=tuple(opened[:1])), 120)
    assert "Test was opened" not in shown(show_status, sweep, 120)


def test_status_counts_what_ran_failed_and_is_missing_and_says_what_a_running_sweep_still_takes(make_cell, make_sweep):
    cell = make_cell(search=(0.7, 0.8123), failed=["nan"], planned=6, running=2, finals=[(0.8, None)])
    text = shown(show_status, make_sweep(cell, state="running"), 120)
    for said in (
        "2/6", "1 failed, 2 running, 1 missing", "81.2", "1/2, dev 80.0", "first: running, 0 of 1 cell done.",
    ):  # fmt: skip
        assert said in text, said
    cell = make_cell(search=(0.7, 0.8), planned=6, running=2)  # 60 s each; 3 trials and one of two finals to come
    places = ClusterPart(places=2, whole=4, cpus=1.0)
    text = shown(show_status, replace(make_sweep(cell, state="running"), part=places), 120)
    assert "About 2 min left, if trials keep taking as long as the 2 that ended, 2 at a time." in text
    assert " left, " not in shown(show_status, make_sweep(cell, state="stopped"), 120)
    assert " left, " not in shown(show_status, make_sweep(make_cell(search=(), planned=2), state="running"), 120)


def test_a_cell_that_was_closed_early_is_not_called_done_without_a_word(make_cell, make_sweep):
    cell = make_cell(search=(0.7, 0.8), planned=50, finals=[(0.8, 0.75), (0.8, 0.75)])
    closed = replace(cell, closing=Closing(2, 50, 1_795_442_520.0, by_budget=True))
    text = shown(show_status, make_sweep(closed))
    assert "48 not run" in text
    assert "missing" not in text
    assert "first: done, 1 of 1 cell done, 1 closed early." in text
    assert "minilm.fine_tuning.sst2: closed after 2 of 50 trials (budget), since its test split was" in text
    table = shown(show_summary, make_sweep(closed))
    assert "¹ its search ended after 2 of 50 trials (budget)" in table
    files = render(make_sweep(closed))
    assert all("its search ended after 2 of 50 trials (budget)" in text for text in files.values())
    assert "search ended" not in "".join(render(make_sweep(cell)).values())


def test_a_plan_has_a_line_a_cell_and_its_total_time_in_words() -> None:
    text = shown(show_plan, plan_of(*(planned(mode, task) for mode in MODES for task in TASKS)))
    joined = " ".join(text.split())
    assert joined.count("1 h 20 min") == 13
    counts = "12 cells: 192 search trials + 60 finals, 12 answered by their search trials; the ledger answers 36;"
    for said in (counts, "about 1 h 20 min on 2 workers.", "expect a factor of two either way", LENGTHS[0]):
        assert said in joined, said
    assert "defaults" not in text
    cells = [planned(mode, task, trials=26, defaults=5) for mode in MODES for task in TASKS]
    joined = " ".join(shown(show_plan, plan_of(*cells)).split())
    assert "192 search trials + 60 finals + up to 60 default finals, 12 of each answered by their" in joined
    assert "finals defaults done" in joined


def test_a_plan_of_searches_that_may_end_early_has_a_range() -> None:
    joined = " ".join(shown(show_plan, replace(plan_of(planned(MODES[0], TASKS[0])), least_seconds=1200.0)).split())
    assert "1 cell: at most 16 search trials + 5 finals" in joined
    assert "about 20 min to 1 h 20 min on 2 workers" in joined


def test_a_plan_says_the_sizes_of_the_data_what_is_searched_where_and_the_notes_of_the_tables() -> None:
    sample, epochs = "1 000 of 6 920 training examples, seed 0", "epochs 7, 9, 12 instead of 3, 4, 5"
    cells = [planned(mode, task) for mode in MODES[:2] for task in TASKS[:2]]
    cells += [planned(MODES[0], "sst2", searched={}, test_examples=1821, notes=(sample,)),
              planned(MODES[1], "sst2", test_examples=1821, notes=(sample, epochs))]  # fmt: skip
    joined = " ".join(shown(show_plan, plan_of(*cells)).split())
    ranges = "learning_rate log_uniform [1e-05, 0.0001], bilstm.hidden_size choice [9, 99]"
    for said in (
        "demo_sentiment: 6 920 training examples, 872 dev, test is not opened",
        "sst2: 6 920 training examples, 872 dev, 1 821 test",
        f"searched in ❄ feature_extraction, bilstm_crf on demo_sentiment, demo_entailment: {ranges}",
        "searched in ❄ feature_extraction, bilstm_crf on sst2: nothing",
        f"searched in 🔥 fine_tuning, bilstm_crf: {ranges}", f"sst2, 🔥 fine_tuning: {epochs}",
    ):  # fmt: skip
        assert said in joined, said
    assert joined.count(f"sst2: {sample}") == 1


@pytest.mark.parametrize("what", ROWS)
def test_everything_that_can_be_listed_fits_into_eighty_columns(what: str) -> None:
    rows = inventory(what)
    text = shown(show_rows, rows)
    assert widest(text) <= 80
    assert "…" not in text.replace("…", "", str(rows).count("…"))
    assert all(str(row["name"]) in text for row in rows)


def test_short_rows_are_a_table_and_long_ones_paragraphs() -> None:
    short = shown(show_rows, [{"name": "a", "kind": "x"}, {"name": "b", "kind": "[y]", "on": True}])
    assert [line.split() for line in short.splitlines() if line.strip()][-1] == ["b", "[y]", "yes"]
    row = {"name": "a", "summary": "word " * 30, "parameters": ["p = 1: a number", "q = 2: another"]}
    long = shown(show_rows, [row])
    assert long.startswith("a\n")
    assert [("p = 1" in line, "q = 2" in line) for line in long.splitlines() if " = " in line] == [
        (True, False), (False, True),
    ]  # fmt: skip


def test_a_check_shows_its_mark_and_its_remedy_and_the_lacks_are_counted() -> None:
    lack = Check("GPU", False, "driver " + "too old " * 20, "install a newer one")
    checks = [Check("Python", True, "3.11 [ok]"), lack]
    text = shown(show_checks, checks)
    assert widest(text) <= 80
    assert "Python" not in text
    assert "✗ GPU" in text
    assert "→ install a newer one" in text
    assert "1 of 2 need attention: GPU." in text
    assert shown(show_checks, checks[:1]) == "All is well.\n"
    assert "✓ Python 3.11 [ok]" in shown(show_checks, checks, verbose=True)


# Names at 80 columns: nothing is wider, and no name is broken but behind `_`, `+`, `:`, `-`, `.` or `/`.

ENCODERS = ("minilm", "sentence-transformers/paraphrase-multilingual-mpnet-base-v2")
LONG = ("demo_sentiment", "sst2_subtrees", "mnli:government", "customer_support_conversations")
VARIANTS = ("highway_lstm", "bilstm_crf")
SETTING = {
    "learning_rate": 4.25e-5, "stack_and_finetune.stack_learning_rate": 0.00123456, "highway_lstm.hidden_size": 1024,
    "discriminative_rates.factor": 0.95, "weight_decay": 0.01, "epochs": 3, "slanted_triangular.ratio": 32,
}  # fmt: skip


def at_eighty(show: Callable[[Console], None]) -> str:
    """What a terminal of 80 columns gets, without its colours."""
    file = io.StringIO()
    show(Console(file=file, width=80, force_terminal=True, highlight=False, color_system=None))
    return re.sub(r"\x1b[^m]*m", "", file.getvalue())


def broken(text: str, names: tuple[str, ...]) -> list[str]:
    """The parts of names that do not stand in a text as a whole."""
    parts = {part for name in names for part in re.split(r"(?<=[_+:./-])", name)}
    return sorted(part for part in parts if part not in text)


@pytest.fixture
def sweep(make_cell, make_sweep) -> SweepSummary:
    """Long names, variants, trials of every status, finals and default finals."""
    cells = [
        make_cell(
            mode, task, encoder=encoder, variant=variant, head=variant, search=(0.8, 0.81), failed=["nan"] * 2,
            planned=16, running=3, finals=[(0.9, 0.855), (0.8, 0.855)], setting=SETTING,
        )
        for encoder in ENCODERS for mode in MODES for task in LONG for variant in VARIANTS
    ]  # fmt: skip
    cells = [
        replace(cell, default_seeds=5, default_finals=cell.finals, default_test=Spread(0.7, 0.01, 2)) for cell in cells
    ]
    return make_sweep(*cells, seeds=5)


@pytest.mark.parametrize("show", [show_summary, show_status], ids=["report", "status"])
def test_the_tables_of_a_sweep_fit_and_break_no_name(show: Any, sweep: SweepSummary) -> None:
    text = at_eighty(lambda console: show(sweep, console))
    shown = "\n".join(line for line in text.splitlines() if not line.startswith("✗"))
    assert max(cell_len(line.rstrip()) for line in shown.splitlines()) <= 80
    table = re.split(r"\n(?=¹|What |first: )", shown)[0]  # below it, names stand in sentences
    assert broken(table, (*ENCODERS, *MODES, *LONG, *VARIANTS)) == []


@pytest.mark.parametrize("variants", [VARIANTS, ("",)], ids=["with variants", "without"])
@pytest.mark.parametrize("head", ["highway_lstm", "linear"])
@pytest.mark.parametrize("tasks", [LONG, ("sst2", "mrpc", "cola")], ids=["long tasks", "short tasks"])
def test_a_plan_fits_and_breaks_no_name(variants: tuple[str, ...], head: str, tasks: tuple[str, ...]) -> None:
    cells = [
        planned(mode, task, head, encoder, variant=variant, trials=310, finals=10, defaults=10, searched=MANY)
        for encoder in ENCODERS for mode in MODES for task in tasks for variant in variants
    ]  # fmt: skip
    text = at_eighty(lambda console: show_plan(plan_of(*cells), console))
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80
    table, _, below = text.rpartition(" cells:")
    assert broken(table, (*ENCODERS, *MODES, *tasks, *variants, head)) == []
    assert broken(below, tuple(MANY)) == []


MANY = dict.fromkeys(SETTING, "log_uniform [1e-05, 0.0001]")


def test_report_on_a_terminal_is_the_table_that_fits_and_to_a_pipe_markdown(tmp_path) -> None:
    store_sweep(tmp_path, "first", ["accuracy", "span_f1", "pearson", "matthews"], [0.7, 0.8, 0.8])
    words = [sys.executable, "-m", "meltpoint.launch", "report", "first", "--storage", str(tmp_path)]
    piped = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=120, check=True).stdout
    assert "| mode |" in piped
    reader, terminal = pty.openpty()
    with subprocess.Popen(words, stdout=terminal, env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}):
        os.close(terminal)
        text = b"".join(iter(lambda: read(reader), b"")).decode()
    assert "| mode |" not in text
    plain = re.sub(r"\x1b[^m]*m", "", text).replace("\r", "")
    assert max(cell_len(line.rstrip()) for line in plain.splitlines()) <= 80
    assert "conll2003" in plain


def read(reader: int) -> bytes:
    """What a terminal shows next; nothing once its program has ended."""
    try:
        return os.read(reader, 65536)
    except OSError:
        return b""
