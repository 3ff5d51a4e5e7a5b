"""LSTMs for every member of a bundle: one direction in the device's fastest way, and the heads' BiLSTM.

On a CPU, oneDNN's LSTM runs one member and one direction at a time: a member's recurrent weights fit into the core's
cache, a bundle's do not. On a GPU, several members share one recurrence, with one matrix product per time step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from meltpoint.adapters.data.batch import mapped
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.bundle import Bundle, Layer

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""torch.nn.LSTM's (input, recurrent, input bias, recurrent bias) of one direction, each with a leading dimension T:
(T, 4 * hidden, inputs), (T, 4 * hidden, hidden), and twice (T, 4 * hidden). Gates: input, forget, cell, output."""


def reversal(mask: Tensor) -> Tensor:
    """The new index of each position when every row is reversed within its length; padding keeps its position.

    Args:
        mask: (lanes, batch, positions) bool.

    Returns:
        (lanes, positions, batch) int64, positions; time comes first, as the kernels expect.
    """
    lengths = mask.sum(-1)[:, None]
    index = torch.arange(mask.shape[-1], device=mask.device)[:, None]
    return torch.where(index < lengths, lengths - 1 - index, index)


def reverse(states: Tensor, order: Tensor) -> Tensor:
    """Rows of (T or 1, positions, batch, size) reversed within their lengths, by `reversal`'s order."""
    bundles, positions, batch, size = states.shape
    member = torch.arange(bundles, device=order.device)[:, None, None]
    flat = ((member * positions + order) * batch + torch.arange(batch, device=order.device)).flatten()

    def pick(rows: Tensor) -> Tensor:  # an involution: the gradient is picked the same way
        return rows.index_select(0, flat)

    return mapped(states.reshape(-1, size), pick, pick).view(states.shape)


def member_by_member(inputs: Tensor, weights: Weights) -> Tensor:
    """One direction, left to right, with torch's own LSTM.

    Args:
        inputs: (T or 1, positions, batch, inputs).
        weights: the direction's weights, in the inputs' type.

    Returns:
        (T, positions, batch, hidden).
    """
    trials, hidden = len(weights[0]), weights[1].shape[2]
    zero = inputs.new_zeros(1, inputs.shape[2], hidden)
    members = inputs.unbind(0) if len(inputs) == trials else inputs.unbind(0) * trials
    read = [
        torch.lstm(own, (zero, zero), list(mine), True, 1, 0.0, True, False, False)[0]
        for own, mine in zip(members, zip(*(w.unbind(0) for w in weights), strict=True), strict=True)
    ]
    return torch.stack(read)


def all_at_once(inputs: Sequence[Tensor], weights: Sequence[Weights]) -> list[Tensor]:
    """Several directions of every member in one recurrence.

    Args:
        inputs: one tensor per direction, already in reading order, each (T or 1, positions, batch, inputs).
        weights: one set per direction, in the inputs' type.

    Returns:
        One tensor per direction, (T, positions, batch, hidden).
    """
    projected = []
    for own, (into, _, one, two) in zip(inputs, weights, strict=True):
        rows = own.flatten(1, 2).expand(len(into), -1, -1)
        scores = torch.baddbmm((one + two)[:, None], rows, into.transpose(1, 2))  # one product for all time steps
        projected.append(scores.view(len(into), *own.shape[1:3], -1))
    steps = torch.cat(projected).transpose(0, 1).contiguous()  # (positions, directions * T, batch, 4 * hidden)
    recurrent = torch.cat([own[1] for own in weights]).transpose(1, 2).contiguous()
    read: Tensor = Recurrence.apply(steps, recurrent)  # type: ignore[no-untyped-call]
    return list(read.transpose(0, 1).chunk(len(inputs)))


class Recurrence(torch.autograd.Function):
    """LSTMs side by side over the same steps, each from its projected inputs; the cell state is kept in float32.

    Written by hand, because the graph of positions × a dozen small operations costs more than the arithmetic.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, projected: Tensor, recurrent: Tensor) -> Tensor:
        """Read left to right.

        Args:
            ctx: autograd's context.
            projected: (positions, G, batch, 4 * hidden): inputs times input weights, plus both biases.
            recurrent: (G, hidden, 4 * hidden).

        Returns:
            (positions, G, batch, hidden), the output of every step.
        """
        steps, groups, batch, width = projected.shape
        exact = torch.promote_types(projected.dtype, torch.float32)
        gates = projected.new_empty(steps, groups, batch, 4, width // 4, dtype=exact)  # activated
        cells = gates.new_zeros(steps + 1, groups, batch, width // 4)
        hidden = projected.new_zeros(steps + 1, groups, batch, width // 4)
        for step in range(steps):
            scores = torch.baddbmm(projected[step], hidden[step], recurrent).view(groups, batch, 4, -1)
            now = gates[step]
            now.copy_(scores).sigmoid_()
            now[:, :, 2] = scores[:, :, 2].to(exact).tanh_()
            torch.mul(now[:, :, 1], cells[step], out=cells[step + 1])
            cells[step + 1].addcmul_(now[:, :, 0], now[:, :, 2])
            hidden[step + 1] = now[:, :, 3] * cells[step + 1].tanh()
        ctx.save_for_backward(gates, cells, hidden, recurrent)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Back-propagation through time; the weights' gradient is one matrix product at the end."""
        gates, cells, hidden, recurrent = ctx.saved_tensors  # type: ignore[attr-defined]
        steps, groups, batch, _, size = gates.shape
        inner, forget, cell, outer = gates.unbind(3)
        reached = cells[1:].tanh()
        # The gradient of each gate's score per unit of the cell's gradient; for the output gate, of the output's
        # gradient.
        slopes = torch.stack(
            [
                cell * inner * (1 - inner),
                cells[:-1] * forget * (1 - forget),
                inner * (1 - cell * cell),
                reached * outer * (1 - outer),
            ],
            3,
        )
        through = outer * (1 - reached * reached)  # from the output's gradient into the cell's
        scores = torch.empty(steps, groups, batch, 4 * size, dtype=hidden.dtype, device=hidden.device)
        back, carried = recurrent.transpose(1, 2).contiguous(), torch.zeros_like(cells[0])
        output = gradient[-1]
        for step in range(steps - 1, -1, -1):
            carried.addcmul_(output.to(carried.dtype), through[step])
            own = slopes[step]
            own[:, :, :3] *= carried[:, :, None]
            own[:, :, 3] *= output
            scores[step] = own.flatten(2)
            carried *= forget[step]
            if step:
                output = torch.baddbmm(gradient[step - 1], scores[step], back)
        before = hidden[:-1].permute(1, 3, 0, 2).reshape(groups, size, steps * batch)
        weights = torch.bmm(before, scores.transpose(0, 1).reshape(groups, steps * batch, 4 * size))
        return scores, weights


