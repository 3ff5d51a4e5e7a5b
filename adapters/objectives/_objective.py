"""The base class of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from meltpoint.tasks.core.metric import Prediction

Limits = tuple[float, float] | None
"""The lowest and the highest score of a task, for regression; None for the others."""


class Objective(ABC):
    """The loss, the predictions and the probabilities of a target."""

    @abstractmethod
    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits) -> Tensor:
        """Mean loss over the rows (over the real words, for tags) of each member.

        It has to be a mean, whatever the rows: micro-batches are weighted by their examples or words.

        Args:
            scores: (T, batch, outputs), or (T, batch, words, outputs) for tags; float32.
            labels: (T, batch), (T, batch, labels) or (T, batch, words).
            mask: (T or 1, batch, words) bool, True on real words; None but for tags.
            limits: the lowest and the highest score, for regression.

        Returns:
            (T,), each member's own: their sum gives every member the gradient that it has alone.
        """

    @abstractmethod
    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits) -> list[Prediction]:
        """One member's predictions, one a row.

        Args:
            scores: (batch, outputs), or (batch, words, outputs) for tags.
            mask: (batch, words) bool; None but for tags.
            limits: the lowest and the highest score, for regression.
        """

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """One member's probability of each label a row, from (batch, outputs); None where there are none."""
        return None
