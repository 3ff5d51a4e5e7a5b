"""Cross-entropy element by element, and its focal form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100  # torch's own value for a target that has no loss


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Element by element: (…, outputs) and (…) → (…); 0 where the label is `IGNORED`."""
    losses = functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )  # fmt: skip
    return losses.view(labels.shape)


SMALLEST = 1e-12
"""The smallest 1 − p: below it a power of less than 1 has no finite slope."""


def focused(losses: Tensor, gamma: float) -> Tensor:
    """(1 − p)^gamma · −log p, from −log p: the focal loss of Lin et al. 2017, equation 4; the same where gamma is 0."""
    return losses if gamma == 0 else (-torch.expm1(-losses)).clamp(min=SMALLEST) ** gamma * losses
