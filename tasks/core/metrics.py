"""Metrics: their type, the built-in ones, and `METRICS`, which finds them by name.

A new metric is a function and one entry of `BUILT_IN`; its name is `metric:` in a task file. NumPy and scikit-learn
are imported inside the functions, because the ledger's readers and the command line compute nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import Target
from meltpoint.tasks.core.task import Kind, Label, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Prediction = int | float | list[int]
Floats: TypeAlias = "NDArray[np.float64]"
Compute = Callable[[Task, Sequence[Label], Sequence[Any]], float]
"""(task, gold labels, predictions or probabilities) → value; both have the same length, not 0."""


@dataclass(frozen=True)
class Metric:
    """An evaluation metric.

    Attributes:
        name: its key in `METRICS`, in task files, MLflow and tables.
        targets: the targets of the kinds that it applies to (`TaskKind.target`).
        compute: (task, gold labels, predictions) → value.
        two_classes: True if it needs exactly two labels, of which the second is the positive one.
        lower_is_better: True for errors: the lowest value is the best.
        lowest: the least possible value; the highest is 1, or infinite for an error.
        of_probabilities: True if `compute` gets each example's probabilities of the labels instead of predictions.
        of_part: a part's name → `compute` of that part alone, for metrics with a form `NAME.PART` (span F1 of one type
            of span); None for the others.
    """

    name: str
    targets: tuple[Target, ...]
    compute: Compute
    two_classes: bool = False
    lower_is_better: bool = False
    lowest: float = 0.0
    of_probabilities: bool = False
    of_part: Callable[[str], Compute] | None = None

    def fits(self, task: Task) -> bool:
        """True if the metric applies to the task."""
        return self.serves(task.kind, len(task.labels))

    def serves(self, kind: Kind, labels: int) -> bool:
        """True if the metric applies to tasks of a kind with this many labels."""
        return kinds.get(kind).target in self.targets and (not self.two_classes or labels == 2)


def correlation(left: Floats, right: Floats) -> float:
    """Pearson's correlation; 0 if either side is constant.

    Args:
        left, right: (examples,) float64.
    """
    import numpy as np

    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    # Scaled before squaring, so that tiny values do not underflow and huge ones do not overflow.
    centred = [(side - side.mean()) / np.ptp(side) for side in (left, right)]
    lengths = [math.sqrt(float(side @ side)) for side in centred]
    return float(np.clip(float(centred[0] @ centred[1]) / (lengths[0] * lengths[1]), -1.0, 1.0))


def floats(values: Sequence[object]) -> Floats:
    """Values as an array of float64."""
    import numpy as np

    return np.asarray(values, dtype=np.float64)


def f1_of(gold: Floats, predicted: Floats, label: int) -> float:
    """F1 of one label; 0 without a hit."""
    import numpy as np

    hits = int(np.sum((gold == label) & (predicted == label)))
    return 2 * hits / int(np.sum(gold == label) + np.sum(predicted == label)) if hits else 0.0


Span = tuple[int, int, str]
"""(first word, one past the last word, type)."""


def spans(tags: Sequence[int], labels: Sequence[tuple[str, str]]) -> list[Span]:
    """The spans of one sentence; an I- tag that continues no span of its type starts one, as in conlleval.

    Args:
        tags: label ids.
        labels: (prefix, type) of each label id: ("B", "PER"), ("O", "").
    """
    result: list[Span] = []
    start, kind = -1, ""
    for position, tag in enumerate(tags):
        prefix, type_ = labels[tag]
        if start >= 0 and (prefix != "I" or type_ != kind):
            result.append((start, position, kind))
            start = -1
        if prefix != "O" and start < 0:
            start, kind = position, type_
    if start >= 0:
        result.append((start, len(tags), kind))
    return result


def split_labels(names: Sequence[str]) -> list[tuple[str, str]]:
    """(prefix, type) of each IOB2 label name."""
    return [("O", "") if name == "O" else (name[0], name[2:]) for name in names]


def span_scores(
    gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], names: Sequence[str], of_type: str | None = None
) -> dict[str, float]:
    """Exact-match precision, recall and f1, micro-averaged over the spans of all sentences; 0 if undefined.

    Args:
        gold, predicted: label ids, one sequence per sentence, of equal lengths.
        names: the labels' IOB2 names in id order.
        of_type: the type of span to count; None for all.
    """
    labels = split_labels(names)
    hits = in_gold = in_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = (
            [span for span in spans(tags, labels) if of_type in (None, span[2])] for tags in (gold_tags, predicted_tags)
        )
        in_gold += len(gold_spans)
        in_predicted += len(predicted_spans)
        hits += len(set(gold_spans).intersection(predicted_spans))
    return {
        "precision": hits / in_predicted if in_predicted else 0.0,
        "recall": hits / in_gold if in_gold else 0.0,
        "f1": 2 * hits / (in_predicted + in_gold) if hits else 0.0,
    }


def accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The share of examples with the right label."""
    return float((floats(gold) == floats(predicted)).mean())


