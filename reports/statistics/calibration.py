"""Calibration of probabilities: binned calibration error, Brier score, negative log-likelihood, temperature scaling.

Everything is computed from the probability of the predicted label (its *confidence*) and whether the prediction is
right, as in Guo et al. 2017 ("On calibration of modern neural networks", section 2), but Brier score and likelihood,
which use the whole distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meltpoint.sweeps.ledger.predictions import Predictions

Binning = Literal["mass", "width"]
"""Bins of equally many examples, or of equal width on [0, 1]."""

BINS = 15
"""Guo et al. 2017, table 1."""
SMALLEST = 5e-7
"""Stored probabilities have six digits: a stored 0 stands for less than this, so that it is replaced by it."""
COLDEST, HOTTEST = 0.05, 20.0
"""Limits of a fitted temperature. Where every dev example is right, the likelihood has no best temperature above 0."""
RESAMPLES = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Probabilities of a split's examples with their labels.

    Attributes:
        probabilities: (examples, labels), each row sums to 1, none is 0.
        gold: label ids, (examples,).
        predicted: label ids, (examples,); temperature scaling does not change them.
    """

    probabilities: Floats
    gold: NDArray[np.int64]
    predicted: NDArray[np.int64]

    @property
    def confidence(self) -> Floats:
        """The probability of each predicted label, (examples,)."""
        chosen: Floats = self.probabilities[np.arange(len(self.predicted)), self.predicted]
        return chosen

    @property
    def is_right(self) -> Floats:
        """1 where the prediction is right, else 0, (examples,)."""
        right: Floats = np.equal(self.gold, self.predicted).astype(np.float64)
        return right


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram.

    Attributes:
        low, high: of its confidences.
        confidence, accuracy: means over its examples.
        count: the number of its examples, at least 1.
    """

    low: float
    high: float
    confidence: float
    accuracy: float
    count: int


def scored(predictions: Predictions) -> Scored:
    """Stored predictions, with zeros replaced by the largest number that is stored as 0, and rows summing to 1."""
    probabilities = np.clip(predictions.probabilities, SMALLEST, None)
    return Scored(probabilities / probabilities.sum(axis=1, keepdims=True), predictions.gold, predictions.predicted)


def calibration_error(confidence: Floats, is_right: Floats, binning: Binning = "mass", bins: int = BINS) -> float:
    """The expected calibration error: mean over the examples of |accuracy − confidence| of their bin.

    It is biased upwards, most with few examples a bin: of a calibrated model it is not 0 (`calibrated_errors`). Bins
    of equal mass have less bias than those of equal width (Roelofs et al. 2022). Either hides what differs within a
    bin (Kumar, Liang & Ma 2019).

    Args:
        confidence: (examples,).
        is_right: (examples,), 0 or 1.
        bins: the number of bins; equal confidences share one, so that there may be fewer.
    """
    return _error(_places(confidence, binning, bins), is_right - confidence)


def _error(places: NDArray[np.int64], differences: Floats) -> float:
    return float(np.abs(np.bincount(places, weights=differences)).sum() / len(differences))


def reliability(confidence: Floats, is_right: Floats, binning: Binning = "mass", bins: int = BINS) -> list[Bin]:
    """The bins of a reliability diagram that have examples, by confidence."""
    places = _places(confidence, binning, bins)
    members = [places == place for place in np.unique(places)]
    return [
        Bin(
            float(confidence[own].min()), float(confidence[own].max()), float(confidence[own].mean()),
            float(is_right[own].mean()), int(own.sum()),
        ) for own in members
    ]  # fmt: skip


def _places(confidence: Floats, binning: Binning, bins: int) -> NDArray[np.int64]:
    """Each example's bin, with the edges of scikit-learn's `calibration_curve`."""
    shares = np.linspace(0.0, 1.0, bins + 1)
    edges = np.quantile(confidence, shares) if binning == "mass" else shares
    places: NDArray[np.int64] = np.searchsorted(edges[1:-1], confidence)
    return places


def mean_error(seeds: Sequence[Scored], binning: Binning = "mass") -> float:
    """The mean over seeds of the calibration error."""
    return mean_of(seeds, lambda one: calibration_error(one.confidence, one.is_right, binning))


def calibrated_errors(seeds: Sequence[Scored], rng: np.random.Generator, draws: int = RESAMPLES) -> Floats:
    """The mean errors, by bins of equal mass, that calibrated models with the same confidences would have, (draws,).

    Whether a prediction is right is drawn by its confidence, from one uniform number an example for all seeds
    (consistency resampling: Bröcker & Smith 2007; Vaicenavicius et al. 2019).
    """
    binned = [(one.confidence, _places(one.confidence, "mass", BINS)) for one in seeds]
    errors = np.empty(draws)
    for draw in range(draws):
        uniform = rng.random(len(seeds[0].gold))
        errors[draw] = np.mean([_error(places, (uniform < own) - own) for own, places in binned])
    return errors


def error_interval(seeds: Sequence[Scored], rng: np.random.Generator, calibrated: Floats) -> tuple[float, float]:
    """The 95 % bootstrap interval, over examples, of the mean over seeds of the error by bins of equal mass.

    All seeds have the same resampled examples. A resample's error is biased upwards once more, so that the percentile
    interval lies too high, and the basic one ends too low: this one goes from the basic one's low end to the
    percentile's high end, estimate ± (97.5 % quantile − estimate). It begins at 0 where the error is no larger than
    95 % of those of calibrated models. `tests/reports/test_calibration.py` has its coverage.

    Args:
        calibrated: of `calibrated_errors`.
    """
    from scipy.stats import bootstrap  # takes a second to import

    pairs = [(one.confidence, one.is_right) for one in seeds]

    def resampled(places: NDArray[np.int64]) -> float:
        return sum(calibration_error(own[places], is_right[places]) for own, is_right in pairs) / len(pairs)

    places = np.arange(len(seeds[0].gold))
    result = bootstrap((places,), resampled, n_resamples=RESAMPLES, vectorized=False, method="percentile", rng=rng)
    estimate, high = mean_error(seeds), float(result.confidence_interval.high)
    is_calibrated = estimate <= np.quantile(calibrated, 0.95)
    return 0.0 if is_calibrated else max(0.0, 2 * estimate - high), high


def brier_score(one: Scored) -> float:
    """The mean over examples of the squared distance between distribution and label, summed over labels (Brier 1950).

    It lies between 0 and 2.
    """
    distances = one.probabilities.copy()
    distances[np.arange(len(one.gold)), one.gold] -= 1.0
    return float((distances**2).sum(axis=1).mean())


def negative_log_likelihood(one: Scored) -> float:
    """The mean over examples of −log of the gold label's probability, in nats."""
    return float(-np.log(one.probabilities[np.arange(len(one.gold)), one.gold]).mean())


def cooled(one: Scored, temperature: float) -> Scored:
    """The predictions with their logits divided by a temperature (Guo et al. 2017, section 4.2)."""
    logits = np.log(one.probabilities) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Scored(powers / powers.sum(axis=1, keepdims=True), one.gold, one.predicted)


def fitted_temperature(dev: Scored) -> float:
    """The temperature with the highest likelihood on dev, from `COLDEST` to `HOTTEST`; above 1 for overconfidence."""
    from scipy.optimize import minimize_scalar  # takes a second to import

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(cooled(dev, math.exp(log_temperature)))

    limits = (math.log(COLDEST), math.log(HOTTEST))
    return math.exp(float(minimize_scalar(loss, bounds=limits, method="bounded", options={"xatol": 1e-6}).x))


def is_at_limit(temperature: float) -> bool:
    """True if a fitted temperature is as good as one of its limits, so that dev does not determine it."""
    return not 1.01 * COLDEST < temperature < HOTTEST / 1.01


def mean_of(seeds: Sequence[Scored], measure: Callable[[Scored], float]) -> float:
    """The mean of a measure over seeds."""
    return sum(map(measure, seeds)) / len(seeds)
