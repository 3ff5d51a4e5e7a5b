"""A cell whose test was opened is searched no further, and all say so; the look at test splits before a search."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.sweeps.driver.finals import require_test_splits, unchecked
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.locked_test import ClosingLogs, closing_of, in_words, note_spent_budget, opened_trials
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import append_line
from meltpoint.tests.sweeps.whole_sweeps import command, records, run

SEARCHED, PLANNED, SEEDS = 2, 9, 2
OPENED_AT = 1_795_442_520.0

MakeLedger = Callable[..., Ledger]


@pytest.fixture
def wanted(spec: SweepSpec) -> SweepSpec:
    """One cell, nine trials."""
    return spec.model_copy(update={"modes": ("fine_tuning",), "trials": PLANNED, "seeds": SEEDS})


@pytest.fixture
def make_ledger(wanted: SweepSpec, cells: list[OpenCell], make_record, tmp_path: Path) -> MakeLedger:
    """What a sweep leaves that was cut short: so many search trials, its finals, perhaps their test scores."""

    def make(searched: int = SEARCHED, scored: bool = True, spent_at: float | None = OPENED_AT - 60) -> Ledger:
        ledger, own = Ledger(tmp_path / wanted.name), [replace(cells[1], trials=PLANNED, seeds=SEEDS)]
        settle_specification(ledger, wanted, own)
        planner = Planner(wanted, own, [])
        for _ in range(searched):
            proposal = planner.next()
            assert isinstance(proposal, Trial)
            planner.begin(proposal)
            planner.end(make_record(proposal))
        planner.close_search()
        (progress,) = planner.cells.values()
        finals = planner.missing_finals(progress)
        assert len(finals) == SEEDS
        test = {"accuracy": 0.5} if scored else None
        records = [*progress.search.values(), *(make_record(final, test=test) for final in finals)]
        for record in records:
            ledger.write(record)
        if scored:
            lines = [{"trial": one.id, "opened_at": OPENED_AT + place} for place, one in enumerate(finals)]
            ledger.openings.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        if spent_at is not None:
            ledger.budgets.write_text(json.dumps({"time_budget_seconds": 5.0, "spent_at": spent_at}) + "\n")
        return ledger

    return make


def asked_again(wanted: SweepSpec, ledger: Ledger) -> Resources:
    """The same sweep with more time."""
    return Resources(storage=str(ledger.folder.parent), time_budget=3600.0)


def test_a_plan_has_nothing_to_do_in_a_closed_cell_and_says_why(wanted, make_ledger):
    ledger = make_ledger()
    planned = plan_sweep(wanted, asked_again(wanted, ledger))
    (cell,) = planned.cells
    assert (cell.trials, cell.answered, cell.estimated_seconds) == (SEARCHED + SEEDS, SEARCHED + SEEDS, 0.0)
    (line,) = [note for note in planned.notes if "is closed" in note]
    assert "its test split was opened on 2026-11-2" in line
    assert line.endswith(
        "2 of 9 search trials ran, then the budget was spent; to continue the search, use a new "
        "--name, or --new-test-round, which tables report."
    )
    assert planned.as_json()["cells"][0]["closed"]["since"] == OPENED_AT


def test_status_keeps_what_is_missing_and_says_beside_it_that_the_cell_is_closed(make_ledger):
    summary = summarise(make_ledger())
    assert summary.state == "done"
    (cell,) = summary.as_json()["cells"]
    assert (cell["trials"]["planned"], cell["trials"]["missing"]) == (PLANNED, PLANNED - SEARCHED)
    assert cell["closed"] == {
        "since": OPENED_AT, "reason": "test opened", "search_trials": SEARCHED, "ended_by": "budget",
    }  # fmt: skip


def test_a_cell_whose_test_is_not_open_yet_goes_on_with_more_budget(wanted, make_ledger):
    ledger = make_ledger(scored=False)
    resources = asked_again(wanted, ledger)
    planned = plan_sweep(wanted, resources)
    (cell,) = planned.cells
    assert (cell.trials, cell.answered, cell.closed) == (PLANNED + SEEDS, SEARCHED, None)
    assert not any("is closed" in note for note in planned.notes)
    assert summarise(ledger).as_json()["cells"][0]["closed"] is None


def test_a_test_split_that_was_opened_closes_the_cell_though_no_score_came_of_it(wanted, cells, make_ledger):
    ledger, own = make_ledger(scored=False), [replace(cells[1], trials=PLANNED, seeds=SEEDS)]
    assert not opened_trials(ledger)
    (final, *_) = (record.id for record in ledger.records() if record.role == "final")
    ledger.openings.write_text(json.dumps({"trial": final, "opened_at": OPENED_AT}) + "\n", encoding="utf-8")
    (cell,) = plan_sweep(wanted, asked_again(wanted, ledger)).cells
    assert cell.closed is not None
    assert cell.closed["search_trials"] == SEARCHED
    assert summarise(ledger).as_json()["cells"][0]["closed"]["since"] == OPENED_AT
    assert Planner(wanted, own, ledger.records(), opened=opened_trials(ledger)).next() == "done"


def test_a_cell_that_was_searched_whole_is_closed_but_not_early(wanted, make_ledger):
    ledger = make_ledger(searched=PLANNED)
    (cell,) = summarise(ledger).cells
    assert cell.closing is not None
    assert cell.closed_early is None
    assert cell.closing.as_json()["ended_by"] is None
    assert not any("is closed" in note for note in plan_sweep(wanted, asked_again(wanted, ledger)).notes)


@pytest.mark.parametrize(("spent_at", "by_budget"), [(None, False), (OPENED_AT - 1, True), (OPENED_AT + 9, False)])
def test_the_time_budget_is_named_only_where_it_was_spent_before_the_test_was_opened(make_ledger, spent_at, by_budget):
    (cell,) = summarise(make_ledger(spent_at=spent_at)).cells
    assert cell.closed_early is not None
    assert cell.closed_early.by_budget == by_budget
    assert ("the budget was spent" in in_words(cell.header.key, cell.closed_early)) == by_budget


@pytest.mark.parametrize(("opened_before", "by_budget"), [(0, True), (1, False)])
@pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
def test_what_came_first_is_known_though_the_clock_was_set_in_between(make_ledger, opened_before, by_budget, set_by):
    ledger = make_ledger(spent_at=None)
    line = {"time_budget_seconds": 5.0, "spent_at": OPENED_AT + set_by, "openings": opened_before}
    append_line(ledger.budgets, line)
    (cell,) = summarise(ledger).cells
    assert cell.closed_early is not None
    assert cell.closed_early.by_budget == by_budget


def test_a_cell_without_a_test_split_is_closed_by_the_scoring_of_its_finalists(make_ledger):
    ledger = make_ledger()
    ledger.openings.unlink()
    closing = closing_of(ClosingLogs.read(ledger), ledger.records(), PLANNED)
    assert closing is not None
    assert closing.as_json()["reason"] == "finals scored"
    assert "because its finalists were scored: 2 of 9" in in_words(("e", "m", "t"), closing)


def test_a_spent_budget_is_a_line_of_its_own_in_the_ledger(tmp_path: Path):
    ledger = Ledger(tmp_path)
    for seconds in (5.0, 60.0):
        note_spent_budget(ledger, seconds)
        append_line(ledger.openings, {"trial": "abc", "opened_at": OPENED_AT})
    lines = [json.loads(line) for line in ledger.budgets.read_text(encoding="utf-8").splitlines()]
    assert [line["time_budget_seconds"] for line in lines] == [5.0, 60.0]
    assert [line["openings"] for line in lines] == [0, 1]
    assert lines[0]["spent_at"] <= lines[1]["spent_at"]


ROWS = "text\tlabel\nx fine film\tgood\na dull one\tbad\n"


def own_task(folder: Path, test: str, name: str = "own") -> Path:
    """A task whose test file has these rows."""
    folder.mkdir(exist_ok=True)
    for split, text in (("train", 4 * ROWS.partition("\n")[2]), ("dev", ROWS.partition("\n")[2]), ("test", test)):
        (folder / f"{split}.tsv").write_text(f"text\tlabel\n{text}", encoding="utf-8")
    path = folder / "task.yaml"
    path.write_text(
        f"name: {name}\nkind: sentence_classification\nfiles: {{train: train.tsv, dev: dev.tsv, test: test.tsv}}\n"
        "format: tsv\ncolumns: {text: text, label: label}\nlabels: [good, bad]\n",
        encoding="utf-8",
    )
    return path


BROKEN = "secret words\tgood\nother words\tsplendid\n"


@pytest.fixture
def opened(spec: SweepSpec, tmp_path: Path):
    """The ledger and the cells of a sweep on a task with these rows in its test file."""

    def made(test: str) -> tuple[Ledger, list[OpenCell]]:
        own = spec.model_copy(update={"tasks": (str(own_task(tmp_path / "data", test)),)})
        ledger, cells = Ledger(tmp_path / "tiny"), open_cells(own)
        settle_specification(ledger, own, cells)
        return ledger, cells

    return made


def test_a_broken_test_split_is_refused_with_its_file_its_line_and_its_remedy(opened) -> None:
    ledger, cells = opened(BROKEN)
    with pytest.raises(ValueError, match=r"test\.tsv") as refused:
        require_test_splits(ledger, cells)
    said = str(refused.value)
    assert "\n" not in said
    assert "line 3" in said
    assert "splendid" in said
    assert "secret" not in said
    assert not ledger.test_checks.exists()


def test_a_valid_one_is_logged_as_a_look_and_closes_no_cell_and_is_not_looked_at_again(opened) -> None:
    ledger, cells = opened("secret words\tgood\n")
    require_test_splits(ledger, cells)
    (line,) = ledger.test_checks.read_text().splitlines()
    logged = json.loads(line)
    assert (logged["task"], logged["found"], logged["data_fingerprint"]) == ("own", "valid", cells[0].data_fingerprint)
    assert "secret" not in line
    assert not opened_trials(ledger)
    assert unchecked(ledger, cells) == []


def test_other_train_data_and_a_torn_line_are_looked_at_again(opened) -> None:
    ledger, cells = opened("secret words\tgood\n")
    ledger.test_checks.write_text('{"task": "own", "data_fingerprint": "0000"}\n{"task": "ow')
    assert unchecked(ledger, cells) == [cells[-1]]


def test_a_generated_task_and_a_carved_test_split_are_not_looked_at(spec: SweepSpec, tmp_path: Path) -> None:
    carved = own_task(tmp_path / "data", "x\tgood\n")
    carved.write_text(carved.read_text().replace(", test: test.tsv", "") + "test_from: train[-2:]\n")
    for word in ("demo_sentiment", str(carved)):
        cells = open_cells(spec.model_copy(update={"tasks": (word,)}))
        assert unchecked(Ledger(tmp_path / "tiny"), cells) == []


def test_a_process_that_dies_is_told_from_a_broken_split(opened, monkeypatch) -> None:
    ledger, cells = opened("secret words\tgood\n")
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ValueError, match="ended early: killed"):
        require_test_splits(ledger, cells)


@pytest.mark.slow
def test_a_sweep_refuses_a_broken_test_file_before_its_first_trial_and_goes_on_when_it_is_mended(
    spec: SweepSpec, tmp_path: Path
) -> None:
    task = own_task(tmp_path / "data", BROKEN)
    words = command(spec.model_copy(update={"tasks": (str(task),)}), tmp_path / "runs")
    refused = run(words)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert "splendid" in refused.stderr
    assert records(tmp_path / "runs") == []
    own_task(tmp_path / "data", ROWS.partition("\n")[2])
    assert run(words).returncode == 0
    assert len(records(tmp_path / "runs")) == len(spec.modes) * (spec.trials + spec.seeds)
