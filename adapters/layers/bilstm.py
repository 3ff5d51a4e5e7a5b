"""A bidirectional LSTM for every member of a bundle; padding does not change it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.lstm import Weights, all_at_once, member_by_member, reversal, reverse

HIDDEN_SIZE = Parameter("bilstm.hidden_size", 200, "units of each direction of the BiLSTM", 1, 4096, shapes=True)
LAYERS = Parameter("bilstm.layers", 2, "layers of the BiLSTM", 1, 8, shapes=True)
"""Peters, Ruder & Smith 2019, appendix A: a two-layer BiLSTM; its size of 200 is that of Peters et al. 2018."""

ALL_AT_ONCE = 4
"""Members of a bundle from which a GPU reads them in one recurrence; fewer are faster one by one (measured on an H200
with 200 and 300 units over 24 to 120 positions; `docs/log.md`, 2026-11-26)."""

DIRECTIONS = ("", "_reverse")
"""The endings of torch.nn.LSTM's parameter names, which are kept."""


class BiLSTM(nn.Module):
    """A stacked bidirectional LSTM over a row's real pieces; dropout on its input and between its layers.

    A member's weights have the names, and its outputs the values, of a torch.nn.LSTM. Instead of packed sequences, the
    backward direction reads rows that were reversed within their lengths, so that padding comes last in both.

    Initialisation: Kaiming (He et al. 2015; arXiv 1907.05338 uses it for stacked heads) on the input weights,
    orthogonal recurrent weights (Saxe et al. 2014), forget bias 1 (Jozefowicz et al. 2015), other biases 0.

    Args:
        inputs: size of a state.
        bundle: the members.
        hidden: units of each direction.
        layers: number of layers.
        dropout: of each layer's input, (T or 1, positions, batch, size); None is the setting's, element by element.
    """

    __call__: Callable[..., Tensor]

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
                    parameter = bundle.parameter(*shape, fill=_FILLS.get(name, _zeros))
                    self.register_parameter(f"{name}_l{layer}{direction}", parameter)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T or 1, batch, positions, inputs) → (T, batch, positions, dim), anything where the mask is False.

        The mask, (lanes, batch, positions) bool, is True on as many of a row's first positions as the row has. Under
        autocast the recurrence runs in bf16, at half its cost in fp32, and bf16 is what comes out; scores above it are
        float32 all the same.
        """
        order, device = reversal(mask), states.device.type
        exact = self.get_parameter("weight_ih_l0").dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else exact
        with torch.autocast(device, enabled=False):  # cast here once: autocast would once a member and direction
            states = states.to(dtype).transpose(1, 2).contiguous()  # time first, as the kernels want it
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
    """Each gate's recurrent weights; gates lie in the order input, forget, cell, output."""
    for gate in recurrent.chunk(4):
        nn.init.orthogonal_(gate, generator=generator)


def _kaiming(weight: Tensor, generator: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="linear", generator=generator)


def _open_forget_gate(bias: Tensor, _: torch.Generator) -> None:
    """The recurrent bias is added to it: one of the two carries the 1."""
    bias.chunk(4)[1].fill_(1.0)


def _zeros(bias: Tensor, _: torch.Generator) -> None:
    bias.zero_()


_FILLS = {"weight_ih": _kaiming, "weight_hh": _orthogonal, "bias_ih": _open_forget_gate}
