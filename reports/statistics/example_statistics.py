"""Scores of many resamples at once: sums of per-example statistics in place of the metric on each resample.

A resample of N examples with replacement is N counts. Most metrics are a function of sums over the examples (right
answers; hits, gold and predicted of each label; spans; moments), so the scores of all resamples are one product,
counts @ statistics, and a function of its columns. Spearman's needs the ranks within each resample; they follow from
the counts in the order of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.statistics.hierarchical_bootstrap import Runs, Scorer, average_precision, ranker, roc_auc
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core.metrics import CALIBRATION, CALIBRATION_BINS, Floats, spans, split_labels

CONSTANT = 1e-13
"""A variance below this share of the mean square is rounding: the values of the resample are all equal."""

RANKED_AT_ONCE = 2**16
"""Counts whose ranks are computed at a time: a block that fits the CPU cache takes a third less time."""


def as_floats(values: NDArray[np.generic]) -> Floats:
    """Values as float64."""
    return values.astype(np.float64)


def scorer(metric: str, runs: Runs) -> Scorer:
    """The scores of resamples of the examples, for several runs on the same examples.

    Args:
        metric: a key of `tasks.core.metrics.METRICS` that applies to the runs' kind of task.
        runs: predictions on the same examples in the same order; at least one.
    """
    name, _, part = metric.partition(".")
    if part:
        return _span_scorer(SPAN_RATIOS[name], part)(runs)  # of one type of span
    return SCORERS[name](runs)


def _mean(of_run: Callable[[ScoredExamples], NDArray[np.generic]]) -> Callable[[Runs], Scorer]:
    """The mean over the examples of a figure of each, such as whether it is right."""

    def build(runs: Runs) -> Scorer:
        figures = np.stack([of_run(run) for run in runs], axis=1).astype(np.float64)
        return lambda counts: counts @ figures / counts.sum(axis=1, keepdims=True)

    return build


def _errors(run: ScoredExamples) -> Floats:
    return as_floats(run.gold) - run.predicted


def _by_label(
    of_sums: Callable[[Floats, Floats, Floats], Floats], labels: Sequence[int] | None = None
) -> Callable[[Runs], Scorer]:
    """A metric of hits, gold and predicted of each label, each (resamples, runs, labels); None for all labels."""

    def build(runs: Runs) -> Scorer:
        sums = _label_sums(runs, range(len(runs[0].labels)) if labels is None else labels)
        return lambda counts: of_sums(*sums(counts))

    return build


def _calibration_error(runs: Runs) -> Scorer:
    """The sum over bins of |Σ (probability − correct)|, over the number of examples."""
    gaps = []
    for run in runs:
        assert run.probabilities is not None, "the metric needs probabilities"
        sure, correct = run.probabilities.max(1), run.probabilities.argmax(1) == run.gold
        bins = np.minimum((sure * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        gaps.append(np.eye(CALIBRATION_BINS)[bins] * (sure - correct)[:, None])  # (examples, bins)

    def score(counts: Floats) -> Floats:
        sums = np.stack([np.abs(counts @ own).sum(axis=1) for own in gaps], axis=1)
        return as_floats(sums / counts.sum(axis=1, keepdims=True))

    return score


def _macro_f1(runs: Runs) -> Scorer:
    sums = _label_sums(runs, range(len(runs[0].labels)))

    def score(counts: Floats) -> Floats:
        hits, gold, predicted = sums(counts)
        present = (gold + predicted > 0).sum(axis=2) if runs[0].gold.ndim == 1 else len(runs[0].labels)
        mean: Floats = _f1_of(hits, gold, predicted).sum(axis=2) / present
        return mean

    return score


def _matthews(runs: Runs) -> Scorer:
    """Gorodkin 2004 from the sums: the covariance of indicators is Σ hits / N − Σ gold · predicted / N²."""
    sums = _label_sums(runs, range(len(runs[0].labels)))

    def score(counts: Floats) -> Floats:
        size = counts.sum(axis=1)[:, None]
        hits, gold, predicted = sums(counts)
        joint = size * hits.sum(axis=2) - (gold * predicted).sum(axis=2)
        scale = (size**2 - (gold**2).sum(axis=2)) * (size**2 - (predicted**2).sum(axis=2))
        return _ratio(joint, np.sqrt(scale))

    return score


def _label_sums(runs: Runs, labels: Sequence[int]) -> Callable[[Floats], tuple[Floats, Floats, Floats]]:
    """Counts → hits, gold and predicted of each run and label, each (resamples, runs, labels)."""
    gold = np.stack([_indicators(run.gold, labels) for run in runs], axis=1)  # (examples, runs, labels)
    predicted = np.stack([_indicators(run.predicted, labels) for run in runs], axis=1)
    return _summed(gold & predicted, gold, predicted)


def _indicators(values: NDArray[np.generic], labels: Sequence[int]) -> NDArray[np.bool_]:
    """Indicators of these labels for each example, (examples, labels)."""
    of_label = values[:, list(labels)] == 1 if values.ndim == 2 else values[:, None] == np.array(labels)
    return np.asarray(of_label, dtype=np.bool_)


def _quadratic_kappa(runs: Runs) -> Scorer:
    """1 − Σ w · observed / Σ w · expected, where w is the squared distance of the classes (Cohen 1968)."""
    moments = _moments(runs)

    def score(counts: Floats) -> Floats:
        x, y, xx, yy, xy = moments(counts)
        observed = xx + yy - 2 * xy  # the mean of (x − y)²
        expected = xx + yy - 2 * x * y
        # Class ids are whole numbers, so a value other than 0 is at least 1 / N².
        return np.where(expected > CONSTANT, 1 - _ratio(observed, expected), 0.0)

    return score


def _summed(*statistics: NDArray[np.generic]) -> Callable[[Floats], tuple[Floats, Floats, Floats]]:
    columns = [one.reshape(len(one), -1) for one in statistics]
    table = np.concatenate(columns, axis=1).astype(np.float64)  # (examples, columns)

    def sums(counts: Floats) -> tuple[Floats, Floats, Floats]:
        first, second, third = np.split(counts @ table, 3, axis=1)
        shape = (len(counts), *statistics[0].shape[1:])
        return first.reshape(shape), second.reshape(shape), third.reshape(shape)

    return sums


def _f1_of(hits: Floats, gold: Floats, predicted: Floats) -> Floats:
    return _ratio(2 * hits, gold + predicted)


def _ratio(above: Floats, below: Floats) -> Floats:
    """A quotient that is 0 where it is undefined."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _span_scorer(
    of_sums: Callable[[Floats, Floats, Floats], Floats], of_type: str | None = None
) -> Callable[[Runs], Scorer]:
    def build(runs: Runs) -> Scorer:
        found = [_span_counts(run, of_type) for run in runs]
        hits, gold, predicted = (np.stack(side, axis=1) for side in zip(*found, strict=True))
        sums = _summed(hits, gold, predicted)
        return lambda counts: of_sums(*sums(counts))

    return build


