"""planner: what runs again, after trials were lost, failed, or cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.planner import Planner
from meltpoint.tests.sweeps.planning import planned


def ended(make_record, proposal: Trial, **changes: object):
    return make_record(proposal, dev=(), **{"status": "failed", "error": "it broke", "cause": "setting", **changes})


def a_cell_in_which(spec, cells, make_record, *outcomes: str | None) -> tuple[list, Planner]:
    """The records of one cell's search trials, None for a finished one and else the cause; and who planned them."""
    planner = planned(spec, cells[:1], trials=len(outcomes))
    records = []
    for cause in outcomes:
        proposal = planner.next()
        assert proposal.role == "search"
        planner.begin(proposal)
        records.append(make_record(proposal) if cause is None else ended(make_record, proposal, cause=cause))
        planner.end(records[-1])
    return records, planner


def again(spec, cells, records, **options: object) -> tuple[Planner, list[str]]:
    """A planner on a ledger's records, and the search trials that it runs before it comes to the finals."""
    planner = Planner(spec, [replace(cells[0], trials=len(records))], records, **options)
    found = []
    while isinstance(proposal := planner.next(), Trial) and proposal.role == "search":
        planner.begin(proposal)
        found.append(proposal.id)
    return planner, found


def test_the_same_command_runs_lost_trials_again_and_leaves_failed_ones(spec, cells, make_record):
    records, _ = a_cell_in_which(spec, cells, make_record, None, "worker", "setting", "memory")
    assert again(spec, cells, records)[1] == [records[1].id, records[3].id]


def test_retry_failed_runs_failed_trials_again_under_their_identity(spec, cells, make_record):
    records, _ = a_cell_in_which(spec, cells, make_record, None, "setting", "worker")
    assert again(spec, cells, records, retry_failed=True)[1] == [records[1].id, records[2].id]


@pytest.mark.parametrize("retry_failed", [False, True])
def test_a_cell_whose_test_was_opened_runs_no_search_trial_again_and_forgets_none(
    spec, cells, make_record, retry_failed
):
    records, planner = a_cell_in_which(spec, cells, make_record, None, "setting", "worker")
    (progress,) = planner.cells.values()
    finals = [make_record(proposal, test={"accuracy": 0.5}) for proposal in planner.missing_finals(progress)]
    planner, found = again(spec, cells, [*records, *finals], retry_failed=retry_failed)
    assert found == []
    assert planner.is_complete()
    assert len(planner.cells[cells[0].key].search) == 3


def test_a_failed_final_runs_again_though_others_of_its_cell_were_scored(spec, cells, make_record):
    records, planner = a_cell_in_which(spec, cells, make_record, None, None)
    (progress,) = planner.cells.values()
    first, second = planner.missing_finals(progress)
    finals = [make_record(first, test={"accuracy": 0.5}), ended(make_record, second, cause="worker")]
    planner, found = again(spec, cells, [*records, *finals])
    assert found == []
    assert [proposal.id for proposal in planner.missing_finals(planner.cells[cells[0].key])] == [second.id]


def test_finals_wait_while_trials_of_their_cell_are_tried_again(spec, cells, make_record):
    records, _ = a_cell_in_which(spec, cells, make_record, None, None, "worker")
    planner, (trial,) = again(spec, cells, records)
    (progress,) = planner.cells.values()
    assert planner.next() == "wait"
    planner.end(make_record(progress.running[trial]))
    assert planner.next().role == "final"


def test_a_trial_lost_after_the_time_budget_does_not_hold_up_the_finals(spec, cells, make_record):
    planner = planned(spec, cells[:1], trials=5)
    first = planner.next()
    planner.begin(first)
    planner.end(make_record(first))
    second = planner.next()
    planner.begin(second)
    planner.close_search()
    planner.retry(second, alone=False)
    assert planner.next().role == "final"
    assert not planner.has_work_again()


def test_a_trial_that_found_other_files_is_no_verdict_on_its_setting_and_runs_again(spec, cells, make_record):
    records, _ = a_cell_in_which(spec, cells, make_record, None, "input")
    assert records[1].is_lost
    assert again(spec, cells, records)[1] == [records[1].id]
