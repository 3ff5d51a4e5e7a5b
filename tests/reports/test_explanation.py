"""`plan --explain`: what trials, seeds and examples of a plan can and cannot show, and what it would take."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.screen import show_explanation
from meltpoint.reports.statistics import explanation
from meltpoint.reports.statistics.explanation import NEEDED_TRIALS, explain, planned_random
from meltpoint.reports.statistics.tuning_curves import valid_trials
from meltpoint.sweeps.driver.plan import PlannedCell
from meltpoint.sweeps.specification.space_rules import CellLength

LENGTH = CellLength(24, 24, "made", 10, 0.0, 0.0, 24, 12.0, ())


def planned(mode: str = "fine_tuning", task: str = "sst2", **fields) -> PlannedCell:
    values = {
        "encoder": "minilm", "mode": mode, "task": task, "head": "linear", "head_source": "made", "variant": "",
        "trials": 21, "finals": 5, "defaults": 0, "answered": 0, "estimated_seconds": 1.0, "length": LENGTH,
        "metric": "accuracy",
        "searcher": "random", "dev_examples": 872, "test_examples": 1821,
    }  # fmt: skip
    return PlannedCell(**(values | fields))


@pytest.mark.parametrize(
    ("searcher", "trials", "expected"),
    [("random", 64, 63), ("random", 1, 0), ("random", 0, 0), ("tpe", 64, 4), ("tpe", 3, 2), ("grid", 64, 0)],
)
def test_the_random_trials_of_a_plan_leave_out_the_published_setting(searcher: str, trials: int, expected: int):
    assert planned_random(searcher, trials) == expected


@pytest.mark.parametrize(
    "trials", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_the_needed_trials_are_the_fewest_that_have_that_range(trials: int):
    for level, needed in NEEDED_TRIALS.items():
        assert valid_trials(needed[trials], level) == trials
        assert valid_trials(needed[trials] - 1, level) == trials - 1


def test_a_random_search_is_told_its_valid_range_and_what_a_longer_one_takes():
    (part,) = explain([planned(), planned(task="mrpc")]).curves
    assert (part.trials, part.random_trials, part.valid_trials_95, part.valid_trials_80) == (16, 15, 1, 2)
    assert part.words == (
        "2 cells (minilm.fine_tuning.sst2, …): 16 trials by random, 15 of them random: a tuning curve that is valid up "
        "to 1 trial (95 % band), 2 trials (80 % band). With --searcher random: --trials 28 for up to 4, --trials 58 "
        "for up to 8 (80 % band)."
    )


def test_tpe_is_told_that_it_has_no_curve():
    (part,) = explain([planned(searcher="tpe")]).curves
    assert (part.valid_trials_95, part.valid_trials_80) == (0, 0)
    assert "16 trials by tpe, 4 of them random: no tuning curve. With --searcher random: --trials 13" in part.words


def test_the_range_of_many_trials_is_said_to_be_that_or_more(monkeypatch):
    monkeypatch.setattr(explanation, "EXACT_UP_TO", 16)
    (part,) = explain([planned(trials=1005)]).curves
    assert part.or_more
    assert "valid up to 1 trial or more (95 % band), 2 trials or more (80 % band)" in part.words


@pytest.mark.parametrize(("seeds", "p", "advised"), [(5, 0.0625, True), (6, 0.03125, False), (1, 1.0, True)])
def test_fewer_than_six_seeds_are_told_that_six_are_recommended(seeds: int, p: float, advised: bool):
    (part,) = explain([planned(finals=seeds, searcher="grid")]).seeds
    assert part.smallest_p == p
    assert ("6 or more are recommended (--seeds 6: p = 0.0312)" in part.words) is advised


def test_differences_are_of_test_where_its_size_is_declared_and_of_dev_with_a_note_where_not():
    cells = [planned(searcher="grid"), planned(task="cola", metric="matthews", test_examples=None, searcher="grid")]
    known, unknown = explain(cells).differences
    assert (known.split, known.examples) == ("test", 1821)
    assert known.words == (
        "sst2: 5 seeds and 1 821 test examples: two modes have to differ by about 2.8 points. So many examples never "
        "show less than 2.1 points, whatever the seeds; two points take more than 1 963 examples."
    )
    assert (unknown.split, unknown.examples) == ("dev", 872)
    assert "872 dev examples (test is not opened" in unknown.words
    assert "if matthews were accuracy" in unknown.words


def test_large_tests_are_told_how_many_seeds_show_two_points():
    (few,) = explain([planned(test_examples=9815, searcher="grid")]).differences
    assert few.seeds_for_two_points == 6
    assert few.words.endswith("Two points would take about 6 seeds.")
    (enough,) = explain([planned(test_examples=9815, finals=8, searcher="grid")]).differences
    assert "would take" not in enough.words
    (one,) = explain([planned(test_examples=9815, finals=1, searcher="grid")]).differences
    assert one.smallest_difference is None
    assert "no difference can be shown with one seed. Two points would take about 6 seeds." in one.words


def test_the_screen_has_a_heading_for_each_part_and_the_assumptions():
    console = Console(width=100)
    with console.capture() as capture:
        show_explanation(explain([planned(searcher="grid")]), console)
    text = " ".join(capture.get().split())
    for heading in ("Tuning curves", "Seeds", "Differences"):
        assert heading in text
    assert "a standard deviation over seeds of 1 point, independent examples" in text


def test_plan_explain_has_an_object_of_its_own_in_json(minilm, tmp_path):
    words = ["plan", "--name", "x", "--encoder", "minilm", "--mode", "fine_tuning", "--task", "demo_sentiment",
             "--head", "linear", "--storage", str(tmp_path), "--searcher", "random", "--trials", "13", "--json",
             "--explain"]  # fmt: skip
    document = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    (curve,) = document["explain"]["curves"]
    assert (curve["cells"], curve["valid_trials_80"]) == (["minilm.fine_tuning.demo_sentiment"], 2)
    assert document["explain"]["differences"][0]["split"] == "dev"
    assert [(cell["searcher"], cell["dev_examples"]) for cell in document["cells"]] == [("random", 200)]
