"""Any number of labels: a sigmoid and a binary cross-entropy for each label, optionally focal (Lin et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.objectives import PLAIN, Limits, Objective, Options, by_member, focused
from meltpoint.tasks.core.metrics import Prediction


class Labels(Objective):
    """The probability of each label, independent of the others."""

    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Binary cross-entropy, the mean over rows and labels; see `Objective.loss`."""

        def own(scores: Tensor, labels: Tensor, member: int) -> Tensor:
            losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
            return focused(losses, options.gamma(member)).mean((1, 2))

        return by_member(own, scores, labels)

    def decode(
        self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5
    ) -> list[Prediction]:  # fmt: skip
        """1 for each label whose probability is at least the threshold, 0 for the others."""
        return list((torch.sigmoid(scores.double()) >= threshold).long().tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """The sigmoid of each score; they do not sum to 1."""
        rows: list[list[float]] = torch.sigmoid(scores.double()).tolist()
        return rows


OBJECTIVE = Labels()
