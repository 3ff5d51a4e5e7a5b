"""Formatting: one decimal, no minus zero, two units of time, short settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import difference_over_seeds, duration, marks, percent, searched_names, setting_text
from meltpoint.sweeps.results.summary import CellSummary

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.8512, "85.1"), (1.0, "100.0"), (-0.0004, "0.0"), (-0.25, "−25.0"), (0.0, "0.0")]
)
def test_a_fraction_is_shown_in_percent_points(fraction: float, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [(0.012, 0.005, "+1.2 ± 0.5"), (-0.012, None, "−1.2"), (0.0001, 0.02, "0.0 ± 2.0"), (-0.0001, None, "0.0")],
)
def test_a_difference_has_a_sign_unless_it_rounds_to_zero(mean: float, error: float | None, text: str) -> None:
    assert difference_over_seeds(mean, error, "accuracy") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"), (45.4, "45 s"), (59.6, "1 min"), (90, "1 min 30 s"), (3599.7, "1 h"), (4800, "1 h 20 min"),
        (7199, "2 h"), (86399, "1 d"), (97200, "1 d 3 h"),
    ],
)  # fmt: skip
def test_a_time_is_told_in_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e7))
def test_a_time_in_words_is_the_time_to_within_half_of_its_smaller_unit(seconds: float) -> None:
    words = duration(seconds).split()
    total = sum(int(number) * UNITS[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    smaller = {"s": 1, "min": 1, "h": 60, "d": 3600}[words[1]]
    assert abs(total - seconds) <= smaller / 2 + 0.5
    assert all(int(number) < 60 for number in words[2::2])


def test_only_what_has_more_than_one_value_counts_as_searched(make_cell: Callable[..., CellSummary]) -> None:
    names = searched_names(make_cell().header)
    assert names == ["learning_rate", "dropout", "epochs", "slanted_triangular.ratio"]


def test_a_setting_is_short_and_leaves_out_what_is_not_active() -> None:
    setting: dict[str, Value] = {
        "learning_rate": 4.251e-5,
        "discriminative_rates": False,
        "epochs": 3,
        "schedule": "constant",
    }
    names = ["learning_rate", "epochs", "gradual_unfreezing", "discriminative_rates", "schedule"]
    assert (
        setting_text(setting, names) == "learning_rate 4.25e-5, epochs 3, discriminative_rates false, schedule constant"
    )


def test_footnote_marks_are_superscript() -> None:
    assert marks([1, 12]) == "¹,¹²"
    assert marks([]) == ""
