"""BERT's own Adam as its released code states it, number by number, in double precision; for tests.

The rule is that of `AdamWeightDecayOptimizer` in optimization.py of github.com/google-research/bert (Devlin et al.
2018): moments without bias correction, the decay added to the update, both times the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def moved(weights: Tensor, gradients: Sequence[Tensor | None], rates: Sequence[float], decay: float) -> Tensor:
    """The weights after a step a gradient; a step without a gradient changes nothing.

    Args:
        gradients: of the weights' shape, one a step, or None.
        rates: one a step.
        decay: 0 for what the released code excludes: biases and layer norms.
    """
    numbers = []
    for place, start in enumerate(weights.flatten().tolist()):
        own = [None if gradient is None else float(gradient.flatten()[place]) for gradient in gradients]
        numbers.append(_moved(start, own, rates, decay))
    return torch.tensor(numbers, dtype=torch.float64).view(weights.shape)


def _moved(param: float, grads: Sequence[float | None], rates: Sequence[float], decay: float) -> float:
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-6
    mean, square = 0.0, 0.0
    for grad, rate in zip(grads, rates, strict=True):
        if grad is None:
            continue
        mean = beta_1 * mean + (1.0 - beta_1) * grad
        square = beta_2 * square + (1.0 - beta_2) * grad**2
        update = mean / (math.sqrt(square) + epsilon)
        update += decay * param
        param -= rate * update
    return param
