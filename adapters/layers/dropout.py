"""Dropout and the random numbers of a bundle: each member's masks and first weights depend on its own seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BITS = 16
"""Dropout decides by 16 bits: a ratio is met within 2^-17, and one draw of 64 bits serves four numbers."""


class MemberRng:
    """The random bits of T trials that train together.

    A member's draws are a function of its seed, the step, the number of the call within the step, and the shape.
    Members with the same seed share their draws.

    Args:
        seeds: of the masks, one a member.
        initial_seeds: of the first weights, one a member; None for `seeds`.

    Attributes:
        seeds, initial_seeds: one a member.
        seed_rows: index of each member's seed among the distinct ones, hence its row of `bits`.
    """

    def __init__(self, seeds: Sequence[int], initial_seeds: Sequence[int] | None = None) -> None:
        self._step, self._call = 0, 0
        self._generators: dict[torch.device, torch.Generator] = {}
        self._take(tuple(seeds), tuple(seeds if initial_seeds is None else initial_seeds))

    def _take(self, seeds: tuple[int, ...], initial_seeds: tuple[int, ...]) -> None:
        assert len(seeds) == len(initial_seeds), "one seed of each kind a member"
        self.seeds, self.initial_seeds = seeds, initial_seeds
        self._distinct = tuple(dict.fromkeys(seeds))
        self.seed_rows = [self._distinct.index(seed) for seed in seeds]

    @property
    def member_seed_index(self) -> Tensor:
        """(T,) int64, `seed_rows` as a tensor."""
        return torch.tensor(self.seed_rows)

    def begin(self, step: int) -> None:
        """Start a training step: its draws are the same whatever was drawn before."""
        self._step, self._call = step, 0

    def skip(self) -> None:
        """Count a call that needs no bits, so that the draws of later calls do not depend on it."""
        self._call += 1

    def bits(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Uniform int16 numbers, (U, *shape), one row a distinct seed, in the order of `member_seed_index`."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        generator, count = self._generators[device], math.prod(shape)
        # Whole words of 64 bits: one draw is as cheap as one of 16 would be.
        words = torch.empty(len(self._distinct), -(-count * BITS // 64), dtype=torch.int64, device=device)
        for row, seed in zip(words, self._distinct, strict=True):
            generator.manual_seed(_mixed(seed, self._step, self._call))
            row.random_(-(2**63), None, generator=generator)
        self.skip()
        return words.view(torch.int16)[:, :count].view(-1, *shape)

    def initial(self, member: int) -> torch.Generator:
        """A fresh CPU generator for a member's first weights: members with the same seed start alike."""
        return torch.Generator().manual_seed(_mixed(self.initial_seeds[member]))

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        kept = ([seeds[member] for member in members] for seeds in (self.seeds, self.initial_seeds))
        self._take(*map(tuple, kept))


def _mixed(*numbers: int) -> int:
    """Numbers → 63 bits that look unrelated for any two tuples: SplitMix64's steps (Steele, Lea & Flood 2014).

    A generator's stream for one step must not be a neighbour of the next one's: Mersenne Twister takes 32 bits.
    """
    state, mask = len(numbers), 2**64 - 1
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


class Dropout(nn.Module):
    """Dropout with a ratio and a mask a member.

    Args:
        ratios: one a member, below 1.
        rng: the members' random numbers.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, ratios: Sequence[float], rng: MemberRng) -> None:
        super().__init__()
        self.rng = rng
        self.levels = [round(ratio * 2**BITS) for ratio in ratios]
        assert all(0 <= level < 2**BITS for level in self.levels), "a dropout ratio lies in [0, 1)"

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, batch, …) → (T, batch, …) of the same type; unchanged where nothing is to be dropped."""
        if not self.training or not any(self.levels):
            self.rng.skip()
            return states
        bits = self.rng.bits(states.shape[1:], states.device)
        return _Drop.apply(states, bits, self.rng.seed_rows, self.levels)  # type: ignore[no-any-return, no-untyped-call]

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members; the head tells the random numbers itself."""
        self.levels = [self.levels[member] for member in members]


class _Drop(torch.autograd.Function):
    """Dropout of every member by its own row of bits, which are saved for the backward pass instead of a mask."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, bits: Tensor, rows: Sequence[int], levels: Sequence[int]) -> Tensor:
        """(T or 1, …), (U, …) int16, each member's row of them and its threshold → (T, …)."""
        ctx.save_for_backward(bits)
        ctx.rows, ctx.levels, ctx.shared = rows, levels, len(states) == 1
        return _dropped(states, bits, rows, levels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The same mask and scale."""
        (bits,) = ctx.saved_tensors
        found = _dropped(gradient, bits, ctx.rows, ctx.levels)
        if ctx.shared and len(found) > 1:
            found = found.sum(0, keepdim=True)
        return found, None, None, None


def _dropped(states: Tensor, bits: Tensor, rows: Sequence[int], levels: Sequence[int]) -> Tensor:
    """(T or 1, …) → (T, …): the kept elements, divided by the exact keep probability, rounded once."""
    factors = [1 / (1 - level / 2**BITS) for level in levels]
    lowest = [level - 2 ** (BITS - 1) for level in levels]  # bits are signed: the lowest, -2^15, stands for 0
    found = torch.empty((len(rows), *states.shape[1:]), dtype=states.dtype, device=states.device)
    for own, into, row, level, factor in zip(states.expand_as(found), found, rows, lowest, factors, strict=True):
        torch.mul(own, factor, out=into)  # a Python number, so that half precision is rounded once only
        into.mul_(bits[row] >= level)
    return found
