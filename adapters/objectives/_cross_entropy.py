"""Cross-entropy element by element."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

IGNORED = -100  # torch's own value for a target that has no loss


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Element by element: (…, outputs) and (…) → (…); 0 where the label is `IGNORED`."""
    losses = functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )  # fmt: skip
    return losses.view(labels.shape)
