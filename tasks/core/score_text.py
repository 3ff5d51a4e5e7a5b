"""Scores as people read them: fractions and correlations in points of 100, errors in the unit of the task's scores."""

from __future__ import annotations

from meltpoint.tasks.core.metrics import is_lower_better

MINUS = "−"


def in_points(metric: str) -> bool:
    """True of a metric that is shown in points of 100; False of errors, which have the unit of a task's scores."""
    return not is_lower_better(metric)


def scale(metric: str) -> float:
    """The factor from a metric's scores to what is shown of them."""
    return 100.0 if in_points(metric) else 1.0


def axis_name(metric: str) -> str:
    """A metric's name on an axis: `accuracy ×100`, `mse`."""
    return f"{metric} ×100" if in_points(metric) else metric


def score_text(score: float, metric: str) -> str:
    """`85.1`, or `0.213` of an error; with a typographic minus, and no sign where it rounds to zero."""
    text = _digits(score, metric)
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", MINUS)


def difference_text(difference: float, metric: str) -> str:
    """`+1.2`, or `−0.013` of an error: a score's difference, with its sign."""
    text = score_text(difference, metric)
    return f"+{text}" if difference > 0 and text.strip("0.") else text


def scores_text(mean: float, deviation: float | None, metric: str) -> str:
    """`85.1 ± 0.3`: a mean over seeds; without the deviation of a single one."""
    return score_text(mean, metric) + ("" if deviation is None else f" ± {_digits(deviation, metric)}")


def unit_text(metric: str) -> str:
    """The unit of a metric's shown scores, in words."""
    return "in points of 100" if in_points(metric) else "in the unit of the task's scores"


def _digits(value: float, metric: str) -> str:
    if in_points(metric):
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
