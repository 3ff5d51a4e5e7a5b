"""One number in a range: the squared error of the scaled score.

The score is scaled to [-1, 1] for training, so that a fresh head predicts the middle of the range and the same learning
rate suits classification and regression.
"""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.objectives import PLAIN, Limits, Objective, Options
from meltpoint.tasks.core.metrics import Prediction


class Score(Objective):
    """A regressed number."""

    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Mean squared error of the scaled score; see `Objective.loss`."""
        assert limits is not None, "a regression has a range"
        low, high = limits
        target = (labels - (low + high) / 2) / ((high - low) / 2)
        return (scores.squeeze(-1) - target).square().mean(1)

    def decode(
        self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5
    ) -> list[Prediction]:  # fmt: skip
        """The scores in the task's own range."""
        assert limits is not None, "a regression has a range"
        low, high = limits
        return list((scores.squeeze(-1).double() * ((high - low) / 2) + (low + high) / 2).tolist())


OBJECTIVE = Score()
