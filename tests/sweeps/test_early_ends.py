"""early ends: which searches the race and `--trials auto` end, and that no order of events changes it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from meltpoint.sweeps.driver.start import asked_sweep
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import write_sweep
from meltpoint.sweeps.search.early_ends import (
    Entrant,
    can_no_longer_win,
    check_searches,
    checks,
    expected_gain,
    upper_bound,
)
from meltpoint.sweeps.search.planner import Planner
from meltpoint.tests.sweeps.planning import note_of

MARGIN = 0.01
LEVELS = {"feature_extraction": 0.6, "fine_tuning": 0.9}
"""Dev of a mode's trials, far from each other."""


def key(name: str, task: str = "sst2") -> tuple[str, ...]:
    return ("minilm", name, task)


def entrant(name: str, scores: list[float | None], planned: int = 16, dev: int = 1000, **changes: object) -> Entrant:
    return Entrant(key(name), 0, planned, "accuracy", dev, dict(enumerate(scores)), **changes)  # type: ignore[arg-type]


def test_checks_come_ever_more_rarely():
    assert list(checks(16)) == [4, 8, 12]
    assert list(checks(4)) == []
    assert list(checks(60)) == [4, 8, 12, 16, 24, 36, 52]


def test_the_expected_gain_is_that_of_one_more_trial_where_the_tail_is_exponential():
    draws = np.random.default_rng(0).exponential(0.02, (4000, 9))
    for count in (4, 8):
        true = (draws[:, : count + 1].max(1) - draws[:, :count].max(1)).mean()
        told = np.mean([expected_gain(sorted(one[:count], reverse=True)) for one in draws])
        assert told == pytest.approx(true, rel=0.12)


def test_differences_that_dev_makes_by_chance_are_no_gain():
    scores = [0.90, 0.89, 0.88, 0.86]
    for dev, ended in ((100, True), (10_000, False)):
        found = check_searches([entrant("one", scores, dev=dev)], race=False, auto=True, margin=MARGIN)
        assert bool(found.ends) is ended


@pytest.mark.parametrize(("shape", "most"), [("uniform", 0.02), ("normal", 0.07), ("exponential", 0.18)])
def test_the_rest_of_a_search_seldom_exceeds_what_it_may_reach(shape, most):
    generator, count = np.random.default_rng(1), 8
    draws = getattr(generator, shape)(size=(4000, 16))
    beyond = [one.max() > upper_bound(sorted(one[:count], reverse=True), 16 - count) for one in draws]
    assert np.mean(beyond) <= most  # above `RISK` in the tail that is assumed: its scale is estimated from four trials


def test_a_cell_far_behind_is_dropped_and_a_cell_close_behind_is_not():
    leader = entrant("leader", [0.90, 0.89, 0.90, 0.88])
    for best, dropped in ((0.70, True), (0.89, False)):
        other = entrant("other", [best, best - 0.01, best - 0.02, best - 0.02])
        found = check_searches([leader, other], race=True, auto=False, margin=MARGIN)
        assert (key("other") in found.ends) is dropped
        assert key("leader") not in found.ends


def test_a_small_dev_split_drops_nobody_for_a_difference_that_may_be_noise():
    scores = [0.80, 0.80, 0.79, 0.79]
    for dev, dropped in ((50, False), (5000, True)):
        assert can_no_longer_win(entrant("a", scores, dev=dev), 4, 0.88, MARGIN) is dropped


def test_an_error_in_the_tasks_own_unit_drops_nobody():
    one = replace(entrant("a", [-3.0, -3.1, -3.0, -3.0]), metric="mse")
    assert not can_no_longer_win(one, 4, -0.1, MARGIN)


def test_a_cell_waits_for_its_rivals_and_only_for_them():
    late, early = entrant("late", [0.9, 0.8]), entrant("early", [0.7, 0.69, 0.68, 0.7])
    found = check_searches([late, early], race=True, auto=True, margin=MARGIN)
    assert found.limits == {key("late"): 4, key("early"): 4}
    assert not found.ends
    apart = check_searches([late, replace(early, key=key("early", "mrpc"))], race=True, auto=False, margin=MARGIN)
    assert apart.limits == {key("late"): 4, key("early", "mrpc"): 8}
    over = check_searches([replace(late, is_over=True), early], race=True, auto=False, margin=MARGIN)
    assert set(over.ends) == {key("early")}, "a search that the time budget ended keeps nobody waiting"


def test_a_cell_with_later_trials_is_not_ended_at_an_earlier_check():
    leader, other = entrant("leader", [0.9] * 6), entrant("other", [0.6] * 6)
    assert not check_searches([leader, other], race=True, auto=True, margin=MARGIN).ends


def test_failed_trials_count_as_trials_and_have_no_score():
    failed = entrant("failed", [None, None, None, 0.5])
    leader = entrant("leader", [0.9001, 0.9, 0.9, 0.9])
    found = check_searches([leader, failed], race=True, auto=True, margin=MARGIN)
    assert set(found.ends) == {key("leader")}, "one score says nothing of the next"


