"""Of an error the lowest value is the best one, wherever a best is chosen or a difference is put into words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from meltpoint.adapters.training.epochs import EpochResult, best_epoch
from meltpoint.reports.results import gain_in_words
from meltpoint.reports.statistics.comparison import Comparison
from meltpoint.reports.statistics.cost import Point, pareto
from meltpoint.sweeps.driver.cell_endings import place_tags
from meltpoint.sweeps.results.guards import _against
from meltpoint.sweeps.results.kept_results import Baseline
from meltpoint.sweeps.search.selection import best_final, best_of, spread
from meltpoint.sweeps.tracking.views import PLACE

TUNED, FROZEN = ("minilm", "fine_tuning", "reviews"), ("minilm", "feature_extraction", "reviews")


def compared(metric: str, delta: float) -> Comparison:
    low, high = sorted((delta / 2, delta * 2))
    return Comparison(TUNED, FROZEN, "test", metric, delta, low=low, high=high, p=0.001, p_holm=0.002)


@pytest.mark.parametrize(("metric", "winner"), [("mse", "fine-tuning"), ("pearson", "feature extraction")])
def test_the_words_of_a_difference_below_0_are_for_the_side_with_the_lower_error(metric, winner):
    assert compared(metric, -0.3).words.startswith(f"{winner} is better than")
    assert not compared(metric, 0.3).words.startswith(f"{winner} is better than")


def test_tuning_that_lowers_an_error_bought_something():
    assert gain_in_words(compared("mae", -0.3)).startswith("tuning bought −0.300")
    assert gain_in_words(compared("mae", 0.3)).startswith("tuning cost +0.300")
    assert gain_in_words(compared("accuracy", 0.3)).startswith("tuning bought +30.0")


def epoch(number: int, value: float) -> EpochResult:
    return EpochResult(
        epoch=number, phase="train", step=number, train_loss=1.0, dev={"mse": value, "pearson": value},
        train_seconds=1.0, dev_seconds=1.0, learning_rate=0.1,
    )  # fmt: skip


@pytest.mark.parametrize(("metric", "best"), [("mse", 2), ("pearson", 1)])
def test_the_best_epoch_has_the_lowest_error_the_earliest_among_equals_and_is_never_nan(metric, best):
    epochs = [epoch(1, 0.5), epoch(2, 0.2), epoch(3, 0.2), epoch(4, float("nan"))]
    found = best_epoch(epochs, metric)
    assert found is not None
    assert found.epoch == best


@pytest.mark.parametrize(("metric", "best"), [("mse", 1), ("pearson", 0)])
def test_the_best_trial_and_the_final_that_is_kept_have_the_lowest_error(metric, best):
    trials = [
        SimpleNamespace(
            metric=metric, dev=dev, status="finished", epoch_count=2, number=number, seed=number, id=str(number)
        )
        for number, dev in enumerate((0.5, 0.2, 0.3))
    ]
    assert best_of(trials).number == best  # type: ignore[arg-type, union-attr]
    assert best_final(trials).number == best  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(("metric", "places"), [("mse", ("2", "1")), ("pearson", ("1", "2"))])
@pytest.mark.parametrize("is_scored", [True, False])
def test_the_first_place_of_a_task_in_mlflow_has_the_lowest_error(metric, places, is_scored):
    cells = [
        SimpleNamespace(
            header=SimpleNamespace(task="reviews", metric=metric, key=("minilm", mode, "reviews", "")),
            best=SimpleNamespace(dev=score), dev=None, default_test=None,
            test=spread([score, score]) if is_scored else None,
        )
        for mode, score in (("fine_tuning", 0.5), ("feature_extraction", 0.2))
    ]  # fmt: skip
    tags = place_tags(SimpleNamespace(cells=cells))
    assert [tags[cell.header.key][PLACE][0] for cell in cells] == list(places)
    starred = place_tags(SimpleNamespace(cells=cells), recommended=[cells[1].header.key])
    assert ["★" in starred[cell.header.key][PLACE] for cell in cells] == [False, True], "the recommended cell's"


def test_the_pareto_set_has_the_lower_errors():
    cheap, good, worse = Point(TUNED, 0.5, 1.0, "mse"), Point(FROZEN, 0.2, 3.0, "mse"), Point(TUNED, 0.4, 4.0, "mse")
    assert pareto([worse, good, cheap]) == [cheap, good]
    by_accuracy = [replace(point, metric="accuracy") for point in (worse, good, cheap)]
    assert pareto(by_accuracy) == [by_accuracy[2]]


def test_the_best_baseline_of_an_error_is_the_lowest_and_a_cell_has_to_be_below_it():
    known = Baseline(
        task="reviews", metric="mse", data_fingerprint="x", scores={"the mean score": 0.5, "linear": 0.3},
        train_examples=9,
    )  # fmt: skip
    assert known.best == ("linear", 0.3)

    def warned(mean: float) -> list[str]:
        cell = SimpleNamespace(dev=SimpleNamespace(mean=mean), header=SimpleNamespace(metric="mse"))
        return list(_against(cell, known))  # type: ignore[arg-type]

    assert warned(0.2) == []
    (line,) = warned(0.4)
    assert line.startswith("dev 0.400 is not below linear (0.300)")
