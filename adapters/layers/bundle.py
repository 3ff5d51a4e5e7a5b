"""Bundles: trials of one cell that train side by side, as one module with a leading dimension of members.

The promise: on a CPU, a member's weights, scores, gradients and predictions equal those of a bundle of one, with its
setting and its seed, to the last bit; on a GPU they are equal within rounding. (On a CPU, a bundle only has trials with
the same seed: batches of several seeds would be padded to the same width, and dropout depends on the width.)

To keep it, a head or a layer
- takes every parameter from `Bundle.parameter`, or from layers that do: the first dimension counts the members, and the
  initial weights come from each member's own generator. Training changes nothing else;
- takes sizes from `Bundle.size` and `Bundle.choice`, on which the members agree, and dropout from `Bundle.dropout`;
- never mixes along the first dimension of states (T, or 1 if all members read the same states) or along the rows of a
  batch, and ignores padding: `affine.pool_rows`, or the mask `lanes_of(batch.piece_mask, batch.lanes)`;
- computes with operations that round the same for any number of members: `Affine`, `torch.bmm`, sums and products.
  Functions such as tanh go through `affine.elementwise`; for anything else, `shares` yields one member at a time.

A member's dropout masks and initial weights depend only on its own seed. `tests/adapters/test_head_promises.py` checks
every head and names the rule that a head breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from meltpoint.adapters.hyperparameters import COMMON, Parameter, Setting, Value


class Layer(nn.Module):
    """A module whose result is one tensor."""

    __call__: Callable[..., Tensor]


BITS = 16
"""Dropout uses 16 bits per number: a ratio is met within 2^-17, and one 64-bit draw serves four numbers."""


class MemberRng:
    """The random bits of T trials that train together.

    A member's draws are a function of its seed, the step, the number of the call within the step, and the shape.
    Members with the same seed share their draws.

    Args:
        seeds: one per member.

    Attributes:
        seeds: one per member.
        seed_rows: index of each member's seed among the distinct seeds, which is its row of `bits`.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._step, self._call = 0, 0
        self._held: dict[int, Tensor] | None = None
        self._generators: dict[torch.device, torch.Generator] = {}
        self._take(tuple(seeds))

    def _take(self, seeds: tuple[int, ...]) -> None:
        self.seeds = seeds
        self._distinct = tuple(dict.fromkeys(seeds))
        self.seed_rows = [self._distinct.index(seed) for seed in seeds]

    def begin(self, step: int, held: dict[int, Tensor] | None = None) -> None:
        """Start a training step; its draws do not depend on earlier draws.

        Args:
            held: the numbers of each call of an earlier step with the same calls, drawn anew in place for this step; a
                CUDA graph reads them there, since it cannot seed a generator. Empty before the first such step.
        """
        self._step, self._call, self._held = step, 0, held
        for call, words in (held or {}).items():
            self._draw(words, call)

    def skip(self) -> None:
        """Count a call that needs no bits, so that the draws of later calls do not depend on it."""
        self._call += 1

    def bits(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Uniform int16 numbers, (U, *shape), one row per distinct seed, indexed by `seed_rows`."""
        count = math.prod(shape)
        held = {} if self._held is None else self._held
        if self._call not in held:
            # Whole 64-bit words: one draw costs no more than a 16-bit draw.
            words = torch.empty(len(self._distinct), -(-count * BITS // 64), dtype=torch.int64, device=device)
            held[self._call] = self._draw(words, self._call)
        words = held[self._call]
        self.skip()
        return words.view(torch.int16)[:, :count].view(-1, *shape)

    def _draw(self, words: Tensor, call: int) -> Tensor:
        """Fill the words of a call of this step, one row per distinct seed."""
        if words.device not in self._generators:
            self._generators[words.device] = torch.Generator(words.device)
        generator = self._generators[words.device]
        for row, seed in zip(words, self._distinct, strict=True):
            generator.manual_seed(_mixed(seed, self._step, call))
            row.random_(-(2**63), None, generator=generator)
        return words

    def initial(self, member: int) -> torch.Generator:
        """A fresh CPU generator for a member's initial weights; members with the same seed start the same."""
        return torch.Generator().manual_seed(_mixed(self.seeds[member]))

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        self._take(tuple(self.seeds[member] for member in members))


def _mixed(*numbers: int) -> int:
    """Numbers → 63 bits that look unrelated for any two tuples: SplitMix64's steps (Steele, Lea & Flood 2014).

    The generators of consecutive steps must not have neighbouring streams: Mersenne Twister takes 32 bits.
    """
    state, mask = len(numbers), 2**64 - 1
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


class Dropout(Layer):
    """Dropout with a ratio and a mask per member.

    Args:
        ratios: one per member, below 1.
        rng: the members' random numbers.
    """

    def __init__(self, ratios: Sequence[float], rng: MemberRng) -> None:
        super().__init__()
        self.rng = rng
        self.levels = [round(ratio * 2**BITS) for ratio in ratios]
        assert all(0 <= level < 2**BITS for level in self.levels), "a dropout ratio is in [0, 1)"

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, batch, …) → (T, batch, …) of the same type; unchanged if nothing is to be dropped."""
        if not self.training or not any(self.levels):
            self.rng.skip()
            return states
        bits = self.rng.bits(states.shape[1:], states.device)
        return _Drop.apply(states, bits, self.rng.seed_rows, self.levels)  # type: ignore[no-any-return, no-untyped-call]

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members; the head updates the random numbers itself."""
        self.levels = [self.levels[member] for member in members]


