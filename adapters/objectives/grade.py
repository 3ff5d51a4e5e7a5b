"""One of K ordered classes: the continuation-ratio model, trained as CORN does (Shi, Cao & Raschka 2023, section 3).

K − 1 scores give, for each class k except the highest, the probability that the label is above k if it is at least k:
P(y > k | y ≥ k) = σ(s_k). Their products give P(y > k), which never rises with k and needs no tied weights, so any head
works. The loss is −log P(y): the binary cross-entropies of the steps up to the label, as in CORN, summed for each
example. (CORN divides by the number of all steps instead of examples; micro-batches need a mean over examples.) The
statistical model is older: the sequential logit of Tutz 1991. The prediction is the median: the number of k for which
P(y > k) is above one half.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.objectives import PLAIN, Limits, Objective, Options, by_member
from meltpoint.tasks.core.metrics import Prediction


class Grade(Objective):
    """A distribution over ordered classes."""

    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Mean negative log-likelihood; see `Objective.loss`."""
        steps = torch.arange(scores.shape[-1], device=scores.device)

        def own(scores: Tensor, labels: Tensor, member: int) -> Tensor:
            is_above = (labels[..., None] > steps).to(scores.dtype)
            counts = (labels[..., None] >= steps).to(scores.dtype)
            losses = functional.binary_cross_entropy_with_logits(scores, is_above, reduction="none")
            return (losses * counts).sum(-1).mean(1)

        return by_member(own, scores, labels)

    def decode(
        self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5
    ) -> list[Prediction]:  # fmt: skip
        """The median class of each row."""
        return list((_above(scores) > 0.5).sum(-1).tolist())

    def probabilities(self, scores: Tensor) -> list[list[float]] | None:
        """P(y > k − 1) − P(y > k) for each class k."""
        above = _above(scores)
        ends = torch.ones_like(above[..., :1])
        rows: list[list[float]] = (torch.cat([ends, above], -1) - torch.cat([above, 0 * ends], -1)).tolist()
        return rows


def _above(scores: Tensor) -> Tensor:
    """P(y > k) for each k except the highest: (batch, K − 1) float64."""
    return torch.sigmoid(scores.double()).cumprod(-1)


OBJECTIVE = Grade()