HIDDEN_SIZE = Parameter("bilstm.hidden_size", 200, "units of each direction of the BiLSTM", 1, 4096, shapes=True)
LAYERS = Parameter("bilstm.layers", 2, "layers of the BiLSTM", 1, 8, shapes=True)
"""Peters, Ruder & Smith 2019, appendix A: a two-layer BiLSTM; its size of 200 is from Peters et al. 2018."""

ALL_AT_ONCE = 4
"""The number of members from which a GPU uses one shared recurrence; fewer are faster one by one (measured on an H200
with 200 and 300 units over 24 to 120 positions; `docs/internals/log.md`, 2026-11-26)."""

DIRECTIONS = ("", "_reverse")
"""The suffixes of torch.nn.LSTM's parameter names, kept here."""


class BiLSTM(Layer):
    """A stacked bidirectional LSTM over a row's real pieces; dropout on its input and between its layers.

    A member's weights have the names, and its outputs the values, of a torch.nn.LSTM. Instead of packed sequences, the
    backward direction reads rows reversed within their lengths, so padding comes last in both directions.

    Initialisation: Kaiming (He et al. 2015; arXiv 1907.05338 uses it for stacked heads) on the input weights,
    orthogonal recurrent weights (Saxe et al. 2014), forget bias 1 (Jozefowicz et al. 2015), other biases 0.

    Args:
        inputs: size of a state.
        bundle: the members.
        hidden: units of each direction.
        layers: number of layers.
        dropout: the dropout of each layer's input, (T or 1, positions, batch, size); None for the setting's elementwise
            one.
    """

    def __init__(self, inputs: int, bundle: Bundle, hidden: int, layers: int, dropout: nn.Module | None = None) -> None:
        super().__init__()
        self.dim, self.layers = 2 * hidden, layers
        self.dropout = bundle.dropout() if dropout is None else dropout
        for layer in range(self.layers):
            size = self.dim if layer else inputs
            shapes = {
                "weight_ih": (4 * hidden, size),
                "weight_hh": (4 * hidden, hidden),
                "bias_ih": (4 * hidden,),
                "bias_hh": (4 * hidden,),
            }
            for direction in DIRECTIONS:
                for name, shape in shapes.items():
                    parameter = bundle.parameter(*shape, fill=_FILLS.get(name))
                    self.register_parameter(f"{name}_l{layer}{direction}", parameter)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T or 1, batch, positions, inputs) → (T, batch, positions, dim), arbitrary where the mask is False.

        The mask, (lanes, batch, positions) bool, is True on a row's leading positions, up to its length. Under autocast
        the recurrence runs in bf16, at half the cost of fp32, and returns bf16; scores computed from it are still
        float32.
        """
        order, device = reversal(mask), states.device.type
        exact = self.get_parameter("weight_ih_l0").dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else exact
        with torch.autocast(device, enabled=False):  # cast here once; autocast would cast per member and direction
            states = states.to(dtype).transpose(1, 2).contiguous()  # time first, as the kernels expect
            for layer in range(self.layers):
                states = self._layer(layer, self.dropout(states), order)
            return states.transpose(1, 2)

    def _layer(self, layer: int, states: Tensor, order: Tensor) -> Tensor:
        """Both directions of one layer: (T or 1, pieces, batch, size) → (T, pieces, batch, dim)."""
        weights = [self._weights(layer, direction, states.dtype) for direction in DIRECTIONS]
        inputs = [states, reverse(states, order)]
        if states.is_cuda and len(weights[0][0]) >= ALL_AT_ONCE:
            onward, backward = all_at_once(inputs, weights)
        else:
            onward, backward = (member_by_member(*pair) for pair in zip(inputs, weights, strict=True))
        return torch.cat([onward, reverse(backward, order)], -1)

    def _weights(self, layer: int, direction: str, dtype: torch.dtype) -> Weights:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        one, two, three, four = (self.get_parameter(f"{name}_l{layer}{direction}").to(dtype) for name in names)
        return one, two, three, four


def _orthogonal(recurrent: Tensor, generator: torch.Generator) -> None:
    """Make each gate's recurrent weights orthogonal; the gates' order is input, forget, cell, output."""
    for gate in recurrent.chunk(4):
        nn.init.orthogonal_(gate, generator=generator)


def _kaiming(weight: Tensor, generator: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="linear", generator=generator)


def _open_forget_gate(bias: Tensor, _: torch.Generator) -> None:
    """Set the forget gate's bias to 1; the recurrent bias, which is added to it, stays 0."""
    bias.chunk(4)[1].fill_(1.0)


_FILLS = {"weight_ih": _kaiming, "weight_hh": _orthogonal, "bias_ih": _open_forget_gate}
