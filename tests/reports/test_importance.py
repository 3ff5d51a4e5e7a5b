"""Importance: Optuna's own figures on studies made by hand, conditional parameters, edges, and too few trials."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.importance import ANALYSIS
from meltpoint.reports.statistics.importance import (
    FEWEST_TRIALS,
    edge_of,
    importances,
    scored_trials,
    space_of,
    study_of,
    target_quantile,
)
from meltpoint.search_spaces.ranges import Choice, Integer, Range, Real
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import best_of
from meltpoint.tests.reports.conftest import record

SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-5, 1.0e-3]}
  dropout: {uniform: [0.0, 0.5]}
  epochs: {fixed: 3}
  schedule: {choice: [constant, slanted_triangular]}
  slanted_triangular.ratio: {uniform: [16.0, 64.0], when: {schedule: [slanted_triangular]}}
"""
Setting = dict[str, Any]


def by_rate(setting: Setting) -> float:
    """A score that the learning rate alone decides."""
    return 0.9 - 0.1 * abs(math.log10(setting["learning_rate"]) + 4)


def cell_of(make_cell: Any, trials: int, score: Callable[[Setting], float], seed: int = 0) -> CellSummary:
    """A cell whose random trials have a given score."""
    made: CellSummary = make_cell(search=())
    header = made.header.model_copy(update={"space": SPACE})
    space, rng = space_of(header), np.random.default_rng(seed)
    settings = [dict(space.sample(rng)) for _ in range(trials)]
    search = [
        record(header, number, dev=score(setting), setting={**setting, "batch_size": 32})
        for number, setting in enumerate(settings)
    ]
    return replace(made, header=header, search=search, best=best_of(search))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_figures_are_optunas_on_a_study_made_by_hand(make_cell):
    cell = cell_of(make_cell, 24, lambda setting: by_rate(setting) - 0.2 * setting["dropout"] ** 2)
    study = optuna.create_study(direction="maximize")
    for one in cell.search:
        names = {
            "learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True),
            "dropout": optuna.distributions.FloatDistribution(0.0, 0.5),
            "schedule": optuna.distributions.CategoricalDistribution(("constant", "slanted_triangular")),
            "slanted_triangular.ratio": optuna.distributions.FloatDistribution(16.0, 64.0),
        }
        own = {name: value for name, value in names.items() if name in one.setting}
        params = {name: one.setting[name] for name in own}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=own, value=one.dev))
    ped = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=5 / 24))
    forest = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0), normalize=False)
    found = {one.name: one for one in importances(cell)}
    assert {name: one.ped_anova for name, one in found.items()} == pytest.approx(ped)
    assert {name: found[name].fanova for name in forest} == pytest.approx(forest)
    assert set(found) - set(forest) == {"slanted_triangular.ratio"}


def test_the_parameter_that_decides_is_first_and_the_others_have_little(make_cell):
    first, *others = importances(cell_of(make_cell, 40, by_rate))
    assert first.name == "learning_rate"
    assert first.ped_anova > 0.6
    assert first.fanova > 0.8
    assert sum(one.ped_anova for one in others) == pytest.approx(1 - first.ped_anova)


def test_a_conditional_parameter_counts_by_the_trials_that_have_it(make_cell):
    def score(setting: Setting) -> float:
        return 0.5 + 0.4 * setting.get("slanted_triangular.ratio", 16) / 64

    cell = cell_of(make_cell, 40, score)
    found = {one.name: one for one in importances(cell)}
    conditional, having = found["slanted_triangular.ratio"], [one for one in cell.search if len(one.setting) == 6]
    assert conditional.trials == len(having) < found["dropout"].trials == 40
    assert conditional.fanova > 0.9
    assert conditional.ped_anova > found["dropout"].ped_anova


def test_fewer_trials_than_ten_give_no_figure(make_cell):
    for trials, has_figures in ((FEWEST_TRIALS - 1, False), (FEWEST_TRIALS, True)):
        found = importances(cell_of(make_cell, trials, by_rate))
        assert any(one.ped_anova is not None for one in found) == has_figures
        assert any(one.fanova is not None for one in found) == has_figures
        assert len(found) == 4


