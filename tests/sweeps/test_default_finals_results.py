"""The published setting's finals in summaries, tables, exports and plans, and in files of older versions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from meltpoint.reports.notes import trial_notes
from meltpoint.reports.report import comma_separated
from meltpoint.reports.results import results_of
from meltpoint.sweeps.driver.cell_endings import cell_figures, missing_defaults, missing_finals
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import planned_work
from meltpoint.sweeps.results.export import provenance
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.default_finals import (
    TRIALS,
    best_is,
    of_few_trials,
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


# --- the summary, tables, exports ---


@pytest.fixture
def summary_of(wanted, cell, make_record, tmp_path):
    """The summary of a sweep whose finals are scored: (the best trial's number, what the defaults are) → it."""

    def made(best: int, *defaults: dict[str, object], spec: SweepSpec = wanted, name: str = "sweep") -> SweepSummary:
        ledger = Ledger(tmp_path / name)
        settle_specification(ledger, spec.model_copy(update={"name": name}), [cell])
        planner = searched(spec, cell, make_record, best_is(best))
        for record in planner.counted():
            ledger.write(record)
        left = list(defaults)
        for proposal in taken(planner):
            if proposal.role == "final":
                ledger.write(make_record(proposal, (0.8,), test={"accuracy": 0.7 + 0.1 * proposal.seed}))
            elif left:
                ledger.write(make_record(proposal, **left.pop(0)))
        return summarise(ledger)

    return made


TWO = ({"test": {"accuracy": 0.5}}, {"test": {"accuracy": 0.6}})
FAILED = {"status": "failed", "error": "it went wrong"}


def test_a_summary_has_their_scores_beside_those_of_the_best_setting(summary_of):
    summary = summary_of(2, *TWO)
    (cell,) = summary.cells
    assert (summary.state, cell.is_done) == ("done", True)
    assert [(r.role, r.seed) for r in cell.default_finals] == [("default", 0), ("default", 1)]
    assert cell.default_test is not None
    assert cell.default_test.mean == pytest.approx(0.55)
    assert cell.test is not None
    assert cell.test.mean == pytest.approx(0.75)
    assert [r.role for r in cell.search] == ["search"] * TRIALS
    (document,) = summary.as_json()["cells"]
    assert document["default"] == {
        "seeds": 2, "dev_mean": 0.75, "dev_std": 0.0, "test_mean": pytest.approx(0.55),
        "test_std": pytest.approx(0.0707, abs=1e-4),
    }  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(comma_separated(results_of(summary))))
    assert float(row["default_test_mean"]) == cell.default_test.mean
    assert float(row["default_dev_mean"]) == 0.75
    figures = cell_figures(cell)
    assert (figures["default_test_mean"], figures["test_mean"]) == (cell.default_test.mean, cell.test.mean)
    facts = provenance(summary.spec, cell, cell.best)
    assert facts["default"]["test_mean"] == cell.default_test.mean
    assert facts["default"]["is_best"] is False
    assert [one["seed"] for one in facts["finals"]] == [0, 1]


def test_where_the_published_setting_is_the_best_one_its_finals_are_the_finals(summary_of):
    summary = summary_of(0)
    (cell,) = summary.cells
    assert (summary.state, cell.default_seeds) == ("done", 0)
    assert cell.default_finals == cell.finals
    assert cell.default_test == cell.test
    assert provenance(summary.spec, cell, cell.best)["default"]["is_best"] is True


@pytest.mark.parametrize(
    ("defaults", "state", "line"),
    [
        ((), "stopped", "2 of 2 finals of the published setting without a result; the same command retries."),
        (TWO[:1], "stopped", "1 of 2 finals of the published setting without a result; the same command"),
        (({}, {}), "stopped", None),
        (
            (TWO[0], FAILED),
            "failed",
            "1 of 2 finals of the published setting without a result (it went wrong); add --retry",
        ),
        ((TWO[0], {**FAILED, "cause": "worker"}), "stopped", "(it went wrong); the same command retries."),
    ],
    ids=["none", "one", "unscored", "failed", "lost"],
)
def test_a_sweep_waits_for_them_and_says_which_are_missing(summary_of, defaults, state, line):
    summary = summary_of(2, *defaults)
    (cell,) = summary.cells
    assert (summary.state, cell.is_done) == (state, False)
    assert missing_finals(summary, cell) is None
    said = missing_defaults(cell)
    assert (said is None) == (line is None)
    assert line is None or line in str(said)
    noted = [note for note in trial_notes(summary) if "published setting" in note]
    assert len(noted) == len(cell.failed_defaults) == sum("error" in one for one in defaults)


