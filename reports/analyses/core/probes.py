"""Diagnostic classifiers (Adi et al. 2017): linear models on one layer's mean states.

P1 specifies only logistic regression, and linear regression for STS-B. Our choices: states are scaled to mean 0 and
variance 1 on train; the logistic regression has scikit-learn's default penalty (L2, C = 1) and runs to convergence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from meltpoint.reports.analyses.core.states import States
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import Label, Task

ITERATIONS = 2000


def probe(task: Task, train: States, train_labels: Sequence[Label], dev: States, dev_labels: Sequence[Label]) -> float:
    """Fit a linear model to train and return the task's metric on dev.

    Args:
        train, dev: (examples, dim) of one layer.

    Raises:
        ValueError: all training examples have one label.
    """
    if len(set(train_labels)) < 2:
        raise ValueError(f"the training examples of {task.name} all have one label; take more: --max-train-examples.")
    # scikit-learn takes a second to import.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = LinearRegression() if task.of_kind.is_regression else LogisticRegression(max_iter=ITERATIONS)
    model = make_pipeline(StandardScaler(), linear)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # scores of models that have not converged are meaningless
        model.fit(train.astype(np.float64), list(train_labels))
    return score(task, list(dev_labels), _plain(model.predict(dev.astype(np.float64)), task))[task.metric]


def constant(task: Task, train_labels: Sequence[Label], dev_labels: Sequence[Label]) -> float:
    """The task's metric for always predicting train's most frequent label, or its mean: a baseline without states."""
    labels = np.array(train_labels, dtype=np.float64)
    if task.of_kind.is_regression:
        guess: Any = float(labels.mean())
    else:
        guess = int(np.bincount(labels.astype(int)).argmax())
    return score(task, list(dev_labels), [guess] * len(dev_labels))[task.metric]


def _plain(predicted: Any, task: Task) -> list[float] | list[int]:
    """Predictions as Python numbers."""
    return [float(p) for p in predicted] if task.of_kind.is_regression else [int(p) for p in predicted]
