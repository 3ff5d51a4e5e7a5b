"""One label of several: cross-entropy of a softmax, optionally focal (Lin et al. 2017) or weighted by class.

Both options are for classes of very different sizes. They move the probabilities away from the classes' shares, so the
probabilities need calibration afterwards.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from meltpoint.adapters.objectives import PLAIN, Limits, Objective, Options, by_member, cross_entropy, focused
from meltpoint.tasks.core.metrics import Prediction


class OneLabel(Objective):
    """A distribution over the labels."""

    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Mean cross-entropy; see `Objective.loss`."""
        if options.is_plain:
            return cross_entropy(scores, labels).mean(1)
        return by_member(partial(_own, options), scores, labels)

    def decode(
        self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5
    ) -> list[Prediction]:  # fmt: skip
        """The label ids with the highest score."""
        return list(scores.argmax(-1).tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """The softmax."""
        rows: list[list[float]] = torch.softmax(scores.double(), -1).tolist()
        return rows


def _own(options: Options, scores: Tensor, labels: Tensor, member: int) -> Tensor:
    """A member's loss, (1,): weighted by class; the mean over rows, not over their weights."""
    losses = focused(cross_entropy(scores, labels), options.gamma(member))
    weights = options.weights[member]
    return (losses if weights is None else losses * weights[labels]).mean(1)


OBJECTIVE = OneLabel()
