"""Names at 80 columns: nothing is wider, and no name is broken but behind `_`, `+`, `:`, `-`, `.` or `/`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from meltpoint.reports.findings import shown_sweep
from meltpoint.reports.layout import say_lines, show_rows
from meltpoint.reports.results import results_of
from meltpoint.reports.screen import show_plan, show_summary
from meltpoint.reports.status_view import show_status
from meltpoint.reports.sweep_comparison import compare_sweeps, lines
from meltpoint.reports.trial_view import best_rows, ranked_cells, trial_lines
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tests.reports.stored_sweeps import store_sweep
from meltpoint.tests.reports.test_screen import MODES, plan_of, planned

ENCODERS = ("minilm", "sentence-transformers/paraphrase-multilingual-mpnet-base-v2")
TASKS = ("demo_sentiment", "sst2_subtrees", "mnli:government", "customer_support_conversations")
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
        for encoder in ENCODERS for mode in MODES for task in TASKS for variant in VARIANTS
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
    assert broken(table, (*ENCODERS, *MODES, *TASKS, *VARIANTS)) == []


@pytest.mark.parametrize("variants", [VARIANTS, ("",)], ids=["with variants", "without"])
@pytest.mark.parametrize("head", ["highway_lstm", "linear"])
@pytest.mark.parametrize("tasks", [TASKS, ("sst2", "mrpc", "cola")], ids=["long tasks", "short tasks"])
def test_a_plan_fits_and_breaks_no_name(variants: tuple[str, ...], head: str, tasks: tuple[str, ...]) -> None:
    cells = [
        planned(mode, task, head, encoder, variant=variant, trials=310, finals=10, defaults=10, searched=RANGES)
        for encoder in ENCODERS for mode in MODES for task in tasks for variant in variants
    ]  # fmt: skip
    text = at_eighty(lambda console: show_plan(plan_of(*cells), console))
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80
    table, _, below = text.rpartition(" cells:")
    assert broken(table, (*ENCODERS, *MODES, *tasks, *variants, head)) == []
    assert broken(below, tuple(RANGES)) == []


RANGES = dict.fromkeys(SETTING, "log_uniform [1e-05, 0.0001]")


def test_best_settings_and_lists_of_sweeps_fit_and_break_no_name(sweep: SweepSummary) -> None:
    listed = shown_sweep({
        "name": "a_sweep_with_a_long_name", "state": "running", "cells": 96, "cells_done": 3, "trials": 40,
        "trials_planned": 1536, "encoders": ENCODERS, "tasks": TASKS, "started_at": 1.0, "seconds": 5e5, "fault": "",
    })  # fmt: skip
    in_cells = tuple(re.sub("[/:]", "_", name) for name in (*ENCODERS, *TASKS, *VARIANTS))
    best = best_rows(ranked_cells(results_of(sweep)))
    for rows, names in ((best, in_cells), ([listed], (*ENCODERS, *TASKS))):
        text = at_eighty(lambda console, rows=rows: show_rows(rows, console))
        assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80
        assert broken(text, names) == []


def test_a_trial_and_a_comparison_are_wrapped_between_words(sweep: SweepSummary) -> None:
    other = replace(sweep, name="other", cells=[replace(cell, best=None, finals=[]) for cell in sweep.cells])
    record = sweep.cells[-1].best
    assert record is not None
    for found in (trial_lines(record, sweep), list(lines(compare_sweeps(sweep, other)))):
        text = at_eighty(lambda console, found=found: say_lines(found, console))
        assert max(len(line) for line in found) > 80
        assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80
        whole = {word for line in found for word in line.split() if len(word) < 70}
        assert whole <= set(text.split())


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
