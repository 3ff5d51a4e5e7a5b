"""Dropout of trials side by side, by each member's own row of draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from meltpoint.adapters.cpu.kernels import dropping as kernels
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


def drop_members(
    states: Tensor, bits: Tensor, rows: Sequence[int], lowest: Sequence[int], factors: Sequence[float], into: Tensor
) -> None:
    """`ops.drop_members` of bf16 or float32 on the CPU, written to `into`, (T, …)."""
    read, draws, written = array(states.contiguous()), bits.contiguous().view(-1).numpy(), array(into)
    members = np.array(rows), np.array(lowest, np.int16), np.array(factors, np.float32)

    def run(first: int, last: int) -> None:
        kernels.drop(read, len(states), draws, *members, first, last, written)

    parallel_for(-(-into[0].numel() // kernels.BLOCK), run)
