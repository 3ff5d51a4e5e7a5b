"""planner and studies: which trial comes next, and what the studies learn of those that ended."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.selection import best_of, spread
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.tests.sweeps.planning import drive, note_of, planned


def test_every_cell_gets_its_trials_and_then_its_finals(spec, cells, make_record):
    taken = drive(Planner(spec, cells, []), make_record)
    assert len(taken) == 2 * (3 + 2)
    for cell in cells:
        own = [proposal for proposal in taken if proposal.cell == cell.key]
        assert [p.role for p in own] == ["search"] * 3 + ["final"] * 2
        assert [p.seed for p in own] == [0, 0, 0, 0, 1]


def test_the_published_setting_is_the_first_trial_of_each_cell(spec, cells, make_record):
    for searcher in ("gp", "tpe", "random", "grid"):
        taken = drive(planned(spec, cells, searcher=searcher), make_record)
        for cell in cells:
            first = next(p for p in taken if p.cell == cell.key)
            assert {key: first.setting[key] for key in cell.space.first()} == cell.space.first()


@pytest.mark.parametrize("searcher", ["gp", "tpe", "random", "grid"])
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["between trials", "within trials"])
def test_an_interrupted_search_proposes_what_an_undisturbed_one_does(spec, cells, make_record, searcher, is_cut_off):
    spec = spec.model_copy(update={"trials": 12, "searcher": searcher})
    one = [replace(cells[0], trials=12, searcher=searcher)]

    def score(proposal: Trial) -> float:
        return 1 / (1 + abs(float(proposal.setting["learning_rate"]) - 3e-3))

    undisturbed = [p.id for p in drive(Planner(spec, one, []), make_record, score) if p.role == "search"]
    records: list[TrialRecord] = []
    for number in range(len(undisturbed)):  # each trial by a process of its own
        planner = Planner(spec, one, records)
        proposal = planner.next()
        assert isinstance(proposal, Trial)
        if is_cut_off:
            planner = Planner(spec, one, records)
            planner.recall([note_of(proposal)])
            assert planner.next() == proposal
        records.append(make_record(proposal, dev=(score(proposal),)))
        assert proposal.id == undisturbed[number]


def test_a_published_setting_whose_record_is_gone_is_proposed_again(spec, cells, make_record):
    one = [replace(cells[0], trials=4)]
    first, *others = drive(Planner(spec.model_copy(update={"trials": 4}), one, []), make_record)[:4]
    found = Planner(spec.model_copy(update={"trials": 4}), one, [make_record(p) for p in others]).next()
    assert isinstance(found, Trial)
    assert found.id == first.id


@pytest.mark.parametrize("lost", range(4))
def test_a_trial_whose_record_is_gone_gets_its_number_again_and_no_other_has_it(spec, cells, make_record, lost):
    wanted, one = spec.model_copy(update={"trials": 6, "searcher": "random"}), [replace(cells[0], trials=6)]
    one = [replace(one[0], searcher="random")]
    begun = drive(Planner(wanted, one, []), make_record)[:4]
    left = [make_record(proposal) for proposal in begun if proposal.number != lost]
    planner = Planner(wanted, one, left)
    again = [proposal for proposal in drive(planner, make_record) if proposal.role == "search"]
    assert (again[0].id, again[0].number) == (begun[lost].id, lost)
    (progress,) = planner.cells.values()
    assert sorted(record.number for record in progress.search.values()) == list(range(6))


def test_no_cell_runs_ahead_of_another(spec, cells):
    planner = planned(spec, cells, trials=6)
    begun = dict.fromkeys((cell.key for cell in cells), 0)
    for _ in range(12):
        proposal = planner.next()
        planner.begin(proposal)
        begun[proposal.cell] += 1
        assert max(begun.values()) - min(begun.values()) <= 1


def test_no_setting_is_tried_twice(spec, cells, make_record):
    for searcher in ("tpe", "random"):
        taken = drive(planned(spec, cells, trials=12, searcher=searcher), make_record)
        search = [p.id for p in taken if p.role == "search"]
        assert len(set(search)) == len(search) == 24


def test_a_finite_space_is_searched_whole_and_without_repeats(spec, cells, make_record):
    # 2 learning rates × 2 dropouts make 4 grid points, though 50 trials are asked for.
    planner = planned(spec, cells, trials=50, searcher="grid")
    taken = [p for p in drive(planner, make_record) if p.role == "search"]
    assert len(taken) == 2 * 4
    points = {(p.cell, p.setting["learning_rate"], p.setting["dropout"]) for p in taken}
    assert len(points) == 8


def test_the_best_dev_is_the_finalist_and_its_settings_are_the_same_for_every_seed(spec, cells, make_record):
    taken = drive(Planner(spec, cells, []), make_record, score=lambda p: 0.9 if p.number == 1 else 0.1)
    for cell in cells:
        own = [p for p in taken if p.cell == cell.key]
        assert [p.setting for p in own if p.role == "final"] == [own[1].setting] * 2


def test_an_identity_depends_on_setting_seed_role_and_data(spec, cells):
    planner, cell = Planner(spec, cells, []), cells[0]
    setting = {"learning_rate": 1e-3, "epochs": 2}
    same = planner.trial_id(cell, setting, 0, "search")
    assert planner.trial_id(cell, dict(reversed(setting.items())), 0, "search") == same
    others = {
        planner.trial_id(cell, {**setting, "epochs": 3}, 0, "search"),
        planner.trial_id(cell, setting, 1, "search"),
        planner.trial_id(cell, setting, 0, "final"),
        planner.trial_id(cells[1], setting, 0, "search"),
    }
    assert len(others | {same}) == 5


def test_a_failed_trial_is_closed_in_the_study_as_the_worst_there_is(spec, cells, make_record):
    planner = Planner(spec, cells, [])
    for _ in range(6):
        proposal = planner.next()
        planner.begin(proposal)
        planner.end(make_record(proposal, dev=(), status="failed", error="the loss is not finite"))
    assert planner.next() == "done"
    for progress in planner.cells.values():
        states = [trial.state for trial in progress.study.study.get_trials()]
        assert TrialState.RUNNING not in states
        assert states.count(TrialState.PRUNED) == 3
        assert progress.best is None


def test_a_stopped_trial_teaches_the_study_but_cannot_win(spec, cells, make_record):
    planner = planned(spec, cells, searcher="tpe")
    first = planner.next()
    planner.begin(first)
    planner.end(make_record(first, dev=(0.99,), status="stopped"))
    progress = planner.cells[first.cell]
    assert progress.best is None
    assert progress.study.study.get_trials()[0].intermediate_values == {1: 0.99}


def test_a_gaussian_process_learns_the_score_of_a_stopped_trial_and_ignores_a_failed_one(spec, cells, make_record):
    planner = planned(spec, cells[:1], trials=4, searcher="gp")
    for changes in ({"status": "failed"}, {"dev": (0.25,)}, {"dev": (0.75,), "status": "stopped"}):
        proposal = planner.next()
        planner.begin(proposal)
        planner.end(make_record(proposal, **changes))
    study = planner.cells[cells[0].key].study.study
    assert [trial.value for trial in study.get_trials()] == [None, 0.25, 0.75]


def test_past_trials_are_told_to_a_fresh_study(spec, cells, make_record):
    planner = Planner(spec, cells, [])
    first = planner.next()
    record = make_record(first, dev=(0.25, 0.75))
    told = Planner(spec, cells, [record]).cells[first.cell].study.study.get_trials()
    assert [(trial.state, trial.value) for trial in told] == [(TrialState.COMPLETE, 0.75)]
    assert told[0].params["learning_rate"] == first.setting["learning_rate"]


def test_a_spent_time_budget_ends_the_search_and_sends_cells_to_their_finals(spec, cells, make_record):
    planner = Planner(spec, cells, [])
    first = planner.next()
    planner.begin(first)
    planner.end(make_record(first))
    planner.close_search()
    rest = drive(planner, make_record)
    assert [(p.cell, p.role) for p in rest] == [(first.cell, "final")] * 2


def test_the_best_that_is_kept_is_the_best_of_all_however_they_end_and_change(spec, cells, make_record):
    draw = random.Random(0)
    (progress, *_) = Planner(spec, cells, []).cells.values()
    for _ in range(200):
        number = draw.randrange(12)
        proposal = cells[0].trial(f"{number:016x}", number, "search", {}, 0)
        status = draw.choice(["finished", "finished", "stopped", "failed"])
        progress.ended(make_record(proposal, dev=(draw.randrange(5) / 4,), status=status))
        assert progress.best == best_of(progress.search.values())


def test_best_is_the_highest_dev_then_the_shorter_course_then_the_first(spec, cells, make_record):
    proposal = Planner(spec, cells, []).next()

    def record(number: int, *dev: float, status: str = "finished"):
        return make_record(proposal, dev=dev, id=str(number), number=number, status=status)

    assert best_of([record(0, 0.7), record(1, 0.9), record(2, 0.8)]).number == 1
    assert best_of([record(0, 0.1, 0.9), record(1, 0.9)]).number == 1
    assert best_of([record(1, 0.9), record(0, 0.9)]).number == 0
    assert best_of([record(0, 0.9, status="stopped"), record(1, 0.1)]).number == 1
    assert best_of([]) is None


def test_every_reader_finds_the_same_best_of_equals_in_whatever_order_it_reads(spec, cells, make_record):
    proposal = Planner(spec, cells, []).next()
    # Two trials of one number: of a sweep of an older version, whose record was damaged and set aside.
    equals = [make_record(proposal, dev=(0.5,), id=one, number=1) for one in ("b", "a", "c")]
    assert {best_of(order).id for order in itertools.permutations(equals)} == {"a"}


def test_the_spread_of_one_seed_has_no_deviation():
    assert spread([0.5]).std is None
    assert spread([0.4, 0.6]).mean == pytest.approx(0.5)
    assert spread([0.4, 0.6]).std == pytest.approx(0.1414213562)
    assert spread([]) is None


def test_among_equally_served_cells_the_one_with_the_longest_trials_comes_first(spec, cells, make_record):
    long = replace(cells[1], task_name="long", length=replace(cells[1].length, mean=50.0))
    planner = planned(spec, [*cells, long], trials=1, seeds=2)
    taken = drive(planner, make_record)
    order = [(p.task, p.mode) for p in taken]
    fine_tuned, frozen = (cells[1].task_name, "fine_tuning"), (cells[0].task_name, "feature_extraction")
    assert order[:2] == [("long", "fine_tuning"), ("long", "fine_tuning")], "its search, then its finals at once"
    assert order.index(fine_tuned) < order.index(frozen)


# --- trials that train side by side ---


def frozen_only(cells: list[OpenCell]) -> list[OpenCell]:
    return [cell for cell in cells if cell.mode == "feature_extraction"]


def test_trials_of_a_frozen_cell_come_together_and_an_encoder_that_trains_has_its_own_order(spec, cells):
    for cell in cells:
        together = planned(spec, [cell], trials=4).next_together(slots=1)
        assert len(together) == (4 if cell.mode == "feature_extraction" else 1)
        assert {proposal.cell for proposal in together} == {cell.key}


def test_trials_of_lora_come_together_where_there_are_gpus(spec, cells):
    fine_tuned = next(cell for cell in cells if cell.mode == "fine_tuning")
    lora = open_cells(spec.model_copy(update={"modes": ("lora",)}))[0]
    for cell, gpus, size in ((lora, 1, 4), (lora, 2, 2), (lora, 0, 1), (fine_tuned, 1, 1)):
        planner = planned(spec, [cell], trials=4)
        planner.gpus = gpus
        assert len(planner.next_together(slots=8)) == size


@pytest.mark.parametrize("together", [1, 2])
def test_a_final_is_the_search_s_run_unless_that_trained_its_encoder_beside_others(spec, make_record, together: int):
    cell = open_cells(spec.model_copy(update={"modes": ("lora",)}))[0]
    planner = planned(spec, [cell], trials=1)
    (trial,) = planner.next_together(slots=1)
    planner.end(make_record(trial).model_copy(update={"trained_together": together}))
    progress = planner.cells[cell.key]
    final = planner.missing_finals(progress)[0]
    assert final.seed == trial.seed
    assert (planner.answer(progress, final) is None) == (together > 1)


def test_trials_that_train_together_are_different_and_begin_together(spec, cells):
    planner = planned(spec, frozen_only(cells), trials=6)
    together = planner.next_together(slots=1)
    progress = planner.cells[cells[0].key]
    assert len({proposal.id for proposal in together}) == len(together) == len(progress.running)
    assert [proposal.number for proposal in together] == list(range(len(together)))


def test_a_stack_leaves_work_for_the_other_workers(spec, cells):
    for slots, size in ((1, 8), (2, 6), (4, 3), (50, 1)):
        planner = planned(spec, frozen_only(cells), trials=12, searcher="random")
        assert len(planner.next_together(slots)) == size


def test_a_model_is_told_results_at_least_three_times_in_a_search(spec, cells, make_record):
    planner = planned(spec, frozen_only(cells), trials=32, seeds=1)
    stacks = []
    while not isinstance(together := planner.next_together(slots=1), str):
        stacks.append([proposal.role for proposal in together])
        for proposal in together:
            planner.end(make_record(proposal))
    search = [roles for roles in stacks if roles[0] == "search"]
    assert len(search) == 4
    assert sum(len(roles) for roles in search) == 32


def test_a_cell_with_early_stopping_trains_its_trials_one_by_one(spec, cells):
    (cell,) = frozen_only(cells)
    space = cell.space.with_overrides(["early_stopping={grace_epochs: 1}"])
    planner = planned(spec, [replace(cell, space=space)], trials=4)
    assert len(planner.next_together(1)) == 1


def test_trials_that_were_cut_off_together_come_together_again(spec, cells, make_record):
    planner = planned(spec, frozen_only(cells), trials=4)
    begun = planner.next_together(1)
    again = planned(spec, frozen_only(cells), trials=4)
    again.recall([note_of(proposal) for proposal in begun])
    assert [proposal.id for proposal in again.next_together(1)] == [proposal.id for proposal in begun]
