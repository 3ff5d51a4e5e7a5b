"""Scores as they are shown: fractions in points of 100, errors in the unit of the task's scores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.tasks.core.metrics import METRICS, is_lower_better
from meltpoint.tasks.core.scoring import axis_name, difference_text, scale, score_text, scores_text, unit_text


@pytest.mark.parametrize(
    ("metric", "mean", "deviation", "text"),
    [
        ("accuracy", 0.8512, 0.0034, "85.1 ± 0.3"), ("pearson", -0.25, None, "−25.0"),
        ("matthews", -0.0004, 0.0, "0.0 ± 0.0"),
        ("mse", 0.0213, 0.0012, "0.021 ± 0.001"), ("mae", 1.5, None, "1.500"), ("mse", 1234.56, 1.0, "1234.6 ± 1.000"),
        ("a metric of another version", 0.5, None, "50.0"),
    ],
)  # fmt: skip
def test_a_mean_over_seeds_is_shown_in_the_unit_of_its_metric(metric, mean, deviation, text):
    assert scores_text(mean, deviation, metric) == text


@pytest.mark.parametrize(
    ("metric", "difference", "text"),
    [
        ("accuracy", 0.012, "+1.2"), ("accuracy", -0.012, "−1.2"), ("accuracy", 0.0001, "0.0"),
        ("mse", 0.012, "+0.012"),
        ("mse", -0.0001, "0.000"), ("mae", -2.0, "−2.000"),
    ],
)  # fmt: skip
def test_a_difference_has_its_sign_unless_it_rounds_to_zero(metric, difference, text):
    assert difference_text(difference, metric) == text


@given(st.floats(-1, 1), st.sampled_from(sorted(METRICS)))
def test_what_is_shown_is_the_score_times_its_scale(score: float, metric: str):
    shown = float(score_text(score, metric).replace("−", "-"))
    assert shown == pytest.approx(scale(metric) * score, abs=0.051 if scale(metric) > 1 else 0.00051)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_axes_and_units_tell_points_of_100_from_errors(metric: str):
    assert ("×100" in axis_name(metric)) == (scale(metric) == 100.0) == (not is_lower_better(metric))
    assert ("100" in unit_text(metric)) == (not is_lower_better(metric))
