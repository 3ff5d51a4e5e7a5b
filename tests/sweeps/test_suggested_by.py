"""Where a search trial's setting comes from, as recorded; and settings that a cell takes over from its siblings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import optuna
import pytest
from scipy import stats

from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.study import STARTUP_TRIALS, Study
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps import planning
from meltpoint.tests.sweeps.planning import drive, note_of, planned


def of_one_cell(
    spec: SweepSpec, cell: OpenCell, searcher: str, trials: int = 12, records=(), **fields: object
) -> Planner:
    """A planner of one cell, by a searcher."""
    return Planner(spec, [replace(cell, searcher=searcher, trials=trials, **fields)], records)


def search_trials(planner: Planner, make_record) -> list[Trial]:
    """The search trials, one after the other."""
    found = []
    while isinstance(proposal := planner.next(), Trial) and proposal.role == "search":
        planner.begin(proposal)
        planner.end(make_record(proposal, (0.5 + 0.01 * (proposal.number % 7),)))
        found.append(proposal)
    return found


@pytest.mark.parametrize("searcher", ["gp", "tpe", "random", "grid"])
def test_the_published_setting_is_first_and_the_others_have_their_searchers_word(spec, cells, make_record, searcher):
    space = cells[0].space.with_overrides(["epochs={choice: [1, 2, 3]}"])
    if searcher == "grid":
        space = space.with_overrides(["learning_rate={choice: [0.001, 0.01]}", "dropout={choice: [0.1, 0.2]}"])
    found = search_trials(of_one_cell(spec, cells[0], searcher, space=space), make_record)
    by = [proposal.suggested_by for proposal in found]
    assert by[0] == "first"
    if searcher == "gp":  # a random draw where it proposed a setting that was tried before
        assert by[1 : STARTUP_TRIALS + 1] == ["random"] * (STARTUP_TRIALS - 1) + ["gp"]
        return
    assert by[1:] == {
        "tpe": ["random"] * (STARTUP_TRIALS - 1) + ["tpe"] * (12 - STARTUP_TRIALS),
        "random": ["random"] * 11, "grid": ["grid"] * 11,
    }[searcher]  # fmt: skip


class CountedRandom:
    """Counts what optuna's random sampler draws."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draws = 0
        own = optuna.samplers.RandomSampler.sample_independent

        def counted(sampler, study, trial, name, distribution):
            self.draws += 1
            return own(sampler, study, trial, name, distribution)

        monkeypatch.setattr(optuna.samplers.RandomSampler, "sample_independent", counted)

    def has_drawn(self) -> bool:
        """True if it drew since the last call."""
        found, self.draws = self.draws > 0, 0
        return found


@pytest.mark.parametrize("ends", ["finished", "failed", "lost", "stopped", "running", "mixed"])
def test_random_is_said_exactly_where_tpes_sampler_draws_at_random(spec, cells, make_record, monkeypatch, ends):
    """However earlier trials ended: lost and running ones do not count as results, pruned ones do."""
    planner, sampler = of_one_cell(spec, cells[0], "tpe", trials=24), CountedRandom(monkeypatch)
    kinds = ("finished", "failed", "lost", "stopped", "running")
    said = []
    for number in range(18):
        sampler.has_drawn()
        proposal = planner.next()
        said.append(proposal.suggested_by)
        assert (proposal.suggested_by == "random") == sampler.has_drawn() or number == 0
        planner.begin(proposal)
        end = ends if ends != "mixed" else kinds[number % 5]
        changes = {
            "finished": {}, "stopped": {"status": "stopped"}, "failed": {"status": "failed", "error": "nan"},
            "lost": {"status": "failed", "error": "lost", "cause": "worker"},
        }  # fmt: skip
        if end != "running":
            planner.end(make_record(proposal, (0.5 + 0.02 * number,), **changes[end]))
    count = Counter(said)
    learns = {"finished": 14, "failed": 14, "stopped": 14, "lost": 0, "running": 0}
    if ends in learns:
        assert count == Counter({"first": 1, "random": 17 - learns[ends], "tpe": learns[ends]})
    else:
        assert 0 < count["tpe"] < 14


@pytest.mark.parametrize("searcher", ["random", "grid"])
def test_points_that_are_enumerated_once_draws_repeat_are_of_the_grid(cells, monkeypatch, searcher):
    space = cells[0].space.with_overrides(
        ["learning_rate={choice: [0.001, 0.01]}", "epochs={choice: [1, 2]}", "dropout=0.1"]
    )
    assert len(list(space.points())) == 4
    monkeypatch.setattr(Space, "sample", lambda space, generator: space.first())  # draws that repeat the published one
    study, by = Study(space, searcher, (0,), []), []
    while (asked := study.ask(lambda setting: (repr(sorted(setting.items())), dict(setting)))) is not None:
        by.append(asked.by)
    assert by == ["first", "grid", "grid", "grid"]


