"""Products by weights that stand still: while an encoder is only read, each weight is packed for a CPU once.

oneDNN multiplies bf16 by a weight that it first lays out in blocks of its own, each time anew. In evaluations, where no
weight changes, torch's packed layout (made for `torch.compile`) does that once: the same bits in 7 % less time
(docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

_PARTS = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
_ROWS = 1024
"""For how many rows a layout is chosen; any number can be multiplied by it. One for all, so that all get its bits."""

Weights = Callable[[], tuple[Tensor, Tensor | None]]
"""A weight, (out, in), and a bias, (out,)."""


class Joint(nn.Module):
    """A module that multiplies by the weights of several layers at once."""

    def project(self, states: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        return functional.linear(states, *self.joined())

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """The layers' weights as one, (out, in), and their biases, (out,)."""
        raise NotImplementedError


def can_pack() -> bool:
    """Whether this torch has packed layouts and oneDNN takes bf16 here: with AVX2 alone it refuses packed products."""
    mkldnn = torch.ops.mkldnn
    return all(hasattr(mkldnn, part) for part in _PARTS) and bool(mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def standing_still(model: nn.Module) -> Iterator[None]:
    """Pack each linear layer's weight when it is first used without gradients in bf16 on a CPU; in the end, forget it.

    Nothing may change the weights meanwhile. Other calls go the layers' own way.
    """
    known = can_pack()
    products = [one for one in _products(model) if known and one[1] not in vars(one[0])]
    for module, name, weights in products:
        setattr(module, name, _Packed(getattr(module, name), weights))
    try:
        yield
    finally:
        for module, name, _ in products:
            delattr(module, name)


def _products(model: nn.Module) -> Iterator[tuple[nn.Module, str, Weights]]:
    """(whose, by which method, with what) of all products by weights."""
    for module in model.modules():
        if isinstance(module, Joint):
            yield module, "project", module.joined
        elif isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            yield module, "forward", partial(_own, module)


def _own(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return layer.weight, layer.bias


class _Packed:
    """Stands before a product of states by a weight.

    Args:
        plain: the product itself.
        weights: what by.
    """

    def __init__(self, plain: Callable[[Tensor], Tensor], weights: Weights) -> None:
        self._plain, self._weights = plain, weights
        self._packed: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, states: Tensor) -> Tensor:
        """(…, in) → (…, out) in bf16."""
        in_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
        if states.device.type != "cpu" or not in_bf16 or torch.is_grad_enabled():
            return self._plain(states)
        if self._packed is None:
            self._packed = self._pack()
        found: Tensor = torch.ops.mkldnn._linear_pointwise(states.bfloat16(), *self._packed, "none", [], "")
        return found

    def _pack(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = self._weights()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16(), _ROWS)
        return packed, None if bias is None else bias.detach().bfloat16()
