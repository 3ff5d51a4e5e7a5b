"""One label of several: cross-entropy of a softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.objectives._cross_entropy import cross_entropy
from meltpoint.adapters.objectives._objective import Limits, Objective
from meltpoint.tasks.core.metric import Prediction


class OneLabel(Objective):
    """A distribution over the labels."""

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits) -> Tensor:
        """Mean cross-entropy; see `Objective.loss`."""
        return cross_entropy(scores, labels).mean(1)

    def decode(self, scores: Tensor, mask: Tensor | None, limits: Limits) -> list[Prediction]:
        """The label ids with the highest score."""
        return list(scores.argmax(-1).tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """The softmax."""
        rows: list[list[float]] = torch.softmax(scores.double(), -1).tolist()
        return rows


OBJECTIVE = OneLabel()
