"""The tuning curves of a sweep's cells: which trials count, what is said where there is no curve, table and figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.tuning_curves import ANALYSIS
from meltpoint.reports.statistics.tuning_curves import cell_curve
from meltpoint.sweeps.ledger.records import HardwareRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tests.reports.conftest import record

GPU = HardwareRecord(device="cuda:0", name="H", threads=1, gpu_share=0.25, precision="bf16", host="here")
SCORES = [float(score) for score in np.linspace(0.6, 0.9, 12)]


def searched(cell: CellSummary, *trials: dict[str, Any]) -> CellSummary:
    """The cell with a search trial for each of these fields; random, one worker's work each, unless they say more."""
    search = [
        record(cell.header, number, **({"suggested_by": "random"} | fields)) for number, fields in enumerate(trials)
    ]
    return replace(cell, search=search)


def scored(*scores: float, **fields: Any) -> list[dict[str, Any]]:
    return [{"dev": score} | fields for score in scores]


def test_only_random_trials_count(make_cell):
    others = [{"dev": 0.99, "suggested_by": source} for source in ("first", "tpe", "sibling", "grid")]
    cell = searched(make_cell(), *others, *scored(*SCORES))
    assert cell_curve(cell).trials.scores == tuple(SCORES)
    assert cell_curve(cell).trials.words == "1 first, 1 tpe, 1 sibling, 1 grid, 12 random"


def test_a_setting_that_failed_counts_as_the_metrics_lowest_value_and_a_lost_trial_not_at_all(make_cell):
    ends = [
        {"dev": None, "status": "failed", "cause": "setting", "error": "NaN"},
        {"dev": None, "status": "failed", "cause": "worker", "error": "gone"},
    ]
    for metric, lowest in (("accuracy", 0.0), ("matthews", -1.0)):
        one = cell_curve(searched(make_cell(metric=metric), *scored(*SCORES), *ends))
        assert one.trials.scores == (*SCORES, lowest)
        assert one.notes == (
            f"1 random trial failed by the setting, counted as {lowest:g}", "1 random trial lost and left out",
        )  # fmt: skip
        assert one.curve is not None


def test_trials_that_were_stopped_early_leave_no_curve(make_cell):
    one = cell_curve(searched(make_cell(), *scored(*SCORES), {"dev": 0.7, "status": "stopped"}))
    assert one.curve is None
    assert one.reason.startswith("no curve: 1 random trial stopped early")


def test_too_few_random_trials_are_said_with_the_remedy(make_cell):
    one = cell_curve(searched(make_cell(), *scored(0.7, 0.8, 0.9)))
    assert one.curve is None
    assert one.reason == "no curve: 3 random trials; `--searcher random` or more trials give one"


def test_records_of_older_versions_are_said_not_to_tell_where_settings_come_from(make_cell):
    one = cell_curve(searched(make_cell(), *scored(*SCORES, suggested_by=None)))
    assert one.curve is None
    assert "not recorded by that version" in one.reason
    mixed = cell_curve(searched(make_cell(), *scored(0.5, 0.4, suggested_by=None), *scored(*SCORES)))
    assert mixed.curve is not None
    assert "2 trials left out" in mixed.notes[0]


def test_a_search_without_trials_has_no_curve(make_cell):
    assert cell_curve(make_cell(search=())).reason.startswith("no curve: 0 random trials")


def test_a_search_that_is_not_over_says_so(make_cell):
    one = cell_curve(searched(make_cell(planned=20, search=SCORES), *scored(*SCORES)))
    assert one.notes == ("8 search trials not run",)


def test_of_many_trials_the_first_ones_count(make_cell):
    one = cell_curve(searched(make_cell(), *scored(*SCORES)), most=10)
    assert one.trials.scores == tuple(SCORES[:10])
    assert one.notes == ("the first 10 random trials only, 2 more left out",)


