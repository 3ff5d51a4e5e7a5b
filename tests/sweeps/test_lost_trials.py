"""Trials that were lost, failed or cut off run again; missing finals are said; records of other cells never win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meltpoint.reports.notes import notes, trial_notes
from meltpoint.sweeps.driver.cell_endings import missing_finals
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import FACTS, Trial
from meltpoint.sweeps.on_ray.workers import Scorer
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.retrain import retrain
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.worker.worker import run
from meltpoint.tests.sweeps.one_process import quiet_driver
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
    records, _ = a_cell_in_which(spec, cells, make_record, None, "worker", "setting", "memory", "input")
    assert again(spec, cells, records)[1] == [records[1].id, records[3].id, records[4].id]


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


@pytest.fixture
def summary_of(spec, cells, make_record, tmp_path: Path):
    """The summary of a one-cell sweep: a finished search trial, a scored final, and one that failed by a cause."""

    def made(cause: str) -> SweepSummary:
        own = spec.model_copy(update={"modes": ("feature_extraction",), "trials": 1})
        opened = [cell for cell in cells if cell.mode == "feature_extraction"]
        ledger = Ledger(tmp_path / cause)
        settle_specification(ledger, own.model_copy(update={"name": cause}), opened)
        planner = Planner(own, opened, [])
        (progress,) = planner.cells.values()
        progress.planned = 1
        search = make_record(planner.next(), code_version=code_version())
        planner.end(search)
        scored, failed = planner.missing_finals(progress)
        ledger.write(search)
        ledger.write(make_record(scored, test={"accuracy": 0.5}, code_version=code_version()))
        changes = {"status": "failed", "error": "it went wrong", "cause": cause}
        ledger.write(make_record(failed, dev=(), code_version=code_version(), **changes))
        return summarise(ledger)

    return made


@pytest.mark.parametrize(
    ("cause", "state", "way"),
    [("setting", "failed", "add --retry-failed to retry"), ("worker", "stopped", "the same command retries")],
)
def test_a_missing_final_is_said_with_its_error_and_what_tries_it_again(summary_of, cause, state, way):
    summary = summary_of(cause)
    (cell,) = summary.cells
    assert summary.state == state
    line = missing_finals(summary, cell)
    assert line is not None
    assert "1 of 2 finals without a result (it went wrong)" in line
    assert line.endswith(f"{way}.")
    assert [note.partition(": ")[2] for note in trial_notes(summary)] == ["of 2 finals, 1 without a result."]


OTHERS = {**dict.fromkeys(FACTS, "other"), "code_version": "0"}


@pytest.mark.parametrize("fact", OTHERS)
def test_a_record_that_is_not_of_its_cell_as_it_is_now_never_wins(fact, spec, cells, tmp_path, make_record):
    ledger = Ledger(tmp_path / "tiny")
    settle_specification(ledger, spec, cells)
    planner = Planner(spec, cells, [])
    first = planner.next()
    planner.begin(first)
    own = make_record(first, (0.57,))
    high = make_record(planner.next(), (0.97,))
    stray = high.model_copy(update={fact: OTHERS[fact]})
    if fact == "metric":
        epochs = [epoch.model_copy(update={"dev": {"other": 0.97}}) for epoch in high.epochs]
        stray = stray.model_copy(update={"epochs": epochs})
    assert Planner(spec, cells, [own, high]).cells[high.cell].best == high, "else it would win"
    again = Planner(spec, cells, [own, stray])
    assert again.strays == [stray]
    assert [p.best for p in again.cells.values() if p.best is not None] == [own]
    for record in (own, stray):
        ledger.write(record)
    summary = summarise(ledger)
    assert [cell.best for cell in summary.cells if cell.best is not None] == [own]
    assert any(f"Left out: 1 of the ledger's records ({stray.id}.json)" in note for note in notes(summary))


def test_another_metric_in_the_task_file_is_refused_by_sweep_and_plan_with_one_line(spec, tiny_task, tmp_path):
    document = yaml.safe_load(tiny_task.read_text(encoding="utf-8"))
    path = tiny_task.with_name("reviews.yaml")
    spec = spec.model_copy(update={"tasks": (str(path),)})
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    settle_specification(Ledger(tmp_path / spec.name), spec, open_cells(spec))
    path.write_text(yaml.safe_dump({**document, "metric": "f1"}), encoding="utf-8")
    for ask in (
        lambda: settle_specification(Ledger(tmp_path / spec.name), spec, open_cells(spec)),
        lambda: plan_sweep(spec, Resources(storage=str(tmp_path))),
    ):
        with pytest.raises(ValueError, match=r"the metric of tiny_reviews: accuracy → f1\. Use another --name"):
            ask()


def test_a_task_file_with_another_name_in_it_is_refused_under_the_same_name(spec, tiny_task, tmp_path):
    document = yaml.safe_load(tiny_task.read_text(encoding="utf-8"))
    path = tiny_task.with_name("renamed.yaml")
    spec = spec.model_copy(update={"tasks": (str(path),), "modes": ("fine_tuning",)})
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    settle_specification(Ledger(tmp_path / spec.name), spec, open_cells(spec))
    path.write_text(yaml.safe_dump({**document, "name": "other"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"fine_tuning.tiny_reviews is gone; .*fine_tuning.other is new"):
        settle_specification(Ledger(tmp_path / spec.name), spec, open_cells(spec))


POINT = """\
encoder: "{encoder}"
mode: feature_extraction
task: "{task}"
head: linear
parameters: {{epochs: 1, batch_size: 8}}
provenance: {{metric: {metric}, seed: 0, dev: 0.5, encoder_fingerprint: "{print}"}}
"""


def test_train_does_not_compare_scores_of_two_metrics_or_two_encoders(tiny_encoder, tiny_task, tmp_path):
    path = tmp_path / "point.yaml"
    for facts, says in (
        ({"metric": "macro_f1", "print": ""}, "was found by macro_f1, but the metric of tiny_reviews is now accuracy"),
        ({"metric": "accuracy", "print": "0" * 16}, "was found with other files of "),
    ):
        path.write_text(POINT.format(encoder=tiny_encoder, task=tiny_task, **facts), encoding="utf-8")
        with pytest.raises(ValueError, match=says):
            retrain(str(path), None, False, None, lambda epoch: None)


# --- one test split for all finals of a task ---


@pytest.fixture
def finals(spec, cells, tmp_path, make_record) -> tuple[SweepDriver, list]:
    """A driver with two finals of one cell, not yet scored."""
    planner = Planner(spec, cells, [])
    search = planner.next()
    best = make_record(search)
    trials = [{"id": str(seed) * 16, "number": seed, "role": "final", "seed": seed} for seed in (1, 2)]
    made = [make_record(search.model_copy(update=changes)) for changes in trials]
    planner = Planner(spec, cells, [best, *made])
    ledger = Ledger(tmp_path / "sweep")
    ledger.create()
    return quiet_driver(planner, ledger, Scorer(ledger.folder)), made


def test_finals_that_were_scored_on_two_test_splits_are_not_mixed(finals):
    driver, (one, two) = finals
    driver.finals.keep_score(one.model_copy(update={"test": {"accuracy": 0.5}, "test_fingerprint": "a" * 16}))
    assert driver.finals.order_of(two).test_fingerprint == "a" * 16
    driver.finals.keep_score(two.model_copy(update={"test": {"accuracy": 1.0}, "test_fingerprint": "b" * 16}))
    assert "test split changed" in driver.finals.scorer.troubles[two.id]
    assert [record.id for record in driver.ledger.records()] == [one.id], "the other one's scores are not kept"
    assert driver.planner.cells[two.cell].finals[two.id].test is None


def test_a_final_is_scored_with_the_memory_that_it_was_trained_with_whatever_was_learned_since(finals):
    driver, (one, _) = finals
    driver.memory.ceilings[one.cell]["GPU"] = driver.memory.plain_ceilings[one.cell]["GPU"] = 1
    trained = one.model_copy(update={"micro_batch_size": 4, "gradient_checkpointing": True})
    order = driver.finals.order_of(trained)
    assert (order.micro_batch_size, order.gradient_checkpointing) == (4, True)
    assert (order.ceilings, order.plain_ceilings) == ({}, {})


def test_a_scored_final_says_which_test_it_was_and_another_test_is_refused(spec, cells, tmp_path, make_record):
    cells = [cell for cell in cells if cell.mode == "feature_extraction"]
    driver = quiet_driver(Planner(spec, cells, []), Ledger(tmp_path / "sweep"))
    proposal = driver.planner.next()
    order: Order = driver.order(proposal, 0.0)
    events = [event for events in run((order,)) for event in events]
    scores = [event.score for event in events if event.epoch is not None]
    record = make_record(proposal, tuple(scores), role="final")
    (tmp_path / "sweep").mkdir(exist_ok=True)

    def scored(expected: str) -> dict:
        own = order.model_copy(update={"test_fingerprint": expected})
        return score_finalists([own.as_json()], [record.model_dump_json()], str(tmp_path / "sweep"))[0]

    first = scored("")
    assert len(first["fingerprint"]) == 16
    assert scored(first["fingerprint"])["test"] == first["test"]
    refused = scored("0" * 16)
    assert refused["test"] is None
    assert "is not the one that others were scored on" in refused["error"]
