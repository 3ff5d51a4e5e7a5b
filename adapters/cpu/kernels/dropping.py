"""Dropout inside a kernel: no mask is kept.

An encoder's is drawn anew in the backward pass. The generator is SplitMix64 (Steele, Lea & Flood 2014) as a function of
a seed and a number's place: one word of 64 bits decides on four numbers, 16 bits each, as in `dropout.keep`. A bundle's
heads have draws of their own, which members of one seed share (`layers.dropout.MemberRng`): `drop` reads them in both
passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meltpoint.adapters.cpu.kernels import DROPOUT_STEPS
from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel
from meltpoint.adapters.cpu.kernels.numbers import from_float32, to_float32

LOWEST = -DROPOUT_STEPS // 2
"""The lowest draw, int16: as a level, nothing is dropped."""

BLOCK = 4096
"""Numbers of a member that `drop` reads and writes before the next member's: they stay in the first cache."""

_ZERO = np.float32(0)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Dropping:
    """The dropout of one kernel call.

    Attributes:
        seed: of the draws.
        level: int16 draws below it are dropped; `LOWEST` where nothing is.
        factor: what is kept is multiplied by it, so that the mean stays.
    """

    seed: np.uint64
    level: np.int16
    factor: np.float32

    @classmethod
    def drawn(cls, ratio: float) -> Dropping:
        """A share of this size, by a seed from torch's default generator, which `torch.manual_seed` governs.

        Nothing is drawn where nothing is dropped.
        """
        assert 0 <= ratio < 1, "a dropout ratio lies in [0, 1)"
        dropped = min(round(ratio * DROPOUT_STEPS), DROPOUT_STEPS - 1)
        seed = 0 if dropped == 0 else int(torch.empty((), dtype=torch.int64).random_())
        return cls(np.uint64(seed), np.int16(LOWEST + dropped), np.float32(DROPOUT_STEPS / (DROPOUT_STEPS - dropped)))


@inlined
def draw(seed: Any, first: Any, words: Any) -> None:
    """Fill an array of uint64 with the draws of a seed from the `first` one on."""
    for index in range(words.shape[0]):
        word = seed + (np.uint64(first) + np.uint64(index) + np.uint64(1)) * _GAMMA
        word = (word ^ (word >> np.uint64(30))) * _MIX[0]
        word = (word ^ (word >> np.uint64(27))) * _MIX[1]
        words[index] = word ^ (word >> np.uint64(31))


@inlined
def _keep(states: Any, draws: Any, level: Any, factor: Any, into: Any) -> None:
    for place in range(into.shape[0]):
        into[place] = from_float32(to_float32(states[place]) * factor if draws[place] >= level else _ZERO, into)


@kernel
def drop(
    states: Any, lanes: Any, draws: Any, rows: Any, levels: Any, factors: Any, first: Any, last: Any, into: Any
) -> None:
    """Drop of every member of a bundle what its own draws say, in the blocks of `BLOCK` numbers from `first` to `last`.

    Args:
        states: (lanes, numbers) flat, bf16 or float32; where lanes is 1, all members read the same.
        draws: (seeds, numbers) flat int16.
        rows, levels, factors: (members,) int64, int16 and float32: whose draws a member has, below what it drops, and
            what it multiplies the others by.
        into: (members, numbers) flat, of the states' type, written.
    """
    members = rows.shape[0]
    numbers = into.shape[0] // members
    for begin in range(first * BLOCK, min(last * BLOCK, numbers), BLOCK):
        size = min(BLOCK, numbers - begin)
        for member in range(members):
            at, drawn, to = member % lanes * numbers + begin, rows[member] * numbers + begin, member * numbers + begin
            _keep(
                states[at : at + size], draws[drawn : drawn + size], levels[member], factors[member],
                into[to : to + size],
            )  # fmt: skip
