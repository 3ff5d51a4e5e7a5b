"""The comparisons in every format: conclusions, adjusted p, what tuning bought; computed once, shared by all."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape

import pytest
from rich.cells import cell_len
from rich.console import Console
from scipy.stats import ttest_1samp

from meltpoint.reports.findings import NO_DEFAULTS, gain_lines
from meltpoint.reports.html.page import html
from meltpoint.reports.report import files_of
from meltpoint.reports.results import SweepResults, results_of
from meltpoint.reports.screen import show_summary
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import spread
from meltpoint.tests.fixed_comparer import FixedComparer

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TASKS = ("demo_sentiment", "demo_entailment", "demo_similarity", "demo_entities")


def with_default(cell: CellSummary, tests: Sequence[float], **setting: float) -> CellSummary:
    """The cell with finals of a published setting, which is the winner's unless it differs by `setting`."""
    finals = [
        final.model_copy(
            update={
                "id": f"default{final.seed}", "role": "default", "test": {"accuracy": test}, "dev": test,
                "setting": final.setting | setting,
            }
        )
        for final, test in zip(cell.finals, tests, strict=True)
    ]  # fmt: skip
    over = spread(list(tests))
    return replace(cell, default_finals=finals, default_dev=over, default_test=over)


@pytest.fixture
def results(make_cell, make_sweep) -> SweepResults:
    """Three modes on a task: clearly better, and within noise; tuning helped one, hurt one, and one won untuned."""
    means = (0.70, 0.80, 0.805)
    ice, fire, both = (make_cell(mode, finals=[(mean, mean)] * 5) for mode, mean in zip(MODES, means, strict=True))
    cells = [
        with_default(ice, [0.66] * 5, learning_rate=1e-3), with_default(fire, [0.82] * 5, learning_rate=1e-4),
        with_default(both, [0.805] * 5),
    ]  # fmt: skip
    return results_of(make_sweep(*cells, seeds=5), comparer=FixedComparer(0.012))


def shown(results: SweepResults, width: int = 80) -> str:
    """The output to a pipe."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_summary(results.summary, console, results, explain=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_markdown_has_a_line_for_each_difference_with_interval_adjusted_p_and_conclusion(results):
    section = files_of(results)["report.md"].partition("## What the table shows\n\n")[2].partition("\n\n")[0]
    head, _, first, _, second = section.splitlines()
    assert head == "| encoder | task | Δ | value | 95 % interval | adjusted p | P(A > B) | conclusion |"
    assert first == (
        "| minilm | sst2 | Δ 🔥 − ❄ | +10.0 | [+8.8, +11.2] | 0.003 | 0.98 | "
        "fine-tuning is better than feature extraction |"
    )
    assert second.startswith(
        "| minilm | sst2 | Δ ❄🔥 − 🔥 | +0.5 | [−0.7, +1.7] | 0.500 | 0.60 | undecided with 5 seeds and 400 examples; "
    )


@pytest.mark.parametrize("form", ["md", "tex", "html", "screen", "json"])
def test_every_format_says_the_same_of_the_differences_and_of_tuning(form: str, results: SweepResults) -> None:
    files = files_of(results) | {"report.html": html(results), "report.screen": shown(results, 200)}
    text = files[f"report.{form}"]
    differences = ("fine-tuning is better than feature extraction", "undecided with 5 seeds and 400 examples")
    for said in (
        *(() if form == "html" else differences),  # the page has the recommendation in their place
        *((one.sentence for one in results.recommendations) if form in ("md", "screen") else ()),
        "tuning bought +4.0 [+2.8, +5.2]", "tuning cost −2.0 [−3.2, −0.8]: the published setting is better",
        "the published setting won the search",
    ):  # fmt: skip
        assert said in text, said


@pytest.mark.parametrize("form", ["md", "tex", "html", "screen"])
def test_every_format_tells_whether_winners_beat_their_published_settings_over_all_cells(form, results):
    files = files_of(results) | {"report.html": html(results), "report.screen": shown(results, 200)}
    low, high = ttest_1samp([4.0, -2.0, 0.0], 0.0).confidence_interval(0.95)
    assert (
        f"Winner minus published setting on test, over 3 cells: +0.7 [−{-low:.1f}, +{high:.1f}] points; "
        "1 of the winners is worse."
    ) in files[f"report.{form}"]


def test_what_tuning_bought_is_said_of_each_cell(make_cell, make_sweep) -> None:
    little, hidden = make_cell(finals=[(0.8, 0.8)] * 5), make_cell("feature_extraction", finals=[(0.8, "hidden")] * 5)
    cells = [
        with_default(little, [0.795] * 5, learning_rate=1e-3), with_default(hidden, [0.7] * 5, learning_rate=1e-3),
        make_cell("stack_and_finetune", finals=[(0.8, 0.8)] * 5),
    ]  # fmt: skip
    assert gain_lines(results_of(make_sweep(*cells, seeds=5), comparer=FixedComparer(0.012))) == [
        "minilm 🔥 sst2: tuning not shown to help: +0.5 [−0.7, +1.7]",
        "minilm ❄ sst2: tuning bought +10.0 [+8.8, +11.2] on dev, on which the winner was chosen",
        "minilm ❄🔥 sst2: the published setting has no finals",
    ]


@pytest.mark.parametrize("form", ["md", "tex", "html", "screen", "json"])
def test_a_sweep_without_the_published_settings_finals_says_so_once(form, make_cell, make_sweep):
    sweep = make_sweep(*(make_cell(mode, finals=[(0.8, 0.8)] * 5) for mode in MODES))
    found = results_of(sweep, comparer=FixedComparer())
    files = files_of(found) | {"report.html": html(found), "report.screen": shown(found, 300)}
    said = NO_DEFAULTS.replace("`", "") if form == "html" else NO_DEFAULTS
    assert re.sub("</?code>", "", unescape(files[f"report.{form}"])).count(said) == 1


@pytest.mark.parametrize("width", [40, 80, 200])
def test_intervals_are_whole_at_every_width_and_under_the_difference_where_it_is_narrow(width, make_cell, make_sweep):
    cells = [
        make_cell(mode, task, finals=[(0.5, mean)] * 5)
        for task in TASKS for mode, mean in zip(MODES, (0.70, 0.80, 0.90), strict=True)
    ]  # fmt: skip
    text = shown(results_of(make_sweep(*cells, seeds=5), comparer=FixedComparer(0.015)), width)
    table = text.partition("What the table shows")[0]
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= width
    assert table.count("[+8.5, +11.5]") == 8
    on_one_line = table.count("+10.0 [+8.5, +11.5]")
    assert on_one_line == {40: 0, 80: 2, 200: 8}[width], "at 80, the fourth task has a table of its own, with room"