def _span_counts(
    run: ScoredExamples, of_type: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of correct, gold and predicted spans of each sentence, of one type or of all."""
    labels = split_labels(run.labels)
    bounds = np.cumsum(run.lengths)[:-1]
    found = []
    for gold_tags, tags in zip(np.split(run.gold, bounds), np.split(run.predicted, bounds), strict=True):
        gold, predicted = (
            [span for span in spans(side.tolist(), labels) if of_type in (None, span[2])] for side in (gold_tags, tags)
        )
        found.append((len(set(gold).intersection(predicted)), len(gold), len(predicted)))
    hits, in_gold, in_predicted = np.array(found, dtype=np.int64).T
    return hits, in_gold, in_predicted


def _word_accuracy(runs: Runs) -> Scorer:
    ends, words = np.cumsum(runs[0].lengths), as_floats(runs[0].lengths)
    right = [np.concatenate([[0], np.cumsum(run.gold == run.predicted)]) for run in runs]
    hits = as_floats(np.stack([sums[ends] - sums[ends - runs[0].lengths] for sums in right], axis=1))
    return lambda counts: _ratio(counts @ hits, np.broadcast_to((counts @ words)[:, None], (len(counts), len(runs))))


def _pearson(runs: Runs) -> Scorer:
    moments = _moments(runs, _centred)

    def score(counts: Floats) -> Floats:
        x, y, xx, yy, xy = moments(counts)
        return _correlation(xy - x * y, _variance(xx, x), _variance(yy, y))

    return score


def _moments(runs: Runs, of_values: Callable[[NDArray[np.generic]], Floats] = as_floats) -> Callable[[Floats], Floats]:
    """Counts → means of x, y, x², y² and x · y, gold being x and predictions y, each (resamples, runs)."""
    pairs = [(of_values(run.gold), of_values(run.predicted)) for run in runs]
    table = np.stack([column for x, y in pairs for column in (x, y, x * x, y * y, x * y)], axis=1)

    def means(counts: Floats) -> Floats:
        found = (counts @ table / counts.sum(axis=1, keepdims=True)).reshape(len(counts), len(runs), 5)
        return np.moveaxis(found, 2, 0)

    return means


def _centred(values: NDArray[np.generic]) -> Floats:
    """Values with mean 0 and range 1: a correlation does not change, and squares neither overflow nor vanish."""
    floats = values.astype(np.float64)
    width = np.ptp(floats)
    return np.zeros_like(floats) if width == 0 else (floats - floats.mean()) / width


def _variance(mean_square: Floats, mean: Floats) -> Floats:
    variance = mean_square - mean**2
    return np.where(variance > CONSTANT * mean_square, variance, 0.0)


def _correlation(covariance: Floats, *variances: Floats) -> Floats:
    return np.clip(_ratio(covariance, np.sqrt(variances[0] * variances[1])), -1.0, 1.0)


def _spearman(runs: Runs) -> Scorer:
    def score(counts: Floats) -> Floats:
        blocks = math.ceil(counts.size / RANKED_AT_ONCE)
        return np.concatenate([of_block(block) for block in np.array_split(counts, min(blocks, len(counts)))])

    def of_block(counts: Floats) -> Floats:
        size = counts.sum(axis=1)
        gold = of_gold(counts)
        weighted = counts * gold
        gold_variance = _mean_product(weighted, gold, size)
        columns = []
        for ranks in of_runs:
            own = ranks(counts)
            variance = _mean_product(counts * own, own, size)
            columns.append(_correlation(_mean_product(weighted, own, size), gold_variance, variance))
        return np.stack(columns, axis=1)

    of_gold, of_runs = ranker(runs[0].gold), [ranker(run.predicted) for run in runs]
    return score


def _mean_product(left: Floats, right: Floats, size: Floats) -> Floats:
    product: Floats = np.einsum("re,re->r", left, right) / size
    return product


SPAN_RATIOS: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "span_f1": _f1_of,
    "span_precision": lambda hits, gold, predicted: _ratio(hits, predicted),
    "span_recall": lambda hits, gold, predicted: _ratio(hits, gold),
}
SCORERS: Mapping[str, Callable[[Runs], Scorer]] = {
    "accuracy": _mean(lambda run: run.gold == run.predicted),
    "average_precision": average_precision,
    CALIBRATION: _calibration_error,
    "balanced_accuracy": _by_label(lambda hits, gold, _: _ratio(hits, gold).sum(axis=2) / (gold > 0).sum(axis=2)),
    "f1": _by_label(lambda *sums: _f1_of(*sums)[..., 0], labels=(1,)),
    "macro_f1": _macro_f1,
    "mae": _mean(lambda run: np.abs(_errors(run))),
    "matthews": _matthews,
    "micro_f1": _by_label(lambda *sums: _f1_of(*(one.sum(axis=2) for one in sums))),
    "mse": _mean(lambda run: np.square(_errors(run))),
    "pearson": _pearson,
    "roc_auc": roc_auc,
    "quadratic_kappa": _quadratic_kappa,
    "spearman": _spearman,
    "subset_accuracy": _mean(lambda run: (run.gold == run.predicted).all(axis=1)),
    "weighted_f1": _by_label(
        lambda hits, gold, predicted: _ratio((_f1_of(hits, gold, predicted) * gold).sum(axis=2), gold.sum(axis=2))
    ),
    "word_accuracy": _word_accuracy,
    **{name: _span_scorer(ratio) for name, ratio in SPAN_RATIOS.items()},
}
"""Metric → its scores of resamples."""