def test_without_them_the_summary_has_none_and_is_done(summary_of, wanted):
    summary = summary_of(2, spec=wanted.model_copy(update={"default_finals": False}))
    (cell,) = summary.cells
    assert (summary.state, cell.default_finals, cell.default_test) == ("done", [], None)
    assert summary.as_json()["cells"][0]["default"] is None
    assert "default" not in provenance(summary.spec, cell, cell.best)


# --- older files, and asking for them later ---


def as_an_older_version_wrote(ledger: Ledger) -> None:
    """Take what older versions did not write out of `sweep.json` and the records."""
    document = json.loads(ledger.specification.read_text(encoding="utf-8"))
    del document["spec"]["default_finals"]
    for header in document["cells"]:
        del header["published"]
    ledger.specification.write_text(json.dumps(document), encoding="utf-8")
    for path in ledger.trials.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["suggested_by"]
        path.write_text(json.dumps(record), encoding="utf-8")


def test_a_finished_sweep_of_an_older_version_is_finished_and_can_have_them_run_later(
    summary_of, wanted, cell, tmp_path
):
    older = wanted.model_copy(update={"default_finals": False, "name": "older"})
    summary_of(2, spec=older, name="older")
    ledger = Ledger(tmp_path / "older")
    as_an_older_version_wrote(ledger)
    summary = summarise(ledger)
    assert summary.state == "done"
    assert summary.cells[0].default_finals == []
    assert {record.suggested_by for record in ledger.records()} == {None}
    settled = settle_specification(ledger, wanted.model_copy(update={"name": "older"}), [cell])
    assert settled.spec.default_finals
    assert summarise(ledger).state == "stopped", "they are asked for now"
    planner = Planner(settled.spec, [cell], ledger.records(), codes=settled.codes)
    assert [(p.role, p.seed) for p in taken(planner)] == [("default", 0), ("default", 1)]
    settled = settle_specification(ledger, older, [cell])
    assert not settled.spec.default_finals
    assert summarise(ledger).state == "done", "and no longer"


def test_plan_counts_them_apart_and_those_that_the_ledger_has(summary_of, wanted, cell, tmp_path, monkeypatch):
    monkeypatch.setattr("meltpoint.sweeps.driver.plan.open_cells", lambda spec: [cell])
    resources = Resources(storage=str(tmp_path), gpus_per_trial=0.0)
    planned = plan_sweep(wanted.model_copy(update={"name": "new"}), resources)
    (one,) = planned.as_json()["cells"]
    assert (one["trials"], one["finals"], one["defaults"], planned.search_trials) == (7, 2, 2, 3)
    assert planned.as_json()["defaults"] == 2
    without = wanted.model_copy(update={"name": "new", "default_finals": False})
    cheaper = plan_sweep(without, resources)
    assert (cheaper.trials, cheaper.defaults) == (5, 0)
    summary_of(2, TWO[0], name="begun")
    begun = plan_sweep(wanted.model_copy(update={"name": "begun"}), resources)
    assert (begun.trials, begun.answered, begun.defaults) == (7, 6, 2)
    summary_of(0, name="first")
    first = plan_sweep(wanted.model_copy(update={"name": "first"}), resources)
    assert (first.trials, first.answered, first.defaults, first.estimated_seconds) == (5, 5, 0, 0.0)


def test_the_amount_of_work_is_worded_with_them_and_without():
    assert planned_work(1, 8, 4, 4) == (
        "1 cell: 8 search trials + 4 finals + up to 4 default finals, 1 of each answered by its search trial"
    )
    assert planned_work(1, 8, 4) == "1 cell: 8 search trials + 4 finals, 1 answered by its search trial"


def test_records_without_a_word_of_their_origin_are_read_as_none(make_record, proposal, tmp_path: Path):
    document = make_record(proposal).model_dump(mode="json")
    assert document.pop("suggested_by") == "first"
    assert TrialRecord.model_validate(document).suggested_by is None
