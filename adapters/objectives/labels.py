"""Any number of labels: a sigmoid and a binary cross-entropy for each label."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.objectives._objective import Limits, Objective
from meltpoint.tasks.core.metric import Prediction


class Labels(Objective):
    """The probability of each label, whatever the others are."""

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits) -> Tensor:
        """Binary cross-entropy, the mean over rows and labels; see `Objective.loss`."""
        losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return losses.mean((1, 2))

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits) -> list[Prediction]:
        """1 for each label of a probability of at least one half, 0 for the others."""
        return list((scores >= 0).long().tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """The sigmoid of each score; they do not sum to 1."""
        rows: list[list[float]] = torch.sigmoid(scores.double()).tolist()
        return rows


OBJECTIVE = Labels()