def balanced_accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean recall of the labels that occur in gold (Brodersen et al. 2010), as in scikit-learn."""
    import numpy as np

    left, right = floats(gold), floats(predicted)
    return float(np.mean([np.mean(right[left == label] == label) for label in np.unique(left)]))


def subset_accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The share of examples with exactly the right labels, as in scikit-learn's `accuracy_score` on indicators."""
    return float((floats(gold) == floats(predicted)).all(axis=1).mean())


def word_accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Any]) -> float:
    """The share of words with the right tag."""
    sides: list[Sequence[Any]] = [gold, predicted]
    left, right = (floats([tag for tags in side for tag in tags]) for side in sides)
    return float((left == right).mean())


def f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """F1 of the second of two labels, the positive one: 2 · hits / (gold + predicted)."""
    return f1_of(floats(gold), floats(predicted), 1)


def macro_f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean F1 of the labels in gold or predictions, as in scikit-learn; for multi-label tasks, of all labels."""
    left, right = floats(gold), floats(predicted)
    if left.ndim == 2:
        return sum(f1_of(*columns, 1) for columns in zip(left.T, right.T, strict=True)) / len(task.labels)
    present = [label for label in range(len(task.labels)) if label in left or label in right]
    return sum(f1_of(left, right, label) for label in present) / len(present)


def averaged_f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], average: str) -> float:
    """Scikit-learn's `f1_score`: `micro` counts all decisions together, `weighted` weighs labels by gold examples."""
    import numpy as np
    from sklearn.metrics import f1_score  # takes a second to import

    return float(f1_score(np.array(gold), np.array(predicted), average=average, zero_division=0))


def matthews(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004); 0 if either side is constant."""
    import numpy as np

    classes = np.arange(len(task.labels))
    left = (floats(gold)[:, None] == classes).astype(np.float64)  # (examples, classes)
    right = (floats(predicted)[:, None] == classes).astype(np.float64)
    left -= left.mean(axis=0)
    right -= right.mean(axis=0)
    scale = math.sqrt(float(np.sum(left**2)) * float(np.sum(right**2)))
    return float(np.sum(left * right)) / scale if scale > 0 else 0.0


def quadratic_kappa(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Cohen's kappa with quadratic weights (Cohen 1968), the usual metric of essay and star scores.

    It is agreement beyond chance, weighted by the square of the distance between classes. If all gold labels and
    predictions are the same class, it is undefined, and 0 here.
    """
    from sklearn.metrics import cohen_kappa_score  # takes a second to import

    if len({*gold, *predicted}) < 2:
        return 0.0
    kappa = float(cohen_kappa_score(list(gold), list(predicted), weights="quadratic", labels=range(len(task.labels))))
    return 0.0 if math.isnan(kappa) else kappa


