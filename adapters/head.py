"""What a head is: from the encoder's states to scores, a loss, and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.parameters import Parameter, Setting
from meltpoint.tasks.core.task import KINDS, Kind

Prediction = int | float | list[int]
"""A class id, a score in the task's range, or one label id a word of the row."""


@dataclass(frozen=True)
class HeadShape:
    """What a head is built for.

    Attributes:
        kind: the task's kind.
        dim: size of a state of the encoder.
        outputs: label count, or 1 for regression.
        label_range: lowest and highest score, for regression only.
    """

    kind: Kind
    dim: int
    outputs: int
    label_range: tuple[float, float] | None = None


class Head(nn.Module, ABC):
    """A task model on top of an encoder.

    The base gives the loss and the predictions of a softmax or a single regressed score; a CRF overrides them.

    Attributes:
        kinds: the kinds of task that it can serve.
        hyperparameters: its own, beside the common ones; dotted by the head's (family) name.
        summary: one line for `meltpoint list heads`.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    hyperparameters: ClassVar[tuple[Parameter, ...]] = ()
    summary: ClassVar[str] = ""

    def __init__(self, shape: HeadShape, setting: Setting) -> None:
        super().__init__()
        self.shape = shape

    @abstractmethod
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from states.

        Args:
            states: (batch, pieces, dim), one layer or a mix of all.
            batch: the batch that the states belong to.

        Returns:
            (batch, outputs), or (batch, words, outputs) for sequence labelling; float32.
        """

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the batch's examples (or real words): cross-entropy, or the squared error of the scaled score.

        Regression learns a score scaled to [-1, 1], so that a fresh head predicts the middle of the range and one
        learning rate suits classification and regression alike.
        """
        labels = batch.labels
        assert labels is not None, "the loss needs labels"
        if self.shape.label_range is not None:
            low, high = self.shape.label_range
            target = (labels - (low + high) / 2) / ((high - low) / 2)
            return functional.mse_loss(scores.squeeze(-1), target)
        if batch.word_mask is not None:
            return functional.cross_entropy(scores[batch.word_mask], labels[batch.word_mask])
        return functional.cross_entropy(scores, labels)

    def decode(self, scores: Tensor, batch: Batch) -> list[Prediction]:
        """One prediction a row, in the batch's order."""
        if self.shape.label_range is not None:
            low, high = self.shape.label_range
            return list((scores.squeeze(-1).double() * ((high - low) / 2) + (low + high) / 2).tolist())
        best = scores.argmax(-1)
        if batch.word_mask is None:
            return list(best.tolist())
        return [row[mask].tolist() for row, mask in zip(best, batch.word_mask, strict=True)]

    def probabilities(self, scores: Tensor, batch: Batch) -> list[list[float]] | None:
        """One distribution over the labels a row, for classification; None for the other kinds."""
        if self.shape.label_range is not None or batch.word_mask is not None:
            return None
        rows: list[list[float]] = torch.softmax(scores.double(), -1).tolist()
        return rows
