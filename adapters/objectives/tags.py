"""A tag for each word: cross-entropy of a softmax at each word."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.objectives import IGNORED, PLAIN, Limits, Objective, Options, cross_entropy
from meltpoint.tasks.core.metrics import Prediction


class Tags(Objective):
    """A distribution over the tags at each word."""

    def loss(
        self, scores: Tensor, labels: Tensor, mask: Tensor | None, limits: Limits, options: Options = PLAIN
    ) -> Tensor:
        """Mean cross-entropy over the real words; see `Objective.loss`."""
        assert mask is not None, "tags are of words"
        return cross_entropy(scores, labels.masked_fill(~mask, IGNORED)).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)

    def decode(
        self, scores: Tensor, mask: Tensor | None, limits: Limits, threshold: float = 0.5
    ) -> list[Prediction]:  # fmt: skip
        """The tag with the highest score for each word."""
        assert mask is not None, "tags are of words"
        return [row[real].tolist() for row, real in zip(scores.argmax(-1), mask, strict=True)]


OBJECTIVE = Tags()
