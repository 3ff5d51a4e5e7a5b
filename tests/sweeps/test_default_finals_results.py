"""The published setting's finals in summaries, tables, exports, plans, whole sweeps and files of older versions."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from meltpoint.reports.notes import trial_notes
from meltpoint.reports.report import comma_separated
from meltpoint.reports.results import results_of
from meltpoint.sweeps.driver.cell_endings import cell_figures, missing_defaults, missing_finals
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.export import provenance
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.planning import TRIALS, best_is, of_few_trials, searched, taken, with_default_finals
from meltpoint.tests.sweeps.whole_sweeps import command, mlflow_runs, records, run


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


LONG_FIRST = ("--set", "epochs={choice: [2, 1], first: 2}", "--set", "learning_rate=0.001", "--set", "dropout=0.1")
"""A space of two settings that score alike on a frozen encoder, so that the one with fewer epochs wins."""


def of_role(storage: Path, role: str) -> list[dict]:
    return sorted((one for one in records(storage) if one["role"] == role), key=lambda one: one["seed"])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def openings(storage: Path) -> Counter:
    return Counter(line["trial"] for line in lines(storage / "tiny" / "test_openings.jsonl"))


def assert_whole_with_defaults(storage: Path, seeds: int) -> CellSummary:
    """Every final of both settings once in the ledger and in MLflow, scored, with its opening; returns the cell."""
    summary = summarise(Ledger(storage / "tiny"))
    (cell,) = summary.cells
    assert summary.state == "done"
    expected = {"search": 2, "final": seeds, "default": seeds}
    assert Counter(record["role"] for record in records(storage)) == expected
    runs = mlflow_runs(storage)
    assert Counter(run.data.tags["meltpoint.role"] for run in runs) == {"cell": 1, **expected}
    assert {run.info.status for run in runs} == {"FINISHED"}
    defaults, by_id = of_role(storage, "default"), {one["id"]: one for one in records(storage)}
    assert [one["seed"] for one in defaults] == list(range(seeds))
    assert {json.dumps(one["setting"], sort_keys=True) for one in defaults} == {
        json.dumps(cell.header.published, sort_keys=True)
    }
    assert [one["answered_by"] is not None for one in defaults] == [True, *[False] * (seeds - 1)]
    first = by_id[defaults[0]["answered_by"]]
    assert (first["suggested_by"], first["dev"], first["epochs"]) == (
        "first",
        defaults[0]["dev"],
        defaults[0]["epochs"],
    )
    scored = {one["id"] for role in ("final", "default") for one in of_role(storage, role)}
    assert set(openings(storage)) == scored
    assert {path.name for path in (storage / "tiny" / "checkpoints").iterdir()} == {cell.kept and cell.kept.id}
    assert not list((storage / "tiny" / "started").iterdir())
    return cell


def assert_predictions_give_their_scores(storage: Path) -> None:
    for role, mark in (("final", ""), ("default", ".default")):
        for record in of_role(storage, role):
            for split, score in (("dev", record["dev"]), ("test", record["test"]["accuracy"])):
                name = f"*tiny_reviews{mark}.seed{record['seed']}.{split}.jsonl"
                (path,) = (storage / "tiny" / "predictions").glob(name)
                said = lines(path)
                assert sum(line["gold"] == line["prediction"] for line in said) / len(said) == score


@pytest.mark.slow
def test_a_sweep_runs_and_scores_the_published_setting_beside_the_best_one(spec: SweepSpec, tmp_path: Path) -> None:
    frozen = spec.model_copy(update={"modes": ("feature_extraction",), "default_finals": True, "seeds": 3, "trials": 2})
    done = run(command(frozen, tmp_path, *LONG_FIRST))
    assert done.returncode == 0, done.stderr
    assert "1 cell: 2 search trials + 3 finals + up to 3 default finals, 1 of each answered by its" in done.stderr
    cell = assert_whole_with_defaults(tmp_path, seeds=3)
    assert cell.best is not None
    assert cell.best.suggested_by in ("random", "grid")
    assert set(openings(tmp_path).values()) == {1}, "only a killed driver's are opened again"
    assert_predictions_give_their_scores(tmp_path)
    runs = {run.data.tags.get("meltpoint.trial"): run for run in mlflow_runs(tmp_path)}
    (whole,) = (run for run in runs.values() if run.data.tags["meltpoint.role"] == "cell")
    assert cell.default_test is not None
    assert whole.data.metrics["default_test_mean"] == cell.default_test.mean
    for record in records(tmp_path):
        tags = runs[record["id"]].data.tags
        assert tags.get("meltpoint.suggested_by") == record["suggested_by"]
        assert (record["suggested_by"] is None) == (record["role"] != "search")
    named = {runs[one["id"]].info.run_name.rpartition("tiny_reviews · ")[2] for one in of_role(tmp_path, "default")}
    assert named == {f"default, seed {seed}" for seed in range(3)}
    again = run(command(frozen, tmp_path, *LONG_FIRST, "--address", "127.0.0.1:1"))  # nobody is asked
    assert again.returncode == 0, again.stderr
    assert "Nothing is left to train" in again.stderr
    words = [sys.executable, "-m", "meltpoint.launch", "status", "tiny", "--json", "--storage", str(tmp_path)]
    (document,) = json.loads(run(words).stdout)["cells"]
    assert document["default"]["test_mean"] == cell.default_test.mean
