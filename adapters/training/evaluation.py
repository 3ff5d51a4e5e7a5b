"""Passes over a whole split without a step: its scores by a model, and a solver's fit of linear heads to it.

The fit is logistic or ridge regression by scikit-learn on the frozen states, standardised. A head's score layer gets
the solution in the units of its vectors, so that it predicts like any trained head. The objective is scikit-learn's:
C · Σ losses + ½ · ‖W‖², without a penalty on the intercept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import CachedStates, Inputs, evaluation_batches, inputs, stitch
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.layers.affine import Scores
from meltpoint.adapters.layers.bundle import lanes_of
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.training.graphs import Recorded
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import Example, Task


class FrozenStates(Protocol):
    """A cache of frozen encoders' hidden states (`features`)."""

    def open(
        self, pretrained: Encoder, layers: tuple[int, ...], split: EncodedSplit, task: Task, first_pieces: bool
    ) -> CachedStates | None:
        """A split's hidden states of some layers; None if the cache cannot hold them and the encoder must run."""


EVALUATION_BATCH = 64  # rows; sorted by length, so little of it is padding


@dataclass(frozen=True)
class Evaluation:
    """A scored split.

    Attributes:
        predictions: one per example, in the examples' order.
        probabilities: a distribution over the labels per example, for classification; otherwise empty.
        metrics: metric name → value; empty if the labels are hidden, or without examples.
    """

    predictions: list[Prediction]
    probabilities: list[list[float]]
    metrics: dict[str, float]


@torch.no_grad()
def evaluate(
    model: AdaptedModel, task: Task, split: EncodedSplit, examples: list[Example],
    device: torch.device, precision: Precision, read: Inputs | None = None, batch_rows: int = EVALUATION_BATCH,
    forward: Recorded[Tensor] | None = None,
) -> list[Evaluation]:  # fmt: skip
    """Predict every row of a split with each member of a bundle, rejoin windows, and score the labelled rows.

    The model is left in evaluation mode.

    Args:
        read: the split with its cached hidden states, or None to run the encoder.
        batch_rows: the maximum number of rows at a time.
        forward: the model, recorded; None calls it.

    Returns:
        One evaluation per member.
    """
    model.eval()
    predictions: list[dict[int, Prediction]] = [{} for _ in range(model.members)]
    shares: list[dict[int, list[float]]] = [{} for _ in range(model.members)]
    pad = model.encoder.tokenizer.pad_piece
    # A graph must not read a weight that autocast has cached outside of it: the cache ends with this block.
    is_cached, is_lowered = forward is None or not forward.records, precision == "bf16"
    with torch.autocast(device.type, torch.bfloat16, enabled=is_lowered, cache_enabled=is_cached):
        for batch in evaluation_batches(read or inputs(split), task.kind, pad, batch_rows):
            batch = batch.to(device)
            scores = model(batch) if forward is None else forward(batch, 0, model.encoder_is_frozen)
            for member, own in enumerate(scores.float()):
                predictions[member].update(zip(batch.rows, model.head.decode(own, batch, member), strict=True))
                distributions = model.head.probabilities(own, batch)
                if distributions is not None:
                    shares[member].update(zip(batch.rows, distributions, strict=True))
    return [_evaluation(task, split, examples, *of_rows) for of_rows in zip(predictions, shares, strict=True)]


def _evaluation(
    task: Task, split: EncodedSplit, examples: list[Example], predictions: dict[int, Prediction],
    probabilities: dict[int, list[float]],
) -> Evaluation:  # fmt: skip
    """One member's evaluation, from its predictions and probabilities by row."""
    ordered = stitch(split, [predictions[row] for row in range(len(split.rows))])
    gold = [example.label for example in examples]
    shares = [probabilities[row] for row in sorted(probabilities)]
    metrics = {} if not gold or any(label is None for label in gold) else score(task, gold, ordered, shares)
    return Evaluation(ordered, shares, metrics)


# The fit of linear heads.


MOST_STEPS = 1000
"""Steps of L-BFGS; standardised vectors need some tens."""
ROWS = 256
NOTHING = 1e-6
"""A state whose standard deviation is a smaller share of the largest one is left as it is. Pretrained layer norms have
weights of 1e-33; such a state, standardised, would get a weight of 1e31, and no later step of gradients could train."""
NEVER = -20.0
"""The score of a label that no training example has."""

Numbers = NDArray[np.float64]


