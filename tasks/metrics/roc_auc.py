"""The area under the ROC curve: the chance that a positive example is ranked above a negative one.

Of two labels it is that of the second one; of more, and of several labels an example, the mean over the labels of each
against the rest. A label that all examples have, or none, has no curve and does not count; where no label has one, the
value is 0.5, as of a ranking that says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meltpoint.tasks.core.metric import Floats, Metric, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], probabilities: Sequence[Any]) -> float:
    """The mean over the labels, by scikit-learn's `roc_auc_score` of each."""
    import numpy as np
    from sklearn.metrics import roc_auc_score  # takes a second to import

    columns = positives(task, gold)
    shares = floats(probabilities)
    chosen = ranked(task, gold)
    areas = [
        float(roc_auc_score(columns[:, label], shares[:, label]))
        for label in chosen
        if 0 < columns[:, label].sum() < len(columns)
    ]
    return float(np.mean(areas)) if areas else 0.5


def ranked(task: Task, gold: Sequence[Label]) -> Sequence[int]:
    """The labels that are ranked: of two that exclude each other, the second alone."""
    labels = range(len(task.labels))
    return labels[1:] if len(labels) == 2 and floats(gold).ndim == 1 else labels


def positives(task: Task, gold: Sequence[Label]) -> Floats:
    """The labels of each example, (examples, labels) of 0 and 1."""
    import numpy as np

    values = floats(gold)
    return values if values.ndim == 2 else (values[:, None] == np.arange(len(task.labels))).astype(np.float64)


METRIC = Metric(
    "roc_auc", ("label", "labels"), compute,
    "area under the ROC curve; of several labels the mean, each against the rest",
    of_probabilities=True,
)  # fmt: skip
