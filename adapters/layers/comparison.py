"""Two sentence vectors as one, for a linear layer to compare them."""

from __future__ import annotations

import torch
from torch import Tensor

KIROS, GLUE = "kiros", "glue"
PARTS = {KIROS: 2, GLUE: 4}
"""Width of a pair, in vectors."""


def compared(first: Tensor, second: Tensor, pair: str) -> Tensor:
    """(T or 1, batch, dim), twice → (T or 1, batch, 2 or 4 · dim).

    Args:
        pair: [|u − v|; u ∗ v] (`kiros`: Kiros et al. 2015, section 3.2), or u and v before it (`glue`: Wang et al.
            2018, section 4).
    """
    own = [first, second] if pair == GLUE else []
    return torch.cat([*own, (first - second).abs(), first * second], -1)
