"""A score as a distribution over fixed points, for regression by a softmax (Tai, Socher & Manning 2015, section 4.2).

The points lie evenly from the lowest score to the highest, about 1 apart: the whole scores 1 to 5 of SICK, 0 to 5 of
STS-B. A true score y between two points a < b becomes a distribution p with (b − y) / (b − a) at a and the rest at b,
so that its mean is y. The loss is the cross-entropy of the softmax against p, which differs from Tai et al.'s
Kullback–Leibler divergence by a number that no weight changes; the predicted score is the softmax's mean.
"""

from __future__ import annotations

import torch
from torch import Tensor


class ScoreDistribution:
    """Points between two scores, with the loss and the mean of distributions over them.

    Attributes:
        low, high: the lowest and the highest score.
        points: how many points, at least 2.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.points = max(2, round(high - low) + 1)

    def target(self, labels: Tensor) -> Tensor:
        """Scores, (…), of at least `low` and at most `high` → distributions, (…, points) float32."""
        place = (labels.double() - self.low) * ((self.points - 1) / (self.high - self.low))
        points = torch.arange(self.points, device=labels.device, dtype=torch.float64)
        return (1 - (place[..., None] - points).abs()).clamp(min=0).float()

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against `target`: (…, points) and (…) → (…)."""
        return -(self.target(labels) * torch.log_softmax(scores, -1)).sum(-1)

    def mean(self, scores: Tensor) -> Tensor:
        """The predicted scores: (…, points) → (…) float64."""
        points = torch.linspace(self.low, self.high, self.points, device=scores.device, dtype=torch.float64)
        return torch.softmax(scores.double(), -1) @ points
