"""Progress: what a sweep says while it runs, in the same figures as `plan`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from meltpoint.reports.screen import show_plan
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_spec import Resources


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        (1, "1 cell: 3 search trials + 2 finals, 1 answered by its search trial"),
        (2, "2 cells: 6 search trials + 4 finals, 2 answered by their search trials"),
    ],
)
def test_plan_and_progress_count_the_same_trials_in_the_same_words(spec, tmp_path, modes, said):
    spec = spec.model_copy(update={"modes": spec.modes[:modes]})
    plan = plan_sweep(spec, Resources(storage=str(tmp_path)))
    console = Console(file=io.StringIO(), width=100)
    show_plan(plan, console)
    planner = Planner(spec, open_cells(spec), [])
    progress = Progress(lambda: list(planner.cells.values()), console)
    assert progress.planned() == said
    assert f"{said}; the ledger answers 0" in text_of(console)
    assert plan.as_json()["trials"] == 5 * modes
    assert [cell["finals"] for cell in plan.as_json()["cells"]] == [2] * modes


def test_each_line_counts_search_trials_and_finals_apart(spec, cells, make_record):
    planner, console = Planner(spec, cells, []), Console(file=io.StringIO(), width=200)
    progress = Progress(lambda: list(planner.cells.values()), console)
    trial = planner.next()
    planner.begin(trial)
    planner.end(make_record(trial))
    progress.ended(make_record(trial))
    assert "trials 1/6, finals 0/4 " in text_of(console)
