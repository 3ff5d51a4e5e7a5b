"""The published setting's finals: when they are run, what answers them, and what closes, retries and scores them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from meltpoint.reports.notes import trial_notes
from meltpoint.reports.tables import comma_separated
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.planned_work import planned_work
from meltpoint.sweeps.driver.progress import label
from meltpoint.sweeps.driver.run import cell_figures, missing_defaults, missing_finals
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import finalist_name
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import provenance
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.search.cell_progress import CellProgress, Proposal
from meltpoint.sweeps.search.closing import closing_of, opened_trials
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import Block, Resources, SweepSpec, check

TRIALS, SEEDS = 3, 2
Score = Callable[[Proposal], float]


def best_is(number: int) -> Score:
    """Dev scores by which the search trial of that number is the best; 0 is the published setting's."""
    return lambda proposal: 0.9 if proposal.number == number else 0.5 - 0.01 * proposal.number


@pytest.fixture
def wanted(spec: SweepSpec) -> SweepSpec:
    """One frozen cell with three search trials, two finals, and the published setting's."""
    return spec.model_copy(update={"modes": ("feature_extraction",), "default_finals": True})


@pytest.fixture
def cell(cells: list[OpenCell]) -> OpenCell:
    return replace(cells[0], trials=TRIALS, seeds=SEEDS)


def taken(planner: Planner) -> list[Proposal]:
    """What is handed out until it waits or is done."""
    found = []
    while isinstance(proposal := planner.next(), Proposal):
        planner.begin(proposal)
        found.append(proposal)
    return found


def searched(spec: SweepSpec, cell: OpenCell, make_record, score: Score, **options: object) -> Planner:
    """A planner whose search trials have ended."""
    planner = Planner(spec, [cell], [], **options)
    for proposal in taken(planner):
        planner.end(make_record(proposal, (score(proposal),)))
    return planner


def progress_of(planner: Planner) -> CellProgress:
    (progress,) = planner.cells.values()
    return progress


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
    for spec, own in (
        (wanted.model_copy(update={"default_finals": False}), cell),
        (wanted, replace(cell, trials=1)),
    ):
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


