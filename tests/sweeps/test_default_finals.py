"""The published setting's finals: when they are run, what answers them, and what closes, retries and scores them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import finalist_name
from meltpoint.sweeps.ledger.records import TrialRecord, trial_label
from meltpoint.sweeps.search.locked_test import ClosingLogs, closing_of, opened_trials
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check
from meltpoint.tests.sweeps.one_process import quiet_driver
from meltpoint.tests.sweeps.planning import (
    SEEDS,
    TRIALS,
    Score,
    best_is,
    of_few_trials,
    progress_of,
    searched,
    taken,
    with_default_finals,
)


@pytest.fixture
def wanted(spec: SweepSpec) -> SweepSpec:
    return with_default_finals(spec)


@pytest.fixture
def cell(cells: list[OpenCell]) -> OpenCell:
    return of_few_trials(cells)


# --- what is run ---


def test_they_come_after_the_finals_with_the_same_seeds_and_the_published_setting(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    finals = taken(planner)
    assert [(p.role, p.seed, p.number) for p in finals] == [
        ("final", 0, 0), ("final", 1, 1), ("default", 0, 0), ("default", 1, 1)
    ]  # fmt: skip
    first = {key: finals[2].setting[key] for key in cell.space.first()}
    assert first == cell.space.first() != {key: finals[0].setting[key] for key in cell.space.first()}
    assert len({p.id for p in finals} | set(progress_of(planner).search)) == TRIALS + 2 * SEEDS, "own identities"


def test_where_the_published_setting_is_the_best_one_nothing_more_is_run(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(0))
    finals = taken(planner)
    assert [p.role for p in finals] == ["final"] * SEEDS
    for proposal in finals:
        planner.end(make_record(proposal, test={"accuracy": 0.5}))
    assert planner.is_complete()


def test_none_are_planned_where_they_are_not_asked_for_or_nothing_else_is_tried(wanted, cell, make_record):
    for spec, own in ((wanted.model_copy(update={"default_finals": False}), cell), (wanted, replace(cell, trials=1))):
        planner = searched(spec, own, make_record, best_is(2))
        assert [p.role for p in taken(planner)] == ["final"] * SEEDS


def test_the_published_settings_search_trial_answers_its_final_of_that_seed_alone(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    progress = progress_of(planner)
    first, second = planner.missing_defaults(progress)
    answer = planner.answer(progress, first)
    assert answer is not None
    assert (answer.number, answer.suggested_by, answer.setting) == (0, "first", first.setting)
    assert planner.answer(progress, second) is None
    final, _ = planner.missing_finals(progress)
    assert planner.answer(progress, final) == progress.best != answer


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_published_setting_that_did_not_finish_in_the_search_answers_nothing(wanted, cell, make_record, status):
    planner = Planner(wanted, [cell], [])
    for proposal in taken(planner):
        changes = {"status": status, "error": "nan"} if proposal.number == 0 else {}
        planner.end(make_record(proposal, **changes))
    progress = progress_of(planner)
    assert [planner.answer(progress, proposal) for proposal in planner.missing_defaults(progress)] == [None, None]


def test_a_sweep_is_complete_once_they_are_scored_and_not_before(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    for proposal in taken(planner):
        planner.end(make_record(proposal, test={"accuracy": 0.5} if proposal.role == "final" else None))
    assert not planner.is_complete()
    for record in [*progress_of(planner).defaults.values()]:
        planner.end(record.model_copy(update={"test": {"accuracy": 0.4}}))
    assert planner.is_complete()


def test_lost_ones_run_again_and_failed_ones_when_asked(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    ends = {"final": {"test": {"accuracy": 0.5}}, "default": {"status": "failed", "error": "it broke"}}
    for proposal in taken(planner):
        cause = {"cause": "worker" if proposal.seed == 0 else "setting"} if proposal.role == "default" else {}
        planner.end(make_record(proposal, **ends[proposal.role], **cause))
    records = planner.counted()
    again = taken(Planner(wanted, [cell], records))
    assert [(p.role, p.seed) for p in again] == [("default", 0)]
    again = taken(Planner(wanted, [cell], records, retry_failed=True))
    assert [(p.role, p.seed) for p in again] == [("default", 0), ("default", 1)]


def test_an_opening_for_one_of_them_closes_the_cells_search(wanted, cell, make_record, tmp_path):
    planner = searched(wanted, cell, make_record, best_is(2))
    ledger = Ledger(tmp_path / "sweep")
    ledger.create()
    default = make_record(planner.missing_defaults(progress_of(planner))[0])
    records = [*planner.counted(), default]
    assert closing_of(ClosingLogs.read(ledger), records, 9) is None
    ledger.openings.write_text(json.dumps({"trial": default.id, "opened_at": 1.7e9}) + "\n", encoding="utf-8")
    closing = closing_of(ClosingLogs.read(ledger), records, 9)
    assert closing is not None
    assert (closing.trials, closing.opened_at) == (TRIALS, 1.7e9), "the search trials alone are counted"
    wider = replace(cell, trials=9)
    assert {p.role for p in taken(Planner(wanted, [wider], records, opened=opened_trials(ledger)))} == {
        "final", "default"
    }  # fmt: skip
    assert any(p.role == "search" for p in taken(Planner(wanted, [wider], records)))


# --- the driver: weights, scores, what is said ---


class FakeScorer:
    """Notes what is sent to be scored."""

    def __init__(self) -> None:
        self.groups: list[list[TrialRecord]] = []
        self.pending, self.damaged, self.troubles, self.submitted = {}, [], {}, set()

    def prepare(self, order) -> None: ...

    def submit(self, orders, records) -> None:
        assert [order.id for order in orders] == [record.id for record in records]
        self.submitted |= {record.id for record in records}
        self.groups.append(list(records))

    def collect(self, timeout_seconds: float) -> list[TrialRecord]:
        return []


@pytest.fixture
def make_driver(tmp_path):
    """Makes a driver of a planner, with a scorer that only notes, and folders in place of weights."""

    def make(planner: Planner, name: str = "sweep") -> SweepDriver:
        ledger = Ledger(tmp_path / name)
        ledger.create()
        return quiet_driver(planner, ledger, FakeScorer())

    return make


def weigh(driver: SweepDriver, *trials: str) -> None:
    for trial in trials:
        driver.ledger.checkpoint(trial).mkdir(parents=True)
        (driver.ledger.checkpoint(trial) / "weights.safetensors").touch()


def with_weights(driver: SweepDriver) -> set[str]:
    return {path.name for path in (driver.ledger.folder / "checkpoints").glob("*")}


def search_with_weights(driver: SweepDriver, make_record, score: Score) -> None:
    """Run the search as the driver ends its trials: each leaves weights, and the losers' go."""
    for proposal in taken(driver.planner):
        weigh(driver, proposal.id)
        progress = progress_of(driver.planner)
        before = progress.best
        record = make_record(proposal, (score(proposal),))
        driver.planner.end(record)
        driver.finals.drop_losers(progress, [record] if before is None else [record, before])


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_published_settings_weights_stay_until_its_final_has_them(wanted, cell, make_record, make_driver, best):
    driver = make_driver(Planner(wanted, [cell], []), f"best {best}")
    search_with_weights(driver, make_record, best_is(best))
    progress = progress_of(driver.planner)
    assert with_weights(driver) == {progress.best.id, progress.published_trial}
    driver.finals.answer()
    answered = [*progress.finals.values(), *progress.defaults.values()]
    assert [(r.role, r.seed, r.answered_by, r.suggested_by) for r in answered] == [
        ("final", 0, progress.best.id, None),
        *([("default", 0, progress.published_trial, None)] if best else []),
    ]
    assert with_weights(driver) == {record.id for record in answered}
    assert [(p.role, p.seed) for p in taken(driver.planner)] == [("final", 1), *([("default", 1)] if best else [])]


