"""growth: a sweep takes more trials, seeds and cells under its name; what it has stays, closed cells stay closed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.reports.notes import growth_notes, searched_again
from meltpoint.sweeps.driver.plan import plan_sweep
from meltpoint.sweeps.driver.start import open_planner, settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.search.locked_test import opened_trials, read_rounds
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec
from meltpoint.sweeps.storage.files import append_line
from meltpoint.tests.sweeps.whole_sweeps import command, mlflow_runs, records, run
from meltpoint.tests.sweeps.whole_sweeps import roles as roles_in

SEARCHED, MORE = 3, 6
OPENED_AT = 1_795_442_520.0

Search = Callable[[Ledger, Planner], list[TrialRecord]]


@pytest.fixture
def one_mode(spec: SweepSpec) -> SweepSpec:
    """A sweep of one cell."""
    return spec.model_copy(update={"modes": ("fine_tuning",)})


@pytest.fixture
def search(make_record) -> Search:
    """Runs what a planner proposes to its end, with made-up scores; the test split is opened for finals."""

    def run(ledger: Ledger, planner: Planner) -> list[TrialRecord]:
        ended = []
        while not isinstance(proposal := planner.next(), str):
            planner.begin(proposal)
            is_final = proposal.role != "search"
            dev = (0.5 + proposal.number / 100,)
            record = make_record(proposal, dev=dev, test={"accuracy": 0.5} if is_final else None)
            if is_final:
                append_line(ledger.openings, {"trial": record.id, "opened_at": OPENED_AT + len(ended)})
            ledger.write(record)
            planner.end(record)
            ended.append(record)
        return ended

    return run


def begun(ledger: Ledger, spec: SweepSpec, cells: list[OpenCell], **options: bool) -> Planner:
    """The planner of a sweep that is started, or gone on with, by these options."""
    resources = Resources(**options)  # type: ignore[arg-type]
    settled = settle_specification(ledger, spec, cells, grow=resources.grow)
    return open_planner(ledger, spec, settled.codes, cells, ledger.records(), resources, lambda line: None)


def finished(tmp_path: Path, spec: SweepSpec, search: Search) -> Ledger:
    """The ledger of a sweep that is done."""
    ledger = Ledger(tmp_path / spec.name)
    search(ledger, begun(ledger, spec, open_cells(spec)))
    assert summarise(ledger).state == "done"
    return ledger


def roles(records: Iterable[TrialRecord]) -> list[tuple[str, int]]:
    return [(record.role, record.seed) for record in records]


def grown(spec: SweepSpec, **changes: object) -> SweepSpec:
    return spec.model_copy(update=changes)


@pytest.mark.parametrize("changes", [{"trials": MORE}, {"seeds": 4}, {"modes": ("fine_tuning", "feature_extraction")}])
def test_more_is_refused_until_growing_is_asked_for_and_says_what_is_more(one_mode, search, tmp_path, changes):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, **changes)
    (field,) = changes
    with pytest.raises(ValueError, match=rf"'tiny' would grow: {field} .*Add --grow.*another --name"):
        begun(ledger, more, open_cells(more))
    assert read_sweep(ledger).spec == one_mode


@pytest.mark.parametrize("changes", [{"trials": 2}, {"seeds": 1}, {"seed": 7}, {"head": "native"}, {"tasks": ()}])
def test_less_or_other_is_refused_though_growing_is_asked_for(one_mode, search, tmp_path, changes):
    ledger = finished(tmp_path, one_mode, search)
    other = grown(one_mode, **{"modes": ("fine_tuning", "feature_extraction"), **changes})
    with pytest.raises(ValueError, match="is taken by another specification"):
        begun(ledger, other, open_cells(other) if other.tasks else [], grow=True)


def test_a_new_mode_joins_and_the_finished_cell_has_nothing_to_do(one_mode, search, tmp_path):
    ledger = finished(tmp_path, one_mode, search)
    before = {record.id: record for record in ledger.records()}
    more = grown(one_mode, modes=("feature_extraction", "fine_tuning"))
    added = search(ledger, begun(ledger, more, open_cells(more), grow=True))
    assert {record.mode for record in added} == {"feature_extraction"}
    assert {record.id: record for record in ledger.records() if record.id in before} == before
    summary = summarise(ledger)
    assert summary.state == "done"
    assert [change for one in summary.growth for change in one.changes] == ["modes + feature_extraction"]


def test_the_same_command_goes_on_without_the_option_once_it_has_grown(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, seeds=3)
    begun(ledger, more, open_cells(more), grow=True)
    assert roles(search(ledger, begun(ledger, more, open_cells(more)))) == [("final", 2)]
    assert len(read_sweep(ledger).growth) == 1, "it grew once"


def test_more_seeds_are_run_in_a_closed_cell_and_the_tables_tell_of_the_first_look(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, seeds=4)
    added = search(ledger, begun(ledger, more, open_cells(more), grow=True))
    assert roles(added) == [("final", 2), ("final", 3)]
    (line,) = growth_notes(summarise(ledger))
    assert "after 2 finalists had been scored on test: seeds 2 → 4; tests over the seeds do not account for" in line


def test_more_trials_leave_a_closed_cell_closed(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, trials=MORE)
    assert search(ledger, begun(ledger, more, open_cells(more), grow=True)) == []
    (cell,) = summarise(ledger).cells
    assert cell.closed_early is not None
    assert str(cell.closed_early) == f"{SEARCHED} of {MORE} trials"


def test_more_trials_are_run_in_a_cell_that_is_open(one_mode, cells, make_record, tmp_path):
    ledger = Ledger(tmp_path / one_mode.name)
    planner = begun(ledger, one_mode, open_cells(one_mode))
    proposal = planner.next()
    ledger.write(make_record(proposal))
    more = grown(one_mode, trials=MORE)
    (progress,) = begun(ledger, more, open_cells(more), grow=True).cells.values()
    assert (progress.target, len(progress.search)) == (MORE, 1)


def test_a_sweep_that_grew_has_the_random_trials_of_one_that_asked_for_as_many_at_once(one_mode, search, tmp_path):
    few, many = (grown(one_mode, searcher="random", trials=count) for count in (SEARCHED, MORE))
    ledger = Ledger(tmp_path / "grown")
    search(ledger, begun(ledger, few, open_cells(few)))
    wider = Ledger(tmp_path / "at_once")
    ids = [record.id for record in search(wider, begun(wider, many, open_cells(many))) if record.role == "search"]
    search(ledger, begun(ledger, many, open_cells(many), grow=True, new_test_round=True))
    assert {record.id for record in ledger.records() if record.role == "search"} == set(ids)


def test_a_new_test_round_searches_a_closed_cell_on_once_and_is_told_everywhere(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, trials=MORE)
    added = search(ledger, begun(ledger, more, open_cells(more), grow=True, new_test_round=True))
    assert roles(added) == [("search", 0)] * (MORE - SEARCHED) + [("final", 0), ("final", 1)], "a better setting"
    (cell,) = summarise(ledger).cells
    assert (cell.test_round, cell.closed_early) == (2, None)
    assert len(cell.finals) == 2
    assert all(final.setting == cell.best.setting for final in cell.finals)
    (line,) = ledger.test_rounds.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["cells"][0]["planned"] == MORE
    assert "test round 2" in searched_again(cell.test_round)
    again = begun(ledger, more, open_cells(more), new_test_round=True)
    assert again.next() == "done"
    assert len(read_rounds(ledger).later) == 1, "the same command begins no third round"


def test_a_round_ends_with_its_trials_though_they_gave_no_new_best_setting(one_mode, make_record, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, trials=MORE)
    planner = begun(ledger, more, open_cells(more), grow=True, new_test_round=True)
    while not isinstance(proposal := planner.next(), str):
        assert proposal.role == "search", "the finals of the old setting are scored"
        planner.begin(proposal)
        ledger.write(record := make_record(proposal, dev=(0.1,)))
        planner.end(record)
    further = grown(more, trials=2 * MORE)
    assert begun(ledger, further, open_cells(further), grow=True).next() == "done", "closed, since test was seen"
    third = begun(ledger, further, open_cells(further), new_test_round=True)
    assert not isinstance(third.next(), str)
    assert len(read_rounds(ledger).later) == 2


def test_a_plan_shows_growth_and_rounds_and_writes_nothing(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, trials=MORE, seeds=3)
    resources = Resources(storage=str(tmp_path), grow=True)
    closed, reopened = (plan_sweep(more, replace(resources, new_test_round=new)) for new in (False, True))
    assert "the sweep grows: trials 3 → 6; seeds 2 → 3" in closed.notes
    assert (closed.search_trials, reopened.search_trials) == (SEARCHED, MORE)
    assert any(note.startswith("Test round 2: ") for note in reopened.notes)
    assert not ledger.test_rounds.exists()
    assert read_sweep(ledger).growth == ()


WORDS = st.lists(st.sampled_from("abcd"), min_size=1, unique=True).map(tuple)
SPECS = st.builds(
    SweepSpec, name=st.just("any"), encoders=WORDS, modes=WORDS, tasks=WORDS, trials=st.integers(1, 4),
    seeds=st.integers(1, 3), seed=st.integers(0, 1),
)  # fmt: skip


def cells_of(spec: SweepSpec) -> dict[tuple[str, ...], Block]:
    return {key: block for block in spec.products() for key in block.keys()}  # noqa: SIM118


@given(SPECS, SPECS)
def test_only_what_adds_to_every_cell_or_beside_it_is_growth(then: SweepSpec, now: SweepSpec):
    refused = now.differences(then, may_grow=True)
    old, new = cells_of(then), cells_of(now)
    holds_all = old.keys() <= new.keys() and all(
        new[key].trials >= block.trials and new[key].seeds >= block.seeds for key, block in old.items()
    )
    is_reordered = any(
        getattr(then, field) != getattr(now, field) and set(getattr(then, field)) == set(getattr(now, field))
        for field in ("encoders", "modes", "tasks")
    )
    assert (not refused) == (holds_all and then.seed == now.seed and not is_reordered)
    assert set(now.growth(then)) | set(refused) == set(now.differences(then))


def test_cells_of_specification_files_grow_too(one_mode):
    block = Block(encoders=("a",), modes=("m",), tasks=("t",), trials=2, seeds=2)
    then = SweepSpec(name="any", blocks=(block,))
    wider = SweepSpec(name="any", blocks=(block.model_copy(update={"tasks": ("t", "u"), "trials": 4}),))
    assert wider.growth(then) == ("a.m.u is new", "trials 2 → 4")
    assert wider.differences(then, may_grow=True) == []
    assert then.differences(wider, may_grow=True) == ["a.m.u is gone", "trials 4 → 2"]


def test_a_closed_cell_knows_its_own_openings_alone(one_mode, search, tmp_path):
    ledger, more = finished(tmp_path, one_mode, search), grown(one_mode, trials=MORE)
    begun(ledger, more, open_cells(more), grow=True, new_test_round=True)
    ((key, cell),) = read_rounds(ledger).last.items()
    assert set(cell.scored) == set(opened_trials(ledger))
    assert key == tuple(open_cells(more)[0].key)


def done(words: list[str]) -> str:
    """The standard error of a command that succeeds."""
    ended = run(words)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_grows_by_trials_seeds_and_a_mode_and_mlflow_has_each_trial_once(spec: SweepSpec, tmp_path: Path):
    small = spec.model_copy(update={"modes": ("fine_tuning",), "trials": 2, "seeds": 1})
    done(command(small, tmp_path))
    before = {one["id"]: one for one in records(tmp_path)}
    assert roles_in(tmp_path) == {"search": 2, "final": 1}
    refused = run(command(spec, tmp_path))
    assert (refused.returncode, "Add --grow" in refused.stderr) == (2, True), refused.stderr
    done(command(spec, tmp_path, "--grow", "--new-test-round"))
    after = {one["id"]: one for one in records(tmp_path)}
    assert {trial: after[trial]["dev"] for trial in before} == {trial: one["dev"] for trial, one in before.items()}
    assert roles_in(tmp_path)["search"] == len(spec.modes) * spec.trials
    for mode in spec.modes:
        assert len(finals_of_the_best(after.values(), mode)) == spec.seeds
    runs = mlflow_runs(tmp_path, spec.name)
    assert Counter(filter(None, (run.data.tags.get("meltpoint.trial") for run in runs))) == dict.fromkeys(after, 1)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {one["status"] for one in after.values()} == {"finished"}
    assert not list((tmp_path / spec.name / "started").iterdir())
    report = (tmp_path / spec.name / "report.md").read_text(encoding="utf-8")
    assert "The sweep grew on" in report
    assert "test round 2" in report


def finals_of_the_best(found: Iterable[dict], mode: str) -> list[dict]:
    """The finals of a cell's best setting; those of an earlier best one stay in the ledger beside them."""
    own = [one for one in found if one["mode"] == mode]
    search = [one for one in own if one["role"] == "search"]
    best = max(search, key=lambda one: (one["dev"], -len(one["epochs"]), -one["number"]))
    return [one for one in own if one["role"] == "final" and one["setting"] == best["setting"]]