def test_the_top_quantile_holds_five_trials_and_is_never_more_than_half(make_cell):
    for trials in range(FEWEST_TRIALS, 200):
        assert math.ceil(target_quantile(trials) * trials - 1e-9) >= 5
        assert 0.1 <= target_quantile(trials) <= 0.5


def test_failed_and_stopped_trials_do_not_count(make_cell):
    cell = cell_of(make_cell, 12, by_rate)
    broken = [cell.search[0].model_copy(update={"status": status}) for status in ("failed", "stopped")]
    assert len(scored_trials(replace(cell, search=[*broken, *cell.search]))) == 12


def test_equal_scores_give_no_figure(make_cell):
    found = importances(cell_of(make_cell, 20, lambda setting: 0.5))
    assert [one.ped_anova for one in found] == [one.fanova for one in found] == [None] * 4


@pytest.mark.parametrize(
    ("range_", "value", "edge"),
    [
        (Real(1e-5, 1e-3, log=True), 1.05e-5, "low"), (Real(1e-5, 1e-3, log=True), 1e-4, None),
        (Real(1e-5, 1e-3, log=True), 5.05e-4, None), (Real(1e-5, 1e-3, log=True), 9.5e-4, "high"),
        (Real(0.0, 0.5), 0.01, "low"), (Real(0.0, 0.5), 0.49, "high"), (Real(0.0, 0.5), 0.02, None),
        (Integer(1, 3), 3, "high"), (Integer(1, 3), 2, None), (Integer(1, 2), 2, None),
        (Choice((16, 8, 32)), 8, "low"), (Choice((16, 8, 32)), 32, "high"), (Choice((16, 8, 32)), 16, None),
        (Choice((8, 16)), 16, None), (Choice(("a", "b", "c")), "a", None), (Choice((True, False)), True, None),
    ],
)  # fmt: skip
def test_a_best_value_at_the_edge_of_its_range_is_marked(range_: Range, value: float | str, edge: str | None):
    assert edge_of(range_, value) == edge


def test_the_study_has_the_searched_parameters_and_no_others(make_cell):
    cell = cell_of(make_cell, 12, by_rate)
    study = study_of(space_of(cell.header), cell.search)
    for trial, one in zip(study.trials, cell.search, strict=True):
        assert trial.value == one.dev
        assert trial.params == {name: own for name, own in one.setting.items() if name not in ("epochs", "batch_size")}


def written(make_sweep: Any, out: Path, *cells: CellSummary) -> tuple[list[dict[str, str]], str]:
    """The rows of the table, and its notes."""
    ANALYSIS.run(AnalysisOptions(make_sweep(*cells), None, out, formats=("csv", "md", "svg")))
    with (out / "importance.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), (out / "importance.md").read_text(encoding="utf-8")


def test_the_table_has_a_row_for_each_searched_parameter_and_the_figure_is_drawn(make_cell, make_sweep, tmp_path):
    cell = cell_of(make_cell, 12, by_rate)
    rows, _ = written(make_sweep, tmp_path, cell)
    assert [row["parameter"] for row in rows] == [one.name for one in importances(cell)]
    assert rows[0]["range"] == "log_uniform [1e-05, 0.001]"
    assert (tmp_path / "importance.svg").stat().st_size > 1000


def test_a_cell_with_too_few_trials_is_named_and_has_no_figure(make_cell, make_sweep, tmp_path):
    rows, notes = written(make_sweep, tmp_path, cell_of(make_cell, 4, by_rate))
    assert {row["PED-ANOVA"] for row in rows} == {""}
    assert "minilm.fine_tuning.sst2: 4 finished trials, 10 are needed." in notes
    assert not (tmp_path / "importance.svg").exists()


def test_a_space_of_another_version_is_named_and_left_out(make_cell, make_sweep, tmp_path):
    cell = cell_of(make_cell, 12, by_rate)
    header = cell.header.model_copy(update={"space": "parameters:\n  long_gone: {uniform: [0.0, 1.0]}\n"})
    rows, notes = written(make_sweep, tmp_path, replace(cell, header=header))
    assert rows == []
    assert "minilm.fine_tuning.sst2 is left out" in notes
    assert "long_gone" in notes
