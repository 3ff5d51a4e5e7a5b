"""Settings that a cell takes over from its siblings, and what proposing costs: nothing is computed again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.study import Study
from meltpoint.tests.sweeps.planning import drive, note_of, planned


def sister(cell, name: str):
    """A cell of another task, alike in all else."""
    return replace(cell, task_name=name)


def test_a_setting_that_won_in_a_sibling_cell_is_tried_early(spec, cells, make_record):
    one, two = cells[1], sister(cells[1], "sister")
    planner = planned(spec, [one, two], trials=8)
    for number in range(3):  # both cells' published setting, and the first cell's second trial, which is good
        proposal = planner.next()
        planner.begin(proposal)
        planner.end(make_record(proposal, dev=(0.9 if number == 2 else 0.1,)))
    assert proposal.cell == one.key
    later = planner.next()
    assert (later.cell, later.setting, later.suggested_by) == (two.key, proposal.setting, "sibling")


def test_the_same_task_on_another_encoder_comes_before_another_task(spec, cells, make_record):
    one, other = cells[1], replace(cells[1], encoder="other")
    planner = planned(spec, [sister(one, "sister"), other, one], trials=8)
    for number in range(5):  # the published settings, then a good one in two cells
        proposal = planner.next()
        planner.begin(proposal)
        planner.end(make_record(proposal, dev=(0.9 if number > 2 else 0.1,)))
    waiting = planner.next()
    assert waiting.cell == one.key
    assert waiting.setting == planner.cells[other.key].best.setting


def test_at_most_a_quarter_of_a_cells_trials_are_taken_over(spec, cells, make_record):
    tasks = [cells[1], *(sister(cells[1], f"task {number}") for number in range(6))]
    planner = planned(spec, tasks, trials=8)
    drive(planner, make_record, score=lambda p: 0.5 + 0.01 * p.number)
    assert all(0 < progress.study.borrowed <= 2 for progress in planner.cells.values())


def test_at_most_a_quarter_is_taken_over_however_often_the_sweep_is_begun_again(spec, cells, make_record):
    tasks = [replace(cells[1], trials=8), *(replace(sister(cells[1], f"task {n}"), trials=8) for n in range(6))]
    wanted = spec.model_copy(update={"trials": 8, "searcher": "tpe"})
    records: list[TrialRecord] = []
    while True:
        planner = Planner(wanted, tasks, records)
        proposal = planner.next()
        if not isinstance(proposal, Trial) or proposal.role != "search":
            break
        recalled = Planner(wanted, tasks, records)
        recalled.recall([note_of(proposal)])
        borrowed = [one.cells[proposal.cell].study.borrowed for one in (planner, recalled)]
        assert borrowed[0] == borrowed[1], "of a trial that was running when the sweep ended too"
        records.append(make_record(proposal, dev=(0.5 + 0.01 * proposal.number,)))
    taken = Counter(record.task for record in records if record.suggested_by == "sibling")
    assert taken
    assert max(taken.values()) <= 2


def test_the_finals_of_a_best_setting_are_hashed_once_however_often_they_are_asked_for(
    spec, cells, make_record, monkeypatch
):
    planner = Planner(spec, cells, [])
    drive(planner, make_record)
    hashed = []
    monkeypatch.setattr(planner, "trial_id", lambda *given: hashed.append(given) or "none")
    for _ in range(5):
        assert all(planner.missing(progress, "final") == [] for progress in planner.cells.values())
    assert hashed == []


def test_a_long_grid_is_walked_through_once(spec, cells, make_record):
    points = 0

    class Counting(type(cells[0].space)):
        def points(self):
            nonlocal points
            for one in super().points():
                points += 1
                yield one

    space = Counting.of({"learning_rate": {"choice": [n / 1e4 for n in range(1, 61)]}}, cells[0].space.allowed)
    study = Study(space, "grid", (0,), [])
    found = [study.ask(lambda setting: (str(setting), dict(setting))) for _ in range(61)]
    assert len({one.trial for one in found[:60]}) == 60
    assert found[60] is None
    assert points == 60


def test_other_modes_are_no_siblings_and_neither_a_grid_nor_random_draws_borrow(spec, cells, make_record):
    siblings = [cells[1], sister(cells[1], "sister")]
    for searcher, some in (("tpe", cells), ("grid", siblings), ("random", siblings)):
        planner = planned(spec, some, trials=4, searcher=searcher)
        drive(planner, make_record)
        assert all(progress.study.borrowed == 0 for progress in planner.cells.values())
