"""Variance by source: intervals against SciPy and simulation; on a tiny sweep, runs that equal the sweep's own."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.hyperparameters import Seeds
from meltpoint.reports.analyses import analyse
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.variance import SOURCES, Run, grouped, scores_of
from meltpoint.reports.statistics.variance import deviation, share
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.task import DataSpec

SCORES = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20)
MODES = ("feature_extraction", "fine_tuning")


def test_the_interval_of_five_runs_reaches_from_0_60_to_2_87_times_the_deviation():
    found = deviation([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.std == pytest.approx(statistics.stdev([0.1, 0.2, 0.3, 0.4, 0.5]))
    assert found.low / found.std == pytest.approx(0.599, abs=1e-3)
    assert found.high / found.std == pytest.approx(2.874, abs=1e-3)
    twenty = deviation([0.0, 1.0] * 10)
    assert [twenty.low / twenty.std, twenty.high / twenty.std] == pytest.approx([0.760, 1.461], abs=1e-3)


@given(SCORES, st.floats(0.1, 10.0))
def test_deviation_and_interval_grow_with_the_scores(scores: list[float], factor: float):
    one, scaled = deviation(scores), deviation([factor * score for score in scores])
    for part in ("std", "low", "high"):
        assert getattr(scaled, part) == pytest.approx(factor * getattr(one, part), abs=1e-9)
    assert one.low <= one.std <= one.high


def test_the_interval_covers_the_true_deviation_of_normal_scores():
    rng = np.random.default_rng(0)
    found = [deviation(rng.normal(0.8, 0.02, 5).tolist()) for _ in range(500)]
    hits = sum(one.low <= 0.02 <= one.high for one in found)
    assert hits / 500 == pytest.approx(0.95, abs=0.03)


def test_one_run_has_no_deviation_and_no_share():
    one, two = deviation([0.5]), deviation([0.5, 0.7])
    assert (one.std, one.low, one.high) == (None, None, None)
    assert share(one, two) is None
    assert share(two, deviation([0.5, 0.5])) is None
    assert share(deviation([0.5, 0.6]), two).value == pytest.approx(0.25)


def test_the_interval_of_a_share_of_five_runs_reaches_from_a_tenth_to_ten_times_it_and_covers():
    rng = np.random.default_rng(0)
    pairs = [[deviation(rng.normal(0.8, std, 5).tolist()) for std in (0.01, 0.02)] for _ in range(300)]
    found = [share(*pair) for pair in pairs]
    assert (
        found[0].high / found[0].value == pytest.approx(found[0].value / found[0].low) == pytest.approx(9.605, abs=1e-3)
    )
    assert sum(one.low <= 0.25 <= one.high for one in found) / 300 == pytest.approx(0.95, abs=0.04)


@pytest.fixture(scope="module")
def storage(tiny_bert: Path, train_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of a frozen and a trained encoder with two finals each."""
    spec = SweepSpec(
        name="tiny", encoders=(f"hf:{tiny_bert}",), modes=MODES, tasks=("demo_sentiment",), trials=1, seeds=2,
        max_train_examples=24, head="linear",
    )  # fmt: skip
    setting = {"learning_rate": 5e-3, "epochs": 2, "batch_size": 8, "dropout": 0.3, "max_pieces": 16}
    return train_sweep(tmp_path_factory.mktemp("storage"), spec, setting)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_figures_are_those_of_its_runs(storage: Path, tmp_path: Path):
    analyse("tiny", ["variance"], storage, out=tmp_path, formats=["csv", "md"], runs=3)
    rows, runs = read(tmp_path / "variance.csv"), read(tmp_path / "variance_runs.csv")
    assert [(row["mode"], row["varied"]) for row in rows] == [
        (mode, source) for mode in MODES for source in (*SOURCES.values(), "all")
    ]
    for row in rows:
        own = [one for one in runs if (one["mode"], one["varied"]) == (row["mode"], row["varied"])]
        scores = [float(one["dev"]) for one in own]
        assert (int(row["runs"]), len(own)) == (3, 3)
        assert float(row["std"]) == pytest.approx(statistics.stdev(scores))
        assert float(row["mean"]) == pytest.approx(statistics.fmean(scores))
        varied = {
            name for name in ("order seed", "initial seed", "dropout seed") if len({one[name] for one in own}) > 1
        }
        expected = {"data order": {"order seed"}, "head initialisation": {"initial seed"}, "dropout": {"dropout seed"}}
        assert varied == expected.get(row["varied"], {"order seed", "initial seed", "dropout seed"})


def test_runs_with_all_varied_are_the_finals_and_train_to_the_same_numbers(storage: Path, tmp_path: Path):
    ledger = Ledger(storage / "tiny")
    summary = summarise(ledger)
    options = AnalysisOptions(summary, ledger, tmp_path)
    for cell in summary.cells:
        base = cell.best.seed
        scores, notes = scores_of(options, cell, 3)
        assert scores[Run("order", Seeds.all_of(base))] == cell.best.dev
        finals = {final.seed: final.dev for final in cell.finals}
        shown = {one.seeds.order: dev for one, dev in scores.items() if one.source == "all"}
        assert finals.items() <= shown.items()
        assert notes == ["1 run of `all` is its finals' scores"]
        alone = cell.finals[0].model_copy(update={"dev": -1.0})
        trained, doubt = scores_of(options, replace(cell, best=alone), 2)
        assert {one.seeds.order: dev for one, dev in trained.items() if one.source == "all"} == finals
        assert "do not give the search's -1.0 again" in doubt[0]


def order(number: int, seeds: Seeds | None, mode: str = "feature_extraction", seed: int = 0) -> Order:
    return Order(
        id=str(number), number=number, encoder="minilm", mode=mode, task="sst2", role="search", seed=seed,
        head="linear", setting={"batch_size": 8}, data=DataSpec("sst2"), data_fingerprint="", encoder_fingerprint="",
        checkpoint="", cpus=1, gpus=0, seeds=seeds,
    )  # fmt: skip


def test_runs_of_one_data_order_train_side_by_side_on_a_frozen_encoder():
    orders = [order(0, Seeds(0, 0, 0)), order(1, Seeds(1, 0, 0)), order(2, Seeds(0, 1, 0)), order(3, Seeds(0, 0, 1))]
    assert [[one.number for one in group] for group in grouped(orders)] == [[0, 2, 3], [1]]
    tuned = [one.model_copy(update={"mode": "fine_tuning"}) for one in orders]
    assert [[one.number for one in group] for group in grouped(tuned)] == [[0], [1], [2], [3]]
    many = [order(number, Seeds(0, number, 0)) for number in range(20)]
    assert [len(group) for group in grouped(many)] == [8, 8, 4]


def test_an_order_of_an_older_version_has_one_seed_for_every_source():
    document = order(0, None, seed=7).as_json()
    assert document.pop("seeds") is None
    assert (Order.model_validate(document).seeds, Order.model_validate(document).order_seed) == (None, 7)
    apart = order(0, Seeds(1, 2, 3), seed=7)
    assert Order.model_validate(apart.as_json()) == apart
    assert apart.order_seed == 1