class _Drop(torch.autograd.Function):
    """Dropout of every member with its own row of bits, which is saved for the backward pass instead of a mask."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, bits: Tensor, rows: Sequence[int], levels: Sequence[int]) -> Tensor:
        """(T or 1, …), (U, …) int16, each member's row of bits and its threshold → (T, …)."""
        ctx.save_for_backward(bits)
        ctx.rows, ctx.levels, ctx.shared = rows, levels, len(states) == 1
        return _dropped(states, bits, rows, levels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Apply the same mask and scale."""
        (bits,) = ctx.saved_tensors
        found = _dropped(gradient, bits, ctx.rows, ctx.levels)
        if ctx.shared and len(found) > 1:
            found = found.sum(0, keepdim=True)
        return found, None, None, None


def _dropped(states: Tensor, bits: Tensor, rows: Sequence[int], levels: Sequence[int]) -> Tensor:
    """(T or 1, …) → (T, …): the kept elements, divided by the exact keep probability, rounded once."""
    factors = [1 / (1 - level / 2**BITS) for level in levels]
    lowest = [level - 2 ** (BITS - 1) for level in levels]  # bits are signed: the lowest value, -2^15, represents 0
    found = torch.empty((len(rows), *states.shape[1:]), dtype=states.dtype, device=states.device)
    for own, into, row, level, factor in zip(states.expand_as(found), found, rows, lowest, factors, strict=True):
        torch.mul(own, factor, out=into)  # a Python number, so that half precision is rounded only once
        into.mul_(bits[row] >= level)
    return found


Fill = Callable[[Tensor, torch.Generator], object]
"""Sets a member's share of a parameter in place."""

_DROPOUT = next(parameter for parameter in COMMON if parameter.name == "dropout")


@dataclass(frozen=True)
class Bundle:
    """The members that a head's layers are created for.

    Attributes:
        settings: one per member; they agree on everything that shapes the computation.
        rng: the members' random numbers.
        generators: one per member, for its initial weights; each layer continues where the last one stopped.
    """

    settings: Sequence[Setting]
    rng: MemberRng
    generators: Sequence[torch.Generator] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "generators", [self.rng.initial(member) for member in range(len(self))])

    def __len__(self) -> int:
        return len(self.settings)

    def size(self, parameter: Parameter) -> int:
        """The members' common value, a whole number, of a hyperparameter that shapes the computation."""
        return int(self._agreed(parameter))

    def choice(self, parameter: Parameter) -> str:
        """The members' common value, one of its choices, of a hyperparameter that shapes the computation."""
        return str(self._agreed(parameter))

    def _agreed(self, parameter: Parameter) -> Value:
        assert parameter.shapes, f"{parameter.name} does not shape the computation"
        found = {value(setting, parameter) for setting in self.settings}
        assert len(found) == 1, f"members of a bundle agree on {parameter.name}; these differ: {found}"
        return found.pop()

    def dropout(self, share: float = 1.0) -> Dropout:
        """The head's dropout, each member at its own ratio.

        Args:
            share: factor on the ratio, for a head with several dropout ratios; the result is capped at the largest
                ratio that a setting may name.
        """
        ratios = [share * float(value(setting, _DROPOUT)) for setting in self.settings]
        return Dropout([min(ratio, _DROPOUT.maximum) for ratio in ratios], self.rng)

    def parameter(self, *shape: int, fill: Fill | None = None) -> nn.Parameter:
        """A parameter of (T, *shape): zeros, in which `fill(tensor, generator)` sets each member's share in place."""
        tensor = torch.zeros(len(self), *shape)
        if fill is not None and not tensor.is_meta:  # nothing to fill, and torch would import for a second
            for own, generator in zip(tensor, self.generators, strict=True):
                fill(own, generator)
        return nn.Parameter(tensor)


def normal(std: float) -> Fill:
    """A fill for `Bundle.parameter` with normal numbers of this standard deviation."""
    return lambda own, generator: nn.init.normal_(own, std=std, generator=generator)