def mae(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean absolute error of scores, in their unit, or of ordered classes, in classes."""
    return float(abs(floats(gold) - floats(predicted)).mean())


def mse(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean squared error of scores, in the square of their unit, or of ordered classes."""
    return float(((floats(gold) - floats(predicted)) ** 2).mean())


def pearson(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Pearson's correlation of scores; 0 if either side is constant."""
    return correlation(floats(gold), floats(predicted))


def spearman(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Spearman's correlation: Pearson's of the ranks; ties get their mean rank; 0 if either side is constant."""
    from scipy.stats import rankdata  # takes a second to import

    return correlation(rankdata(floats(gold)), rankdata(floats(predicted)))


def average_precision(task: Task, gold: Sequence[Label], probabilities: Sequence[Any]) -> float:
    """The area under the precision-recall curve, without interpolation (`average_precision_score`).

    With two labels it is the area for the second one; otherwise it is the mean over the labels, each against the rest.
    A label without an example counts 0, as in scikit-learn.
    """
    import numpy as np
    from sklearn.metrics import average_precision_score  # takes a second to import

    columns, shares = positives(task, gold), floats(probabilities)
    areas = [
        float(average_precision_score(columns[:, label], shares[:, label])) if columns[:, label].any() else 0.0
        for label in ranked(task, gold)
    ]
    return float(np.mean(areas))


def roc_auc(task: Task, gold: Sequence[Label], probabilities: Sequence[Any]) -> float:
    """The area under the ROC curve (`roc_auc_score`): the chance that a positive example ranks above a negative one.

    With two labels it is the area for the second one; otherwise it is the mean over the labels, each against the rest.
    A label of every example, or of none, has no curve and does not count; the value is 0.5 if no label has a curve.
    """
    import numpy as np
    from sklearn.metrics import roc_auc_score  # takes a second to import

    columns, shares = positives(task, gold), floats(probabilities)
    areas = [
        float(roc_auc_score(columns[:, label], shares[:, label]))
        for label in ranked(task, gold)
        if 0 < columns[:, label].sum() < len(columns)
    ]
    return float(np.mean(areas)) if areas else 0.5


CALIBRATION, CALIBRATION_BINS = "calibration_error", 10


def calibration_error(task: Task, gold: Sequence[Label], probabilities: Sequence[Any]) -> float:
    """The expected calibration error with ten bins of equal width (Guo et al. 2017, equation 3).

    It is the mean distance between the probability of the predicted label and the share of correct predictions.
    """
    import numpy as np

    shares = floats(probabilities)
    sure, correct = shares.max(1), shares.argmax(1) == floats(gold)
    bins = np.minimum((sure * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=sure - correct, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(sure))


def ranked(task: Task, gold: Sequence[Label]) -> Sequence[int]:
    """The labels that are ranked: only the second of two labels that exclude each other."""
    labels = range(len(task.labels))
    return labels[1:] if len(labels) == 2 and floats(gold).ndim == 1 else labels


def positives(task: Task, gold: Sequence[Label]) -> Floats:
    """The labels of each example, (examples, labels) of 0 and 1."""
    import numpy as np

    values = floats(gold)
    return values if values.ndim == 2 else (values[:, None] == np.arange(len(task.labels))).astype(np.float64)


def of_spans(
    task: Task, gold: Sequence[Label], predicted: Sequence[Any], score: str, of_type: str | None = None
) -> float:
    """One of `span_scores`, of all spans or of one type, as `conlleval` and seqeval count them."""
    tags: Sequence[Any] = gold
    return span_scores(tags, predicted, task.labels, of_type)[score]


def _span_metric(score: str) -> Metric:
    return Metric(
        f"span_{score}", ("tags",), partial(of_spans, score=score),
        of_part=lambda kind: partial(of_spans, score=score, of_type=kind),
    )  # fmt: skip


BUILT_IN: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", ("label", "grade"), accuracy),
        # The mean over several labels, each against the rest.
        Metric("average_precision", ("label", "labels"), average_precision, of_probabilities=True),
        Metric("balanced_accuracy", ("label", "grade"), balanced_accuracy),
        Metric(CALIBRATION, ("label",), calibration_error, lower_is_better=True, of_probabilities=True),
        Metric("f1", ("label",), f1, two_classes=True),  # of the second label
        Metric("macro_f1", ("label", "labels", "grade"), macro_f1),
        Metric("mae", ("score", "grade"), mae, lower_is_better=True),
        Metric("matthews", ("label",), matthews, lowest=-1.0),
        Metric("micro_f1", ("label", "labels"), partial(averaged_f1, average="micro")),
        Metric("mse", ("score", "grade"), mse, lower_is_better=True),
        Metric("pearson", ("score", "grade"), pearson, lowest=-1.0),
        Metric("quadratic_kappa", ("grade",), quadratic_kappa, lowest=-1.0),
        Metric("roc_auc", ("label", "labels"), roc_auc, of_probabilities=True),
        _span_metric("f1"),
        _span_metric("precision"),
        _span_metric("recall"),
        Metric("spearman", ("score", "grade"), spearman, lowest=-1.0),
        Metric("subset_accuracy", ("labels",), subset_accuracy),
        Metric("weighted_f1", ("label", "labels"), partial(averaged_f1, average="weighted")),
        Metric("word_accuracy", ("tags", "classes"), word_accuracy),
    )
}


class _Metrics(Mapping[str, Metric]):
    """Name → metric; `NAME.PART` is a metric of one part."""

    def __getitem__(self, name: str) -> Metric:
        base, _, part = name.partition(".")
        metric = BUILT_IN[base]
        if not part:
            return metric
        if metric.of_part is None:
            raise KeyError(name)
        return replace(metric, name=name, compute=metric.of_part(part), of_part=None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(BUILT_IN))

    def __len__(self) -> int:
        return len(BUILT_IN)


METRICS: Mapping[str, Metric] = _Metrics()


@functools.cache  # called for each of a hundred thousand records
def is_lower_better(name: str) -> bool:
    """True for errors, also on a further test split (`twitter/mse`); False for a metric that this version lacks."""
    name = name.rpartition("/")[2]
    return name in METRICS and METRICS[name].lower_is_better


@functools.cache
def limits(name: str) -> tuple[float, float]:
    """The lowest and highest value of a metric; infinite for a metric that this version does not know."""
    name = name.rpartition("/")[2]
    if name not in METRICS:
        return (-math.inf, math.inf)
    return (METRICS[name].lowest, math.inf if is_lower_better(name) else 1.0)


def gain(name: str, value: float) -> float:
    """A value or a difference by a metric, with the sign that makes higher better."""
    return -value if is_lower_better(name) else value