def test_a_cpu_trial_costs_its_workers_seconds_and_a_gpu_trial_its_share_of_them(make_cell):
    cpu = cell_curve(searched(make_cell(), *scored(*SCORES))).trials.cost
    assert (cpu.seconds, cpu.unit) == (60.0, "CPU worker-seconds")
    gpu = cell_curve(searched(make_cell(), *scored(*SCORES, hardware=GPU))).trials.cost
    assert (gpu.seconds, gpu.unit) == (15.0, "GPU-seconds")
    both = cell_curve(searched(make_cell(), *scored(*SCORES), *scored(0.5, hardware=GPU)))
    assert both.trials.cost is None
    assert both.seconds(2) is None


def test_trials_side_by_side_share_the_time_of_their_order(make_cell):
    """The published setting trained with them; one of them ended early, and held its worker no shorter for that."""
    order = {"started_at": 5.0, "trained_together": 4}
    together = [
        {"dev": 0.5, "seconds": 100.0, "suggested_by": "first", **order},
        *scored(0.6, 0.7, seconds=80.0, **order), *scored(0.8, seconds=20.0, seconds_before=3.0, **order),
    ]  # fmt: skip
    assert cell_curve(searched(make_cell(), *together)).trials.cost.seconds == 26.0


def test_a_curve_knows_its_valid_range_and_what_its_trials_cost(make_cell):
    one = cell_curve(searched(make_cell(), *scored(*np.linspace(0.1, 0.9, 17))))
    assert (one.seconds(1), one.seconds(2), one.curve.valid) == (60.0, 120.0, (1, 2))
    first, second = one.curve.at([1, 2])
    assert first.median == pytest.approx(0.5)
    assert [band is None for band in second.bands] == [True, False]
    assert one.valid_words == "from 17 random trials: valid up to 1 trial (95 % band), 2 trials (80 % band)"


@pytest.fixture
def sweep(make_cell, make_sweep):
    """A task with curves of two modes, one with a curve of one, and one with none."""
    cells = [
        searched(make_cell(mode, task), *scored(*(score - 0.1 * place for score in SCORES), hardware=hardware))
        for place, (mode, task, hardware) in enumerate(
            [("feature_extraction", "sst2", GPU), ("fine_tuning", "sst2", GPU), ("fine_tuning", "mrpc", None)]
        )
    ]
    return make_sweep(*cells, searched(make_cell(task="cola", metric="matthews"), *scored(0.7)))


def written(sweep, out: Path, **fields: Any) -> list[Path]:
    return ANALYSIS.run(AnalysisOptions(sweep=sweep, ledger=None, out=out, **fields))


def test_the_analysis_writes_a_table_and_two_figures(sweep, tmp_path):
    names = {path.name for path in written(sweep, tmp_path)}
    figures = {f"tuning_curves{end}.{form}" for end in ("", "_seconds") for form in ("svg", "png")}
    assert names == figures | {f"tuning_curves.{form}" for form in ("md", "csv", "tex")}
    with (tmp_path / "tuning_curves.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [("sst2", "GPU-seconds"), ("sst2", "GPU-seconds"), ("mrpc", "")]
    shown = [(task, k, unit) for task, unit in cells for k in ("1", "2")]
    assert [(row["task"], row["k"], row["unit"]) for row in rows] == [*shown, ("cola", "", "")]
    assert [row["high, 95 %"] == "" for row in rows[:2]] == [False, True]
    assert "no curve: 1 random trial" in rows[-1]["note"]
    text = (tmp_path / "tuning_curves.md").read_text(encoding="utf-8")
    assert "minilm.fine_tuning.sst2: from 12 random trials: valid up to 1 trial (95 % band), 2 trials" in text


def test_equal_sweeps_give_equal_bytes(sweep, tmp_path):
    for place in ("a", "b"):
        written(sweep, tmp_path / place, formats=("svg", "md"))
    for name in ("tuning_curves.svg", "tuning_curves_seconds.svg", "tuning_curves.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_sweep_without_any_curve_has_its_table_and_no_figure(make_cell, make_sweep, tmp_path):
    sweep = make_sweep(searched(make_cell(), *scored(*SCORES, suggested_by=None)))
    assert {path.name for path in written(sweep, tmp_path)} == {
        f"tuning_curves.{form}" for form in ("md", "csv", "tex")
    }
