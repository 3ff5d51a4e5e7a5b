"""A sweep under another version of the code: refused with both ways out, or continued with every mixed cell marked."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from meltpoint.reports.notes import notes
from meltpoint.reports.report import comma_separated, report
from meltpoint.reports.results import results_of
from meltpoint.reports.status_view import show_status
from meltpoint.sweeps.driver import driver, plan, running_trial, start
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.results.export import export_cells
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.search import planner as planner_module
from meltpoint.sweeps.specification.provenance import recorded_code
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.tests.sweeps import whole_sweeps
from meltpoint.tests.sweeps.planning import note_of

OLD, NEW, NEWEST = "1.0.0+aaaaaaaa", "1.0.0+bbbbbbbb", "1.0.0+cccccccc"
BOTH_WAYS = r"ran on Meltpoint's code 1\.0\.0\+aaaaaaaa, .*Use another --name.*or add --mix-code-versions"
UseCode = Callable[[str], None]


@pytest.fixture
def use_code(monkeypatch: pytest.MonkeyPatch) -> UseCode:
    """Lets the driver's side of a sweep be of a version of the code."""

    def use(version: str) -> None:
        for module in (driver, start, plan, running_trial, planner_module):
            monkeypatch.setattr(module, "code_version", lambda: version)

    return use


@pytest.fixture
def one_cell(spec: SweepSpec) -> SweepSpec:
    """Three trials and two finals of one cell."""
    return spec.model_copy(update={"modes": ("fine_tuning",)})


@pytest.fixture
def begun(one_cell, cells, use_code, make_record, tmp_path) -> Ledger:
    """A sweep of OLD code with two of its three search trials."""
    use_code(OLD)
    ledger = Ledger(tmp_path / one_cell.name)
    start.settle_specification(ledger, one_cell, cells[1:])
    for score, proposal in zip((0.5, 0.7), proposals(planner_module.Planner(one_cell, own(cells), [])), strict=False):
        ledger.write(make_record(proposal, (score,), code_version=OLD, started_at=1.0))
    return ledger


def own(cells):
    return [replace(cells[1], trials=3, seeds=2)]


def proposals(planner: planner_module.Planner):
    while isinstance(found := planner.next(), Trial):
        planner.begin(found)
        yield found


def finish(ledger: Ledger, spec: SweepSpec, cells, make_record, code: str, scores=(0.6,), finals=2) -> list[Trial]:
    """Go on with a sweep as the driver does, by some code; what was trained."""
    settled = start.settle_specification(ledger, spec, cells[1:], mix_code_versions=True)
    planner, trained = planner_module.Planner(spec, own(cells), ledger.records(), codes=settled.codes), []
    left = list(scores)
    for proposal in proposals(planner):
        is_final = proposal.role == "final"
        if is_final and sum(one.role == "final" for one in trained) == finals:
            break
        score, test = (0.65, {"accuracy": 0.6}) if is_final else (left.pop(0), None)
        record = make_record(proposal, (score,), code_version=code, started_at=2.0, test=test)
        trained.append(proposal)
        ledger.write(record)
        planner.end(record)
    return trained


def test_other_code_is_refused_by_sweep_and_plan_and_the_line_names_both_ways(begun, one_cell, cells, use_code):
    use_code(NEW)
    written = begun.specification.read_bytes()
    for ask in (
        lambda: start.settle_specification(begun, one_cell, cells[1:]),
        lambda: plan.plan_sweep(one_cell, Resources(storage=str(begun.folder.parent))),
    ):
        with pytest.raises(ValueError, match=BOTH_WAYS) as refused:
            ask()
        assert "\n" not in str(refused.value)
    assert begun.specification.read_bytes() == written


def test_other_options_are_refused_even_where_mixing_is_asked_for(begun, one_cell, cells, use_code):
    use_code(NEW)
    other = one_cell.model_copy(update={"searcher": "random"})
    with pytest.raises(ValueError, match=r"another specification; differences: searcher .*; Meltpoint's code 1"):
        start.settle_specification(begun, other, cells[1:], mix_code_versions=True)