def value(setting: Setting, parameter: Parameter) -> Value:
    """A setting's value of a parameter, in its own type; the default if the setting does not name it."""
    return parameter.check(setting.get(parameter.name, parameter.default))


@torch.no_grad()
def keep_members(module: nn.Module, members: Sequence[int]) -> None:
    """Reduce a module to some of its members, in this order.

    The parameters stay the same objects, so that layer groups and the optimiser still hold them; gradients are dropped.
    """
    for parameter in module.parameters():
        kept = parameter.data[torch.tensor(members, device=parameter.device)]
        parameter.grad = None
        # Through another type: only then does autograd forget the old shape if an old loss still exists.
        parameter.data = kept.to(torch.float16)
        parameter.data = kept
    for part in module.modules():
        if isinstance(part, Dropout):
            part.keep(members)


def lanes_of(tensor: Tensor, lanes: int) -> Tensor:
    """(lanes * batch, …) → (lanes, batch, …)."""
    return tensor.view(lanes, -1, *tensor.shape[1:])


def shares(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Slice tensors of (T, …) for computing: on a CPU one member at a time, on a GPU all at once.

    On a CPU, one member's numbers stay in the cache, while a whole bundle's would not, and products and sums have the
    shapes, hence the last bits, of a bundle of one.

    Yields:
        A slice of each tensor, (1, …) or (T, …).
    """
    size = len(tensors[0]) if tensors[0].is_cuda else 1
    yield from zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


class ByMember(Layer):
    """A plain torch module for one trial that holds all members' weights and is called one member at a time.

    Each call runs the module with one member's weights, so it rounds as it does alone. Each plain dropout of the module
    becomes the bundle's, with the setting's ratio. The module must not have buffers.

    Args:
        modules: one per member, identical except for their weights; the first one is reused.
        bundle: the members.
    """

    def __init__(self, modules: Sequence[nn.Module], bundle: Bundle) -> None:
        super().__init__()
        assert not list(modules[0].buffers()), "a bundle keeps parameters only"
        own = [dict(module.named_parameters()) for module in modules]
        self.module = modules[0]
        for name in own[0]:
            path, _, last = name.rpartition(".")
            stacked = torch.stack([parameters[name].detach() for parameters in own])
            setattr(self.module.get_submodule(path), last, nn.Parameter(stacked))
        self.dropouts = nn.ModuleList(_replace_dropouts(self.module, bundle))

    def forward(self, states: Tensor, *shared: Tensor) -> Tensor:
        """Call the module for each member.

        Args:
            states: (T or 1, …), the module's first argument; 1 if all members read the same.
            shared: further arguments, (1 or T, …) each.

        Returns:
            (T, …), the module's result for each member.
        """
        parameters = {name: own.unbind(0) for name, own in self.module.named_parameters()}
        members = len(next(iter(parameters.values())))
        found = []
        for member in range(members):
            for dropout in self.dropouts:
                dropout.begin(member)  # type: ignore[operator]
            own = {name: every[member] for name, every in parameters.items()}
            # Copies, because the last bits of a product may depend on its factors' alignment in memory.
            given = [tensor[member if len(tensor) > 1 else 0].clone() for tensor in (states, *shared)]
            found.append(functional_call(self.module, own, tuple(given)))
        return torch.stack(found)


class MemberDropout(nn.Module):
    """A dropout in a module that is called one member at a time.

    Args:
        dropout: the bundle's dropout.

    Attributes:
        member: the current member; members come in order.
        call: the module's calls of it for that member so far: RoBERTa's head has one dropout and calls it twice.
    """

    def __init__(self, dropout: Dropout) -> None:
        super().__init__()
        self.dropout = dropout
        self.member = self.call = 0
        self._kept: list[Tensor | None] = []

    def begin(self, member: int) -> None:
        """Turn to a member."""
        self.member, self.call = member, 0
        if member == 0:
            self._kept = []

    def forward(self, states: Tensor) -> Tensor:
        """Apply dropout to one member's states, with its own ratio and mask."""
        if self.member == 0:  # drawn for all members at once, so the count of calls is the same as for one alone
            ones = torch.ones_like(states)[None]
            drawn = self.dropout(ones)
            self._kept.append(None if drawn is ones else drawn)
        kept, self.call = self._kept[self.call], self.call + 1
        return states if kept is None else states * kept[self.member]


def _replace_dropouts(module: nn.Module, bundle: Bundle) -> list[MemberDropout]:
    """Replace each plain `nn.Dropout` by the bundle's dropout."""
    found = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout):
                found.append(MemberDropout(bundle.dropout()))
                setattr(parent, name, found[-1])
    return found