def test_tpe_goes_on_where_its_model_repeats_one_point_of_an_endless_space(cells, monkeypatch):
    space = cells[0].space.with_overrides(["learning_rate={log_uniform: [0.001, 0.01]}"])
    assert not space.is_finite
    monkeypatch.setattr(Space, "suggest", lambda space, trial: space.first())
    study = Study(space, "tpe", (0,), [])
    by = [study.ask(lambda setting: (repr(sorted(setting.items())), dict(setting))).by for _ in range(4)]
    assert by == ["first", "random", "random", "random"]


def test_random_draws_go_on_after_many_trials_that_run_again(cells):
    space = cells[0].space.with_overrides(["learning_rate={log_uniform: [0.001, 0.01]}"])

    def identify(setting):
        return repr(sorted(setting.items())), dict(setting)

    drawn = Study(space, "random", (0,), [])
    begun = [drawn.ask(identify) for _ in range(41)]
    resumed = Study(space, "random", (0,), [])
    for one in begun[:40]:
        resumed.expect(one.trial, one.setting, one.by)
    assert resumed.ask(identify).trial == begun[40].trial


def test_a_trial_that_runs_again_keeps_its_own(spec, cells, make_record):
    planner = of_one_cell(spec, cells[0], "tpe")
    trials = [planner.next() for _ in range(1)]
    planner.begin(trials[0])
    second = planner.next()
    planner.begin(second)
    planner.retry(second, alone=True)
    assert planner.next() == second, "lost"
    lost = make_record(second, (), status="failed", error="lost", cause="worker")
    again = of_one_cell(spec, cells[0], "tpe", records=[make_record(trials[0]), lost])
    assert again.next().suggested_by == second.suggested_by == "random"
    note = {**lost.model_dump(include={"id", "number", "role", "seed", "setting", "encoder", "mode", "task"})}
    for said, expected in (({"suggested_by": "sibling"}, "sibling"), ({}, None)):  # {}: of an older version
        after = of_one_cell(spec, cells[0], "tpe", records=[make_record(trials[0])])
        after.recall([{**note, **said}])
        assert (after.next().id, after.cells[cells[0].key].running) == (second.id, {})
        after.recall([{**note, **said}])
        assert after.next().suggested_by == expected


def test_it_is_no_part_of_a_trials_identity(spec, cells):
    by_tpe, by_draws = (of_one_cell(spec, cells[0], searcher).next() for searcher in ("tpe", "random"))
    assert by_tpe.id == by_draws.id
    planner = of_one_cell(spec, cells[0], "tpe")
    assert planner.trial_id(cells[0], by_tpe.setting, 0, "search") == by_tpe.id


def test_random_trials_are_a_sample_of_the_space_whatever_siblings_find(spec, cells, make_record):
    """With a sibling whose settings win, and without: the same draws, as many as were planned, from the whole range."""
    alone = search_trials(of_one_cell(spec, cells[1], "random", trials=40), make_record)
    other = replace(cells[1], task_name="other", searcher="random", trials=40)
    both = Planner(spec, [replace(cells[1], searcher="random", trials=40), other], [])
    with_sibling = [
        p for p in all_search_trials(both, make_record, lambda p: 0.9 if p.task == "other" else 0.1)
        if p.cell == cells[1].key
    ]  # fmt: skip
    assert [p.setting for p in with_sibling] == [p.setting for p in alone]
    assert Counter(p.suggested_by for p in alone) == {"first": 1, "random": 39}
    low, high = 1e-4, 1e-1
    space = cells[1].space.with_overrides([f"learning_rate={{log_uniform: [{low}, {high}]}}"])
    drawn = search_trials(of_one_cell(spec, cells[1], "random", trials=201, space=space), make_record)[1:]
    places = [np.log(float(p.setting["learning_rate"]) / low) / np.log(high / low) for p in drawn]
    assert stats.kstest(places, "uniform").pvalue > 0.001


def all_search_trials(planner: Planner, make_record, score) -> list[Trial]:
    """All search trials of several cells."""
    return [trial for trial in planning.drive(planner, make_record, score) if trial.role == "search"]


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


def test_other_modes_are_no_siblings_and_neither_a_grid_nor_random_draws_borrow(spec, cells, make_record):
    siblings = [cells[1], sister(cells[1], "sister")]
    for searcher, some in (("tpe", cells), ("grid", siblings), ("random", siblings)):
        planner = planned(spec, some, trials=4, searcher=searcher)
        drive(planner, make_record)
        assert all(progress.study.borrowed == 0 for progress in planner.cells.values())