def test_plan_with_the_option_counts_the_old_trials_and_says_so(begun, one_cell, use_code):
    use_code(NEW)
    written = begun.specification.read_bytes()
    planned = plan.plan_sweep(one_cell, Resources(storage=str(begun.folder.parent), mix_code_versions=True))
    assert (planned.trials, planned.answered) == (5, 2)
    (line,) = [note for note in planned.notes if NEW in note]
    assert f"kept: 2 trials of {OLD}" in line
    assert planned.as_json()["kept_of_other_code"] == {OLD: 2}
    assert begun.specification.read_bytes() == written, "a plan decides nothing"


def test_once_it_was_accepted_the_sweep_goes_on_without_the_option_but_not_by_a_third_version(
    begun, one_cell, cells, use_code
):
    for version, told in ((NEW, (NEW,)), (NEWEST, (NEW, NEWEST)), (OLD, (NEW, NEWEST, OLD))):
        use_code(version)
        with pytest.raises(ValueError, match="--mix-code-versions"):
            start.settle_specification(begun, one_cell, cells[1:])
        start.settle_specification(begun, one_cell, cells[1:], mix_code_versions=True)
        start.settle_specification(begun, one_cell, cells[1:])
        found = read_sweep(begun)
        assert (found.code, found.continued_with) == (OLD, told)
        assert found.spec == one_cell


def test_old_trials_are_found_and_not_trained_again(begun, one_cell, cells, use_code, make_record):
    use_code(NEW)
    before = {path: path.read_bytes() for path in begun.trials.iterdir()}
    trained = finish(begun, one_cell, cells, make_record, NEW)
    assert Counter(proposal.role for proposal in trained) == {"search": 1, "final": 2}
    assert {path: path.read_bytes() for path in before} == before
    records = begun.records()
    assert Counter(record.code_version for record in records) == {OLD: 2, NEW: 3}
    settings = [json.dumps(r.setting, sort_keys=True) for r in records if r.role == "search"]
    assert len(set(settings)) == 3
    again = planner_module.Planner(one_cell, own(cells), records, codes=read_sweep(begun).codes)
    assert again.is_complete()
    assert again.strays == []


def test_without_the_choice_on_record_trials_of_other_code_do_not_count(begun, one_cell, cells, make_record):
    high = begun.records()[0].model_copy(update={"id": "0" * 16, "dev": 0.99, "code_version": NEW})
    begun.write(high)
    summary = summarise(begun)
    assert [record.id for record in summary.strays] == [high.id]
    assert summary.cells[0].best.dev == 0.7


def test_a_trial_that_was_lost_runs_again_by_the_new_code_under_its_identity(begun, one_cell, cells, use_code):
    use_code(NEW)
    lost = begun.records()[0].model_copy(
        update={"status": "failed", "cause": "worker", "dev": None, "epochs": [], "best_epoch": None}
    )
    begun.write(lost)
    settled = start.settle_specification(begun, one_cell, cells[1:], mix_code_versions=True)
    proposal = planner_module.Planner(one_cell, own(cells), begun.records(), codes=settled.codes).next()
    assert isinstance(proposal, Trial)
    assert (proposal.id, proposal.setting) == (lost.id, lost.setting)


# --- the marks ---


def test_a_trial_that_was_cut_off_comes_first_by_the_new_code(begun, one_cell, cells, use_code):
    planner = planner_module.Planner(one_cell, own(cells), begun.records(), codes=(OLD,))
    cut = planner.next()
    use_code(NEW)
    settled = start.settle_specification(begun, one_cell, cells[1:], mix_code_versions=True)
    planner = planner_module.Planner(one_cell, own(cells), begun.records(), codes=settled.codes)
    planner.recall([note_of(cut)])
    assert planner.next() == cut


@pytest.fixture
def mixed(begun, one_cell, cells, use_code, make_record) -> Ledger:
    """The sweep finished: a search trial and the final of seed 1 by NEW code, the best setting and seed 0 by OLD."""
    use_code(OLD)
    planner = planner_module.Planner(one_cell, own(cells), begun.records(), codes=(OLD,))
    third = planner.next()
    use_code(NEW)
    start.settle_specification(begun, one_cell, cells[1:], mix_code_versions=True)
    begun.write(make_record(third, (0.6,), code_version=NEW, started_at=2.0))
    planner = planner_module.Planner(one_cell, own(cells), begun.records(), codes=read_sweep(begun).codes)
    for final, code in zip(proposals(planner), (OLD, NEW), strict=True):
        begun.write(make_record(final, (0.7,), code_version=code, started_at=1.5, test={"accuracy": 0.6}))
    return begun


