"""Objectives: the loss, the predictions and the probabilities of scores, for each target of a kind of task.

Each target (`tasks.core.kinds.Target`) has one file, which exports `OBJECTIVE`. An objective has no weights: heads
compute the scores, and may replace its loss with their own (a CRF's).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.metrics import Prediction

__all__ = ["Objective", "Options", "of"]


Limits = tuple[float, float] | None
"""The lowest and the highest score of a task, for regression; None for the others."""


@dataclass(frozen=True)
class Options:
    """The members' hyperparameters that affect loss and predictions.

    Attributes:
        gammas: gamma of the focal loss, one per member; 0 is cross-entropy.
        thresholds: the lowest probability at which a label is predicted, one per member.
        weights: class weights in the loss, (labels,) float32 per member, or None if all count equally.
    """

    gammas: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    weights: tuple[Tensor | None, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if every member has the loss without weights and focal gamma."""
        return not any(self.gammas) and all(weights is None for weights in self.weights)

    def gamma(self, member: int) -> float:
        """A member's gamma; 0 if none is given."""
        return self.gammas[member] if self.gammas else 0.0

    def kept(self, members: Sequence[int]) -> Options:
        """The options of some members, in this order."""
        return Options(
            tuple(self.gammas[member] for member in members),
            tuple(self.thresholds[member] for member in members),
            tuple(self.weights[member] for member in members),
        )


PLAIN = Options()


def by_member(loss: Callable[[Tensor, Tensor, int], Tensor], scores: Tensor, labels: Tensor) -> Tensor:
    """The members' losses, (T,), computed one member after another.

    Vectorised functions such as sigmoid round the last elements of a tensor differently from the others, so a member's
    last bits, and its gradient's, would depend on its neighbours.

    Args:
        loss: (scores (1, …), labels (1, …), member) → (1,).
    """
    members = range(len(scores))
    return torch.cat([loss(scores[m : m + 1], labels[m : m + 1], m) for m in members])


class Objective(ABC):
    """The loss, the predictions and the probabilities of a target."""

    @abstractmethod
    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Mean loss over the rows (over the real words, for tags) of each member.

        It must be a mean for any rows, because micro-batches are weighted by their examples or words.

        Args:
            scores: (T, batch, outputs), or (T, batch, words, outputs) for tags; float32.
            labels: (T, batch), (T, batch, labels) or (T, batch, words).
            mask: (T or 1, batch, words) bool, True on real words; None except for tags.
            limits: the lowest and the highest score, for regression.
            options: the members' options; a member's loss has the same bits as alone.

        Returns:
            (T,), one per member; their sum gives every member the gradient that it has alone.
        """

    @abstractmethod
    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5) -> list[Prediction]:
        """One member's predictions, one per row.

        Args:
            scores: (batch, outputs), or (batch, words, outputs) for tags.
            mask: (batch, words) bool; None except for tags.
            limits: the lowest and the highest score, for regression.
            threshold: the lowest probability at which one of several labels is predicted.
        """

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """One member's probability of each label per row, from (batch, outputs); None if there are none."""
        return None


IGNORED = -100  # torch's own value for a target without a loss


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy per element: (…, outputs) and (…) → (…); 0 where the label is `IGNORED`."""
    losses = functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )  # fmt: skip
    return losses.view(labels.shape)


SMALLEST = 1e-12
"""The smallest 1 − p: below it a power of less than 1 has no finite slope."""


def focused(losses: Tensor, gamma: float) -> Tensor:
    """(1 − p)^gamma · −log p, from −log p: the focal loss of Lin et al. 2017, equation 4; unchanged if gamma is 0."""
    return losses if gamma == 0 else (-torch.expm1(-losses)).clamp(min=SMALLEST) ** gamma * losses


ALIKE = {"classes": "tags"}
"""Target → the target whose objective it shares: a class for each word is a tag without spans."""


@cache
def of(target: str) -> Objective:
    """The objective of a target.

    Raises:
        ValueError: the target has none.
    """
    name = ALIKE.get(target, target)
    return cast(Objective, registry.load(sys.modules[__name__], name, "target of a kind of task").OBJECTIVE)