def test_those_of_a_frozen_encoder_train_together_and_never_with_the_finals(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    together = [planner.next_together(1, mixes_seeds=True) for _ in range(2)]
    assert [[(p.role, p.seed) for p in one] for one in together] == [
        [("final", 0), ("final", 1)], [("default", 0), ("default", 1)]
    ]  # fmt: skip


def test_they_follow_a_time_budget_that_ended_the_search(wanted, cell, make_record):
    planner = Planner(wanted, [replace(cell, trials=9)], [])
    for number in range(2):
        planner.begin(proposal := planner.next())
        planner.end(make_record(proposal, (0.1 + number / 10,)))
    planner.close_search()
    assert [p.role for p in taken(planner)] == ["final"] * SEEDS + ["default"] * SEEDS


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
    assert closing_of(ledger, records, 9) is None
    ledger.openings.write_text(json.dumps({"trial": default.id, "opened_at": 1.7e9}) + "\n", encoding="utf-8")
    closing = closing_of(ledger, records, 9)
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

    def has(self, trial: str) -> bool:
        return trial in self.submitted

    def submit(self, orders, records) -> None:
        assert [order.id for order in orders] == [record.id for record in records]
        self.submitted |= {record.id for record in records}
        self.groups.append(list(records))

    def collect(self, timeout_seconds: float) -> list[TrialRecord]:
        return []


@pytest.fixture
def make_driver(wanted, tmp_path):
    """Makes a driver of a planner, with a scorer that only notes, and folders in place of weights."""

    def make(planner: Planner, name: str = "sweep") -> SweepDriver:
        calls = ("begin", "end", "epoch", "run_of", "scored", "say", "ended", "lost", "refresh")
        silent = SimpleNamespace(**dict.fromkeys(calls, lambda *_: None))
        ledger = Ledger(tmp_path / name)
        ledger.create()
        resources = Resources(storage=str(tmp_path), gpus=0.0)
        return SweepDriver(planner, ledger, silent, silent, FakeScorer(), resources)

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


def test_without_them_the_published_settings_weights_go_as_any_losers_do(wanted, cell, make_record, make_driver):
    spec = wanted.model_copy(update={"default_finals": False})
    driver = make_driver(Planner(spec, [cell], []))
    search_with_weights(driver, make_record, best_is(2))
    assert with_weights(driver) == {progress_of(driver.planner).best.id}


def test_weights_that_were_kept_for_them_go_once_they_are_no_longer_asked_for(wanted, cell, make_record, make_driver):
    driver = make_driver(Planner(wanted, [cell], []))
    search_with_weights(driver, make_record, best_is(2))
    records = driver.planner.counted()
    driver.finals.drop_unasked()
    assert len(with_weights(driver)) == 2
    without = make_driver(Planner(wanted.model_copy(update={"default_finals": False}), [cell], records))
    without.finals.drop_unasked()
    assert with_weights(without) == {progress_of(without.planner).best.id}


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


def test_the_finals_are_scored_while_those_of_the_published_setting_still_train(wanted, cell, make_record, make_driver):
    driver = make_driver(searched(wanted, cell, make_record, best_is(2)))
    for proposal in taken(driver.planner):
        if proposal.role == "final" or proposal.seed == 0:
            driver.planner.end(make_record(proposal))
    driver.score(0.0)
    assert [[r.role for r in group] for group in driver.finals.scorer.groups] == [["final"] * SEEDS]


def test_one_with_damaged_weights_is_trained_again_once(wanted, cell, make_record, make_driver):
    driver = make_driver(searched(wanted, cell, make_record, best_is(2)))
    for proposal in taken(driver.planner):
        driver.planner.end(make_record(proposal))
    default = next(iter(progress_of(driver.planner).defaults.values()))
    driver.finals.train_again(default, "damaged")
    assert [(p.role, p.id) for p in taken(driver.planner)] == [("default", default.id)]
    driver.planner.end(default)
    driver.finals.train_again(default, "damaged")
    assert "after it was trained again" in driver.finals.scorer.troubles[default.id]


def test_labels_and_file_names_tell_them_from_finals(wanted, cell, make_record):
    planner = searched(wanted, cell, make_record, best_is(2))
    final, _, default, _ = taken(planner)
    assert [label(p.role, p.number, p.seed) for p in (final, default)] == ["final, seed 0", "default, seed 0"]
    names = [finalist_name(cell.name, make_record(p)) for p in (final, default)]
    assert names == [f"{cell.name}.seed0", f"{cell.name}.default.seed0"]


def test_a_variant_that_would_share_their_file_names_is_refused_unless_there_are_none(wanted):
    block = Block(encoders=wanted.encoders, modes=wanted.modes, tasks=wanted.tasks, head="linear", variant="default")
    spec = wanted.model_copy(update={"blocks": (block,)})
    with pytest.raises(ValueError, match=r"variant 'default': .* or add --no-default-finals\."):
        check(spec)
    check(spec.model_copy(update={"default_finals": False}))


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
    (row,) = csv.DictReader(io.StringIO(comma_separated(summary)))
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
        ((), "stopped", "2 of 2 finals of the published setting without a result; the same command tries again."),
        (TWO[:1], "stopped", "1 of 2 finals of the published setting without a result; the same command"),
        (({}, {}), "stopped", None),
        (
            (TWO[0], FAILED),
            "failed",
            "1 of 2 finals of the published setting without a result (it went wrong); --retry",
        ),
        ((TWO[0], {**FAILED, "cause": "worker"}), "stopped", "(it went wrong); the same command tries again."),
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
    planned = plan_sweep(wanted.model_copy(update={"name": "new"}), Resources(storage=str(tmp_path), gpus=0.0))
    (one,) = planned.as_json()["cells"]
    assert (one["trials"], one["finals"], one["defaults"], planned.search_trials) == (7, 2, 2, 3)
    assert planned.as_json()["defaults"] == 2
    without = wanted.model_copy(update={"name": "new", "default_finals": False})
    cheaper = plan_sweep(without, Resources(storage=str(tmp_path), gpus=0.0))
    assert (cheaper.trials, cheaper.defaults) == (5, 0)
    summary_of(2, TWO[0], name="begun")
    begun = plan_sweep(wanted.model_copy(update={"name": "begun"}), Resources(storage=str(tmp_path), gpus=0.0))
    assert (begun.trials, begun.answered, begun.defaults) == (7, 6, 2)
    summary_of(0, name="first")
    first = plan_sweep(wanted.model_copy(update={"name": "first"}), Resources(storage=str(tmp_path), gpus=0.0))
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
