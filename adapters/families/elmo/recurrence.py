"""An LSTM whose output is projected and which clips its memory and its output: ELMo's, for both directions at once.

torch.nn.LSTM has a projection and no clipping, so its kernels cannot serve. Written by hand, because the graph of
positions × a dozen small operations costs more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class Start(NamedTuple):
    """What a sentence begins with: the output and the memory before its first step, (G, batch, …) each."""

    output: Tensor
    memory: Tensor


class Clips(NamedTuple):
    """The largest size of a memory cell and of an output; infinity for none."""

    memory: float = math.inf
    output: float = math.inf


def rows_at(lengths: Sequence[int]) -> list[int]:
    """How many rows are still being read at each step; rows go by length, the longest first."""
    assert all(one >= two for one, two in pairwise(lengths)), "the longest row comes first"
    ending = [0] * (lengths[0] + 1)
    for length in lengths:
        ending[length] += 1
    return [len(lengths) - ended for ended in accumulate(ending)][:-1]


class Recurrence(torch.autograd.Function):
    """LSTMs side by side (G of them), each left to right over rows of several lengths.

    Sak et al. 2014, section 2 (without peepholes), and TensorFlow's `LSTMCell` with `num_proj`, `cell_clip` and
    `proj_clip`, whose order of gates is kept: input, new, forget, output. With a_t = W [x_t; h_{t-1}] + b:
        c_t = clip(σ(a_f) ∘ c_{t-1} + σ(a_i) ∘ tanh(a_n));   h_t = clip(P (σ(a_o) ∘ tanh(c_t)))
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: Tensor, kernel: Tensor, bias: Tensor, projection: Tensor, start: Start | None,
        lengths: Sequence[int], clips: Clips, keeps: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Read every row.

        Args:
            ctx: autograd's.
            inputs: (G, steps, batch, inputs).
            kernel: (G, inputs + size, 4 * cells).
            bias: (G, 4 * cells).
            projection: (G, cells, size).
            start: None for zeros; it gets no gradient.
            lengths: of the rows, the longest first; the first one is `steps`.
            clips: of memory and output.
            keeps: what the backward pass needs (autograd is always off in here, and does not say).

        Returns:
            The output of every step, (G, steps, batch, size), 0 beyond a row's end; and, without a gradient, each
            row's last output and memory, (G, batch, size) and (G, batch, cells).
        """
        groups, steps, batch, width = inputs.shape
        cells, size = projection.shape[1:]
        active = rows_at(lengths)
        # One product for all steps; each step then adds its own, and turns its scores into gates where they lie.
        gates = torch.baddbmm(bias[:, None], inputs.flatten(1, 2), kernel[:, :width]).view(groups, steps, batch, 4, -1)
        across = kernel[:, width:]
        outputs = inputs.new_zeros(groups, steps + 1, batch, size)
        memory = inputs.new_zeros(groups, steps + 1 if keeps else 1, batch, cells)
        if start is not None:
            outputs[:, 0], memory[:, 0] = start
        for step, rows in enumerate(active):
            own = gates[:, step, :rows]
            own.flatten(2).baddbmm_(outputs[:, step, :rows], across)
            inner, new, forget, outer = own[:, :, 0].sigmoid_(), own[:, :, 1].tanh_(), *_sigmoid(own[:, :, 2:])
            now = memory[:, (step + 1) * keeps, :rows]
            torch.mul(memory[:, step * keeps, :rows], forget, out=now).addcmul_(inner, new)
            now.clamp_(-clips.memory, clips.memory)
            projected = torch.bmm(now.tanh().mul_(outer), projection)
            torch.clamp(projected, -clips.output, clips.output, out=outputs[:, step + 1, :rows])
        ends, row = torch.tensor(lengths, device=inputs.device), torch.arange(batch, device=inputs.device)
        last = outputs[:, ends, row], memory[:, ends * keeps, row]
        ctx.save_for_backward(inputs, kernel, projection, gates, memory, outputs)
        ctx.active, ctx.clips = active, clips  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(*last)
        return outputs[:, 1:], *last

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Back through time; the weights' gradients are a product each, at the end."""
        inputs, kernel, projection, gates, memory, outputs = ctx.saved_tensors  # type: ignore[attr-defined]
        clips: Clips = ctx.clips  # type: ignore[attr-defined]
        width = inputs.shape[-1]
        back, lift = kernel[:, width:].transpose(1, 2), projection.transpose(1, 2)
        scores, produced = torch.zeros_like(gates), torch.zeros_like(memory[:, 1:])
        projected = torch.zeros_like(outputs[:, 1:])
        carried, returned = torch.zeros_like(memory[:, 0]), torch.zeros_like(outputs[:, 0])
        for step, rows in reversed(list(enumerate(ctx.active))):  # type: ignore[attr-defined]
            inner, new, forget, outer = gates[:, step, :rows].unbind(2)
            before, cells = memory[:, step, :rows], memory[:, step + 1, :rows]
            own, held, here = scores[:, step, :rows], carried[:, :rows], projected[:, step, :rows]
            torch.add(gradient[:, step, :rows], returned[:, :rows], out=here)
            here.masked_fill_(outputs[:, step + 1, :rows].abs() >= clips.output, 0)  # what a clip holds has no gradient
            lifted, reached = torch.bmm(here, lift), cells.tanh()
            torch.mul(outer, reached, out=produced[:, step, :rows])
            held += _through_tanh(lifted * outer, reached)
            held.masked_fill_(cells.abs() >= clips.memory, 0)
            own[:, :, 0] = _through_sigmoid(held * new, inner)
            own[:, :, 1] = _through_tanh(held * inner, new)
            own[:, :, 2] = _through_sigmoid(held * before, forget)
            own[:, :, 3] = _through_sigmoid(lifted * reached, outer)
            held *= forget
            returned[:, :rows] = torch.bmm(own.flatten(2), back)
        flat, needs = scores.flatten(3).flatten(1, 2), ctx.needs_input_grad  # type: ignore[attr-defined]
        into = torch.bmm(flat, kernel[:, :width].transpose(1, 2)).view_as(inputs) if needs[0] else None
        if not any(needs[1:4]):
            return into, *[None] * 7
        given = torch.cat([inputs, outputs[:, :-1]], -1).flatten(1, 2)
        weights = torch.bmm(given.transpose(1, 2), flat)
        lifting = torch.bmm(produced.flatten(1, 2).transpose(1, 2), projected.flatten(1, 2))
        return into, weights, flat.sum(1), lifting, *[None] * 4


_through_sigmoid, _through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""(gradient of the output, the output) → gradient of the input, in one pass."""


def _sigmoid(gates: Tensor) -> tuple[Tensor, Tensor]:
    """Two gates that lie side by side, activated in place."""
    one, two = gates.sigmoid_().unbind(2)
    return one, two


class Picked(torch.autograd.Function):
    """Rows picked by places of which no two are the same: its gradient is a copy, where `index_select`'s would add."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, places: Tensor) -> Tensor:
        """(N, size), (M,) → (M, size)."""
        ctx.save_for_backward(places)
        ctx.count = len(rows)  # type: ignore[attr-defined]
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        """Each row's gradient to where it came from."""
        (places,) = ctx.saved_tensors  # type: ignore[attr-defined]
        empty = gradient.new_zeros(ctx.count, gradient.shape[1])  # type: ignore[attr-defined]
        return empty.index_copy_(0, places, gradient), None