USES = f"{OLD} (2 search trials, final of seed 0); {NEW} (1 search trial, final of seed 1)"
SPREAD = "the spread of its finals includes the change of the code"


def said(summary: SweepSummary) -> dict[str, str]:
    screen = Console(file=io.StringIO(), width=300)
    show_status(summary, screen)
    tables = {form: report(summary, form, None) for form in ("md", "tex", "html", "csv")}
    return {**tables, "status": screen.file.getvalue(), "notes": "\n".join(notes(summary))}  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["md", "tex", "html", "csv", "status", "notes"])
def test_every_table_says_which_trials_of_a_mixed_cell_are_of_which_version(mixed, place):
    text = " ".join(said(summarise(mixed))[place].split())
    assert USES in text
    assert f"its best setting was found by {OLD}" in text
    assert SPREAD in text


def test_status_json_and_the_csv_have_the_versions_of_each_cell(mixed):
    (cell,) = summarise(mixed).as_json()["cells"]
    assert cell["code_versions"] == [
        {"version": OLD, "search_trials": 2, "final_seeds": [0]},
        {"version": NEW, "search_trials": 1, "final_seeds": [1]},
    ]
    (row,) = csv.DictReader(io.StringIO(comma_separated(results_of(summarise(mixed)))))
    assert row["code_version"] == f"{OLD}; {NEW}"


def test_an_export_has_the_code_of_its_setting_and_of_each_final_and_train_compares_with_that(mixed, tmp_path):
    (path,) = export_cells(summarise(mixed), tmp_path / "out")
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))["provenance"]
    assert facts["code"] == OLD
    assert [use["version"] for use in facts["code_versions"]] == [OLD, NEW]
    assert [recorded_code(facts, seed) for seed in (0, 1, 9)] == [OLD, NEW, OLD]


def test_a_sweep_of_one_version_has_no_marks(begun, one_cell, cells, make_record):
    finish(begun, one_cell, cells, make_record, OLD)
    summary = summarise(begun)
    assert summary.code_versions == (OLD,)
    assert not any("mixes" in text for text in said(summary).values())
    (path,) = export_cells(summary, begun.folder / "exports")
    assert "code_versions" not in yaml.safe_load(path.read_text(encoding="utf-8"))["provenance"]


# --- MLflow ---


def test_a_trial_that_goes_on_by_other_code_gets_a_run_of_its_own(proposal, cells, make_record, mlflow_storage):
    def opened() -> Runs:
        runs = Runs("sweep", f"sqlite:///{mlflow_storage}/mlflow.db", mlflow_storage)
        runs.open(cells, "{}", 1.7e9)
        return runs

    first = opened()
    cut = make_record(proposal, (0.5, 0.6))
    first.begin(proposal, OLD, 1.7e9)
    first.write(proposal.id, cut.epochs, None)
    later = opened()
    later.begin(proposal, NEW, 1.7e9 + 60)
    ended = make_record(proposal, (0.7,), code_version=NEW)
    later.write(proposal.id, ended.epochs, ended)
    assert later.lacking([ended]) == []
    later.end_lost([ended])
    assert opened().runs[proposal.id] == later.runs[proposal.id] != first.runs[proposal.id]
    found = [later.client.get_run(runs.runs[proposal.id]) for runs in (first, later)]
    assert [run.data.tags["meltpoint.code_version"] for run in found] == [OLD, NEW]
    assert [run.info.status for run in found] == ["KILLED", "FINISHED"]
    history = later.client.get_metric_history(found[1].info.run_id, "dev/accuracy")
    assert [metric.value for metric in history] == [0.7]


BY_CODE = (
    "import sys; from meltpoint.sweeps.specification import provenance as own; code = sys.argv.pop(1); "
    "own.code_version = lambda: code; from meltpoint.launch import main; main()"
)


