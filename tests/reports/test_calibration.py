"""Calibration: against scikit-learn and loops, on data whose calibration is known, and from stored predictions."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from meltpoint.reports.analyses import analyse
from meltpoint.reports.statistics.calibration import (
    BINS,
    COLDEST,
    HOTTEST,
    SMALLEST,
    Binning,
    Scored,
    brier_score,
    calibrated_errors,
    calibration_error,
    cooled,
    error_interval,
    fitted_temperature,
    is_at_limit,
    mean_error,
    negative_log_likelihood,
    reliability,
    scored,
)
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import read_predictions
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import SweepFile, write_sweep
from meltpoint.sweeps.specification.cells import cell_name

BINNINGS: tuple[Binning, ...] = ("mass", "width")


def simulated(examples: int, labels: int = 2, temperature: float = 1.0, seed: int = 0, spread: float = 2.0) -> Scored:
    """Predictions whose logits are the true ones times a temperature: at 1 they are calibrated."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, spread, (examples, labels))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = (rng.random((examples, 1)) > true.cumsum(axis=1)).sum(axis=1)
    shown = np.exp(temperature * logits)
    return Scored(shown / shown.sum(axis=1, keepdims=True), gold, logits.argmax(axis=1))


def by_hand(confidence: list[float], is_right: list[bool], edges: list[float]) -> float:
    """The error with loops: a bin takes what is above its lower edge, the first one all below its upper edge."""
    total = 0.0
    for number in range(len(edges) - 1):
        first, last = number == 0, number == len(edges) - 2
        own = [
            place for place, share in enumerate(confidence)
            if (first or share > edges[number]) and (last or share <= edges[number + 1])
        ]  # fmt: skip
        if own:
            accuracy = sum(is_right[place] for place in own) / len(own)
            mean = sum(confidence[place] for place in own) / len(own)
            total += len(own) / len(confidence) * abs(accuracy - mean)
    return total


EXAMPLES = st.lists(st.tuples(st.integers(0, 1000).map(lambda n: n / 1000), st.booleans()), min_size=1, max_size=60)


@given(EXAMPLES)
def test_the_error_is_that_of_loops_over_bins(examples: list[tuple[float, bool]]):
    confidence, is_right = [share for share, _ in examples], [right for _, right in examples]
    values = np.array(confidence), np.array(is_right, dtype=float)
    widths = [number / BINS for number in range(BINS + 1)]
    masses = [float(edge) for edge in np.quantile(confidence, np.linspace(0, 1, BINS + 1))]
    assert calibration_error(*values, "width") == pytest.approx(by_hand(confidence, is_right, widths), abs=1e-9)
    assert calibration_error(*values, "mass") == pytest.approx(by_hand(confidence, is_right, masses), abs=1e-9)


@pytest.mark.parametrize(("binning", "strategy"), [("mass", "quantile"), ("width", "uniform")])
def test_the_bins_are_those_of_scikit_learn(binning: Binning, strategy: str):
    one = simulated(500, temperature=1.5)
    accuracy, confidence = calibration_curve(one.is_right, one.confidence, n_bins=BINS, strategy=strategy)
    bins = reliability(one.confidence, one.is_right, binning)
    assert [each.accuracy for each in bins] == pytest.approx(accuracy.tolist())
    assert [each.confidence for each in bins] == pytest.approx(confidence.tolist())
    error = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / 500
    assert calibration_error(one.confidence, one.is_right, binning) == pytest.approx(error)


@given(EXAMPLES, st.sampled_from(BINNINGS), st.randoms())
def test_the_error_does_not_depend_on_the_examples_order(examples, binning: Binning, random):
    before = np.array(examples, dtype=float)
    random.shuffle(examples)
    after = np.array(examples, dtype=float)
    assert calibration_error(*after.T, binning) == pytest.approx(calibration_error(*before.T, binning), abs=1e-12)


@pytest.mark.parametrize("labels", [2, 5])
def test_score_and_likelihood_are_those_of_scikit_learn(labels: int):
    one = simulated(300, labels, temperature=2.0)
    names = list(range(labels))
    assert negative_log_likelihood(one) == pytest.approx(log_loss(one.gold, one.probabilities, labels=names))
    assert brier_score(one) == pytest.approx(
        brier_score_loss(one.gold, one.probabilities, labels=names, scale_by_half=False)
    )