def test_they_are_scored_together_apart_from_the_finals_and_their_weights_go(wanted, cell, make_record, make_driver):
    driver = make_driver(searched(wanted, cell, make_record, best_is(2)))
    for proposal in taken(driver.planner):
        driver.planner.end(make_record(proposal, (0.7 + 0.1 * proposal.seed,)))
        weigh(driver, proposal.id)
    driver.score(0.0)
    driver.score(0.0)
    groups = driver.finals.scorer.groups
    assert [[(r.role, r.seed) for r in group] for group in groups] == [
        [("final", 0), ("final", 1)], [("default", 0), ("default", 1)]
    ]  # fmt: skip
    for record in (record for group in groups for record in group):
        driver.finals.keep_score(record.model_copy(update={"test": {"accuracy": 0.5}, "test_fingerprint": "a"}))
    assert with_weights(driver) == {groups[0][1].id}, "the best final's alone"
    assert driver.planner.is_complete()
    assert driver.finals._test_of(groups[1][0]) == "a", "one test split for all of a task"


def test_a_lost_final_keeps_its_saved_epochs_and_a_former_best_setting_loses_its_weights(
    wanted, cell, make_record, make_driver
):
    driver = make_driver(searched(wanted, cell, make_record, best_is(2)))
    first, second = (proposal for proposal in taken(driver.planner) if proposal.role == "final")
    lost = make_record(second, status="failed", error="lost", cause="worker")
    former = make_record(first.model_copy(update={"id": "f" * 16, "setting": {**first.setting, "dropout": 0.123}}))
    for record in (former, make_record(first), lost):
        driver.planner.end(record)
        weigh(driver, record.id)
    scored = make_record(first).model_copy(update={"test": {"accuracy": 0.5}, "test_fingerprint": "a"})
    driver.finals.keep_score(scored)
    assert with_weights(driver) == {first.id, lost.id}


def test_one_with_damaged_weights_is_trained_again_once(wanted, cell, make_record, make_driver):
    driver = make_driver(searched(wanted, cell, make_record, best_is(2)))
    for proposal in taken(driver.planner):
        driver.planner.end(make_record(proposal))
    default = next(iter(progress_of(driver.planner).defaults.values()))
    driver.finals.train_again(default, "damaged")
    assert [(p.role, p.id) for p in taken(driver.planner)] == [("default", default.id)]
    driver.planner.end(default)
    driver.finals.train_again(default, "damaged")
    assert "after it was retrained" in driver.finals.scorer.troubles[default.id]


def test_labels_and_file_names_tell_them_from_finals(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    final, _, default, _ = taken(planner)
    assert [trial_label(one) for one in (final, default)] == ["final, seed 0", "default, seed 0"]
    names = [finalist_name(cell.name, make_record(p)) for p in (final, default)]
    assert names == [f"{cell.name}.seed0", f"{cell.name}.default.seed0"]


def test_a_variant_that_would_share_their_file_names_is_refused_unless_there_are_none(wanted):
    block = Block(encoders=wanted.encoders, modes=wanted.modes, tasks=wanted.tasks, head="linear", variant="default")
    spec = wanted.model_copy(update={"blocks": (block,)})
    with pytest.raises(ValueError, match=r"variant 'default': .* or add --no-default-finals\."):
        check(spec)
    check(spec.model_copy(update={"default_finals": False}))