def test_a_search_whose_trials_all_collapsed_goes_on():
    collapsed, leader = entrant("collapsed", [0.6] * 4), entrant("leader", [0.9, 0.88, 0.87, 0.8])
    assert not check_searches([leader, collapsed], race=True, auto=True, margin=0.0).ends
    perfect = entrant("perfect", [1.0] * 4)
    assert set(check_searches([perfect], race=False, auto=True, margin=MARGIN).ends) == {key("perfect")}


# A planner.


def racing(spec, cells, **changes: object) -> tuple:
    """A specification of 12 random trials that races, and its cells."""
    spec = spec.model_copy(update={"trials": 12, "seeds": 1, "searcher": "random", "race": True, **changes})
    return spec, [replace(cell, trials=12, seeds=1, searcher="random", epoch_dev_examples=1000) for cell in cells]


def score(trial: Trial) -> float:
    """A dev score that depends on the trial alone."""
    return LEVELS[trial.mode] + 0.02 * random.Random(trial.id).random()


def run(planner: Planner, make_record, order: random.Random, slots: int, stop_after: int = 10**6) -> list[TrialRecord]:
    """Records of the trials that end, in any order, of those under way in so many slots."""
    under_way: list[Trial] = []
    ended: list[TrialRecord] = []
    while len(ended) < stop_after:
        while len(under_way) < slots and isinstance(trial := planner.next(), Trial):
            planner.begin(trial)
            under_way.append(trial)
        if not under_way:
            break
        trial = under_way.pop(order.randrange(len(under_way)))
        ended.append(make_record(trial, dev=(score(trial),)))
        planner.end(ended[-1])
    return ended


def searched(records: list[TrialRecord]) -> dict[str, set[str]]:
    return {mode: {r.id for r in records if r.mode == mode and r.role == "search"} for mode in LEVELS}


def test_a_race_ends_the_worse_search_and_every_cell_has_its_finals(spec, cells, make_record):
    spec, cells = racing(spec, cells)
    records = run(Planner(spec, cells, []), make_record, random.Random(0), slots=2)
    assert {mode: len(found) for mode, found in searched(records).items()} == {
        "feature_extraction": 4, "fine_tuning": 12,
    }  # fmt: skip
    assert {r.mode for r in records if r.role == "final"} == set(LEVELS)


@pytest.mark.parametrize("seed", range(12))
def test_order_number_of_workers_and_kills_change_neither_trials_nor_ends(spec, cells, make_record, seed):
    spec, cells = racing(spec, cells, auto_trials=True)
    order = random.Random(seed)
    slots, cuts = order.randint(1, 6), [order.randint(1, 8) for _ in range(order.randint(0, 4))]
    expected = searched(run(Planner(spec, cells, []), make_record, random.Random(0), slots=1))
    records: list[TrialRecord] = []
    for stop_after in [*cuts, 10**6]:
        records += run(Planner(spec, cells, records), make_record, order, slots, stop_after)
    assert searched(records) == expected


def test_trials_that_were_under_way_when_the_driver_died_run_first_and_the_check_waits_for_them(
    spec, cells, make_record
):
    spec, cells = racing(spec, cells)
    planner = Planner(spec, cells, [])
    records = run(planner, make_record, random.Random(0), slots=4, stop_after=6)
    under_way = [t for p in planner.cells.values() for t in p.running.values()]
    assert under_way
    again = Planner(spec, cells, records)
    again.recall(map(note_of, under_way))
    records += run(again, make_record, random.Random(1), slots=4)
    alone = run(Planner(spec, cells, []), make_record, random.Random(0), slots=1)
    assert searched(records) == searched(alone)


def test_the_summary_reads_the_same_ends_from_the_ledger(spec, cells, make_record, tmp_path):
    spec, cells = racing(spec, cells)
    ledger = Ledger(tmp_path / spec.name)
    write_sweep(ledger, asked_sweep(spec, cells, "on_the_fly"))
    for record in run(Planner(spec, cells, []), make_record, random.Random(0), slots=2):
        ledger.write(record)
    frozen, tuned = summarise(ledger).cells
    assert frozen.early_end is not None
    assert frozen.early_end.trials == 4
    assert frozen.counts["planned"] == 4
    assert frozen.counts["missing"] == 0
    assert tuned.early_end is None
    assert tuned.counts["planned"] == 12
    assert frozen.early_end.behind == pytest.approx(0.3, abs=0.021)  # `LEVELS`, give or take the trials' own share


def test_a_larger_margin_takes_a_dropped_cell_back_while_its_test_is_closed(spec, cells, make_record):
    spec, cells = racing(spec, cells)
    records = [
        record
        for record in run(Planner(spec, cells, []), make_record, random.Random(0), slots=1)
        if record.role == "search"
    ]
    frozen = next(p for p in Planner(spec, cells, records).cells.values() if p.cell.mode == "feature_extraction")
    assert frozen.target == 4
    wide = spec.model_copy(update={"margin": 0.5})
    frozen = next(p for p in Planner(wide, cells, records).cells.values() if p.cell.mode == "feature_extraction")
    assert frozen.target == 12
    assert frozen.may_begin