def test_what_is_filled_in_later_has_the_code_of_its_record(proposal, cells, make_record, tmp_path):
    tracker = Tracker("sweep", f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    tracker.open(cells, "{}")
    tracker.reconcile([make_record(proposal, code_version=OLD)])
    run = tracker.runs.client.get_run(tracker.run_of(proposal.id))
    assert run.data.tags["meltpoint.code_version"] == OLD
    tracker.close([], True, {})


def by(code: str, words: list[str]) -> list[str]:
    """A command line of `meltpoint`, run by a version of the code."""
    return [sys.executable, "-c", BY_CODE, code, *words[words.index("meltpoint.launch") + 1 :]]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory, tiny_encoder, tiny_task, quick_space) -> tuple[list[str], Path, dict[str, dict]]:
    """A sweep cut off by Ctrl-C under OLD code: (its command, its storage, its records)."""
    spec = SweepSpec(
        name="tiny", encoders=(tiny_encoder,), modes=("fine_tuning",), tasks=(str(tiny_task),), head="linear",
        space=str(quick_space), trials=4, seeds=2,
    )  # fmt: skip
    storage = tmp_path_factory.mktemp("crossed")
    words = whole_sweeps.command(spec, storage)
    process = whole_sweeps.started(by(OLD, words), storage / "log")
    (storage / "tiny" / "trials").mkdir(parents=True)
    whole_sweeps.wait_for(storage, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1, (storage / "log").read_text(encoding="utf-8")
    return words, storage, {record["id"]: record for record in whole_sweeps.records(storage)}


def asked(code: str, words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return whole_sweeps.run([*by(code, words), *more])


@pytest.mark.slow
def test_a_sweep_that_was_cut_off_is_refused_by_other_code_and_with_the_option_ends_and_is_marked(crossed):
    words, storage, left = crossed
    refused = asked(NEW, words)
    assert refused.returncode == 2
    assert f"meltpoint: The sweep 'tiny' ran on Meltpoint's code {OLD}" in refused.stderr
    assert "--mix-code-versions" in refused.stderr
    plan_words = ["plan" if word == "sweep" else word for word in words]
    planned = asked(NEW, plan_words, "--json", "--mix-code-versions")
    assert json.loads(planned.stdout)["kept_of_other_code"] == {OLD: len(left)}
    assert refused.stderr.splitlines()[-1:] == asked(NEW, plan_words).stderr.splitlines()  # `sweep` opened cells before
    done = asked(NEW, words, "--mix-code-versions")
    assert done.returncode == 0, done.stderr
    assert f"of {OLD}. Tables, status and exports mark" in done.stderr
    assert f"mixes versions of Meltpoint's code: {OLD} (" in " ".join(done.stdout.split())

    records = {record["id"]: record for record in whole_sweeps.records(storage)}
    assert whole_sweeps.roles(storage) == {"search": 4, "final": 2}
    settings = [json.dumps(r["setting"], sort_keys=True) for r in records.values() if r["role"] == "search"]
    assert len(set(settings)) == 4
    for trial, before in left.items():
        assert {**records[trial], "mlflow_run_id": None} == {**before, "mlflow_run_id": None}, "it was trained again"
    versions = {trial: record["code_version"] for trial, record in records.items()}
    assert {versions[trial] for trial in left} == {OLD}
    new = versions.keys() - left.keys()
    assert {versions[trial] for trial in new if not records[trial]["answered_by"]} == {NEW}

    runs = {run.info.run_id: run for run in whole_sweeps.mlflow_runs(storage)}
    for trial, record in records.items():
        run = runs[record["mlflow_run_id"]]
        assert (run.data.tags["meltpoint.code_version"], run.info.status) == (versions[trial], "FINISHED")
    (parent,) = [run for run in runs.values() if run.data.tags["meltpoint.role"] == "cell"]
    assert parent.data.tags["meltpoint.code_versions"].startswith(f"{OLD} (")
    assert f"; {NEW} (" in parent.data.tags["meltpoint.code_versions"]

    again = asked(NEW, words)
    assert again.returncode == 0, again.stderr
    assert "Nothing is left to train" in again.stderr
    assert "mixes versions" in (storage / "tiny" / "report.md").read_text(encoding="utf-8")