@pytest.mark.parametrize("binning", BINNINGS)
def test_a_calibrated_model_has_an_error_near_0_and_an_overconfident_one_has_not(binning: Binning):
    assert mean_error([simulated(100_000)], binning) < 0.008
    assert mean_error([simulated(100_000, temperature=3.0)], binning) > 0.05


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("labels", [2, 4])
def test_a_known_temperature_is_found_back_and_undone(temperature: float, labels: int):
    dev, test = (simulated(20_000, labels, temperature, seed) for seed in (1, 2))
    found = fitted_temperature(dev)
    assert found == pytest.approx(temperature, rel=0.06)
    assert not is_at_limit(found)
    after = cooled(test, found)
    assert mean_error([after]) < 0.015
    assert negative_log_likelihood(after) <= negative_log_likelihood(test) + 1e-4
    np.testing.assert_array_equal(after.probabilities.argmax(axis=1), test.probabilities.argmax(axis=1))


def test_the_fit_ends_at_a_limit_where_every_dev_example_is_right():
    one = simulated(200)
    assert is_at_limit(fitted_temperature(Scored(one.probabilities, one.predicted, one.predicted)))
    lost = fitted_temperature(Scored(one.probabilities, 1 - one.predicted, one.predicted))
    assert is_at_limit(lost)
    assert lost == pytest.approx(HOTTEST, rel=0.01)
    assert fitted_temperature(Scored(one.probabilities, one.predicted, one.predicted)) == pytest.approx(
        COLDEST, rel=0.01
    )


@given(st.floats(0.05, 20.0))
def test_scaling_keeps_distributions_and_their_order(temperature: float):
    one = simulated(40, 3)
    after = cooled(one, temperature)
    np.testing.assert_allclose(after.probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(after.probabilities.argmax(axis=1), one.probabilities.argmax(axis=1))


def test_the_error_of_calibrated_models_is_that_of_fresh_labels():
    one = simulated(400)
    expected = [mean_error([simulated(400, seed=seed)]) for seed in range(200)]
    found = calibrated_errors([one], np.random.default_rng(0), 400)
    assert found.mean() == pytest.approx(np.mean(expected), rel=0.1)


def test_the_interval_holds_the_estimate_and_begins_at_0_for_a_calibrated_model():
    for temperature, is_calibrated in ((1.0, True), (3.0, False)):
        seeds = [simulated(400, temperature=temperature, seed=7)]
        rng = np.random.default_rng(0)
        low, high = error_interval(seeds, rng, calibrated_errors(seeds, rng))
        assert low < mean_error(seeds) < high
        assert (low == 0.0) == is_calibrated


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 1.5, 2.5])
def test_the_interval_covers_the_true_error_in_about_nine_cases_of_ten(temperature: float):
    """The true error is that of many examples; 120 samples of 400, so that a share of 0.9 is good to 0.05."""
    true = mean_error([simulated(400_000, temperature=temperature, seed=99)])
    true = 0.0 if temperature == 1.0 else true
    hits = 0
    for seed in range(120):
        seeds, rng = [simulated(400, temperature=temperature, seed=seed)], np.random.default_rng(seed)
        low, high = error_interval(seeds, rng, calibrated_errors(seeds, rng))
        hits += low <= true <= high
    assert hits / 120 > 0.82


# --- stored predictions ---

LABELS = ("negative", "positive")


def lines_of(one: Scored) -> str:
    documents: list[dict[str, Any]] = [
        {
            "id": str(number), "gold": LABELS[one.gold[number]], "prediction": LABELS[one.predicted[number]],
            "probabilities": {label: round(float(share), 6) for label, share in zip(LABELS, shares, strict=True)},
        } for number, shares in enumerate(one.probabilities)
    ]  # fmt: skip
    return "".join(f"{json.dumps(document)}\n" for document in documents)