@torch.no_grad()
def fit_heads(
    model: AdaptedModel, inputs: Inputs, task: Task, strengths: Sequence[float], device: torch.device,
    precision: Precision, tick: Callable[[], None] = lambda: None,
) -> list[float]:  # fmt: skip
    """Fit each member's score layer to a split; the model is left in evaluation mode.

    Args:
        strengths: C, one per member.
        tick: called before each batch and fit; may raise to end the work.

    Returns:
        Each member's mean loss on the split.
    """
    model.eval()
    head, scores = model.head, cast(Scores, model.head.scores)
    vectors: list[Numbers] = []
    labels: list[NDArray[Any]] = []
    kept: list[tuple[Tensor, Batch]] = []
    for batch in evaluation_batches(inputs, task.kind, model.encoder.tokenizer.pad_piece, ROWS):
        tick()
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            found = head.vectors(model.states(batch), batch).float()
        kept.append((found, replace(batch, states=None, source=None)))  # a split's states may exceed the memory
        assert batch.labels is not None, "training examples have labels"
        assert len(found) == 1, "members of a bundle read the same vectors"
        real = slice(None) if batch.word_mask is None else batch.word_mask
        labels.append(batch.labels[real].cpu().numpy())
        vectors.append(found[0][real].double().cpu().numpy())
    gold, own = np.concatenate(labels), np.concatenate(vectors)
    for member, strength in enumerate(strengths):
        tick()
        weights = head.options.weights[member]
        solution = _solve(task, own, gold, strength, None if weights is None else weights.tolist())
        for parameter, values in zip((scores.linear.weight, scores.linear.bias), solution, strict=True):
            parameter[member].copy_(torch.from_numpy(values))
    return _losses(model, kept)


def _losses(model: AdaptedModel, kept: Sequence[tuple[Tensor, Batch]]) -> list[float]:
    """Each member's mean loss over batches."""
    total = torch.zeros(model.members, dtype=torch.float64)
    terms = 0
    for vectors, batch in kept:
        count = len(batch) if batch.word_mask is None else int(lanes_of(batch.word_mask, 1).sum())
        total += model.head.loss(cast(Scores, model.head.scores)(vectors), batch).double().cpu() * count
        terms += count
    return (total / terms).tolist()


def _solve(
    task: Task, vectors: Numbers, gold: NDArray[Any], c: float, weights: list[float] | None
) -> tuple[Numbers, Numbers]:
    """The score layer of a member: weights, (outputs, size), and biases, (outputs,)."""
    center, scale = vectors.mean(0), vectors.std(0)
    scale[scale <= NOTHING * scale.max()] = 1.0
    x = (vectors - center) / scale
    target, outputs = task.of_kind.target, task.outputs
    if target == "score":
        assert task.label_range is not None, "a regression has a range"
        low, high = task.label_range
        from sklearn.linear_model import Ridge

        ridge = Ridge(alpha=1 / c).fit(x, (gold - (low + high) / 2) / ((high - low) / 2))
        w, b = ridge.coef_[None], np.array([ridge.intercept_])
    elif target == "labels":  # one yes or no for each label
        w, b = _stacked([_binary(x, gold[:, label], c) for label in range(outputs)])
    elif target == "grade":  # above class k, among examples of at least k: `objectives.Grade`
        w, b = _stacked([_binary(x[gold >= k], gold[gold >= k] > k, c) for k in range(outputs)])
    else:
        w, b = _classes(x, gold, outputs, c, weights)
    w = w / scale
    return w, b - w @ center


def _classes(
    x: Numbers, y: NDArray[Any], outputs: int, c: float, weights: list[float] | None
) -> tuple[Numbers, Numbers]:
    """Multinomial logistic regression; classes without an example are never predicted."""
    w, b = np.zeros((outputs, x.shape[1])), np.full(outputs, NEVER)
    present = np.unique(y)
    if len(present) == 1:
        b[present] = 0.0
        return w, b
    found = _logistic(x, y, c, None if weights is None else {int(label): weights[label] for label in present})
    coefficients, intercepts = found.coef_, found.intercept_
    if len(present) == 2:  # scikit-learn gives the difference of two classes' scores
        coefficients, intercepts = np.vstack([-coefficients, coefficients]) / 2, np.r_[-intercepts, intercepts] / 2
    w[present], b[present] = coefficients, intercepts
    return w, b


def _binary(x: Numbers, y: NDArray[Any], c: float) -> tuple[Numbers, Numbers]:
    """Binary logistic regression: weights, (1, size), and bias, (1,)."""
    if len(np.unique(y)) < 2:
        return np.zeros((1, x.shape[1])), np.array([-NEVER if len(y) and y[0] else NEVER])
    found = _logistic(x, y, c, None)
    return found.coef_, found.intercept_


def _logistic(x: Numbers, y: NDArray[Any], c: float, class_weight: dict[int, float] | None) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # Without much of a penalty and separable classes, there is no minimum to reach; the loss is then near 0.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=c, class_weight=class_weight, max_iter=MOST_STEPS).fit(x, y)


def _stacked(parts: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    return np.concatenate([w for w, _ in parts]), np.concatenate([b for _, b in parts])