def stored(storage: Path, make_sweep: Any, *cells: CellSummary, temperature: float = 2.0) -> Path:
    """A sweep whose finals have simulated predictions of 400 dev and 300 test examples."""
    summary = make_sweep(*cells)
    ledger = Ledger(storage / summary.name)
    ledger.create()
    write_sweep(ledger, SweepFile(spec=summary.spec, code="0.1.0+abc", cells=tuple(one.header for one in cells)))
    (ledger.folder / "predictions").mkdir(exist_ok=True)
    for cell in cells:
        best = cell.best
        assert best is not None
        ledger.write(best)
        for final in cell.finals:
            ledger.write(final)
            for split, count in (("dev", 400), ("test", 300)):
                name = f"{cell_name(*cell.header.key)}.seed{final.seed}.{split}.jsonl"
                one = simulated(count, temperature=temperature, seed=17 if split == "dev" else 18)
                (ledger.folder / "predictions" / name).write_text(lines_of(one), encoding="utf-8")
    return storage


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_the_figures_of_the_stored_predictions(tmp_path, make_cell, make_sweep):
    cell = make_cell(finals=((0.8, 0.8), (0.8, 0.8)))
    storage = stored(tmp_path, make_sweep, cell)
    analyse("first", ["calibration"], storage, out=tmp_path / "out", formats=["csv", "md"])
    (row,) = read(tmp_path / "out" / "calibration.csv")
    one = simulated(300, temperature=2.0, seed=18)
    figures = {
        name: value if name in ("encoder", "mode", "task", "split") else float(value) for name, value in row.items()
    }
    assert (row["split"], figures["examples"], figures["seeds"]) == ("test", 300, 2)
    assert figures["accuracy"] == pytest.approx(one.is_right.mean())
    assert figures["confidence"] == pytest.approx(one.confidence.mean(), abs=1e-6)
    assert figures["ECE"] == pytest.approx(mean_error([one]), abs=1e-3)
    assert figures["NLL"] == pytest.approx(negative_log_likelihood(one), rel=1e-3)
    assert figures["temperature"] == pytest.approx(
        fitted_temperature(simulated(400, temperature=2.0, seed=17)), rel=1e-3
    )
    assert figures["NLL after"] < figures["NLL"]
    assert figures["low"] < figures["ECE"] < figures["high"]


def test_the_bins_hold_every_example_before_and_after(tmp_path, make_cell, make_sweep):
    storage = stored(tmp_path, make_sweep, make_cell(finals=((0.8, 0.8), (0.8, 0.8))))
    analyse("first", ["calibration"], storage, out=tmp_path / "out", formats=["csv", "svg"])
    counts: dict[tuple[str, str], int] = {}
    for row in read(tmp_path / "out" / "calibration_bins.csv"):
        key = row["probabilities"], row["seed"]
        counts[key] = counts.get(key, 0) + int(row["count"])
    states = ("before", "after temperature")
    assert counts == {(state, seed): 600 if seed == "all" else 300 for state in states for seed in ("0", "1", "all")}
    assert (tmp_path / "out" / "calibration.svg").stat().st_size > 1000


def test_hidden_test_labels_leave_the_figures_of_dev_without_those_after_temperature(tmp_path, make_cell, make_sweep):
    storage = stored(tmp_path, make_sweep, make_cell(finals=((0.8, "hidden"), (0.8, "hidden"))))
    analyse("first", ["calibration"], storage, out=tmp_path / "out", formats=["csv"])
    (row,) = read(tmp_path / "out" / "calibration.csv")
    assert (row["split"], row["examples"]) == ("dev", "400")
    assert row["ECE"] != ""
    assert row["ECE after temperature"] == row["NLL after"] == ""


def test_a_cell_without_scored_finals_is_named_and_left_out(tmp_path, make_cell, make_sweep):
    storage = stored(tmp_path, make_sweep, make_cell(finals=((0.8, 0.8),)), make_cell("feature_extraction"))
    analyse("first", ["calibration"], storage, out=tmp_path / "out", formats=["csv", "md"])
    assert [row["mode"] for row in read(tmp_path / "out" / "calibration.csv")] == ["fine_tuning"]
    text = (tmp_path / "out" / "calibration.md").read_text(encoding="utf-8")
    assert "minilm.feature_extraction.sst2 is left out: no finalist is scored yet." in text


def test_a_missing_file_of_predictions_is_named(tmp_path, make_cell, make_sweep):
    storage = stored(tmp_path, make_sweep, make_cell(finals=((0.8, 0.8),)))
    (tmp_path / "first/predictions/minilm.fine_tuning.sst2.seed0.test.jsonl").unlink()
    with pytest.raises(ValueError, match=r"seed0\.test\.jsonl is missing"):
        analyse("first", ["calibration"], storage, out=tmp_path / "out")


def test_a_stored_0_gives_a_large_and_finite_likelihood(tmp_path):
    path = tmp_path / "one.jsonl"
    sure = Scored(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1, 1]), np.array([0, 1]))
    path.write_text(lines_of(sure), encoding="utf-8")
    one = scored(read_predictions(path))
    assert negative_log_likelihood(one) == pytest.approx(-math.log(SMALLEST) / 2, rel=1e-5)
    assert one.probabilities.sum(axis=1).tolist() == pytest.approx([1.0, 1.0])
