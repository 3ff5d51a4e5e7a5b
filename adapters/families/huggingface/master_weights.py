"""Linear layers that train in bf16, with the weights that the optimiser moves in float32 beside them.

Under autocast a linear layer's weight is float32, made bf16 for each step, and its gradient bf16, made float32 to be
used once. With a bf16 weight and a float32 master copy (Micikevicius et al. 2018, section 3.1) the same numbers are
computed without those passes over memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from meltpoint.adapters.families.huggingface.specialise import specialise


class Master(nn.Module):
    """A mixin for an `nn.Linear` whose weight is bf16; its `state_dict` has the float32 master under the weight's name.

    Attributes:
        master: (out, in) float32, what `weight` is rounded from.
    """

    weight: nn.Parameter
    master: Tensor

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.master

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        given = state_dict.get(prefix + "weight")
        if given is not None and given.shape == self.master.shape:
            with torch.no_grad():
                self.master.copy_(given)


def adopt(model: nn.Module) -> dict[nn.Parameter, Tensor]:
    """Let every plain linear layer, whose weight nobody shares, train in bf16.

    Call it before the optimiser is made: the parameters are others afterwards.

    Returns:
        each new weight's master.
    """
    owners = Counter(id(own) for module in model.modules() for own in module.parameters(recurse=False))
    masters = {}
    for module in model.modules():
        if type(module) is nn.Linear and owners[id(module.weight)] == 1 and module.weight.dtype == torch.float32:
            master = module.weight.detach()
            module.weight = nn.Parameter(master.bfloat16(), requires_grad=module.weight.requires_grad)
            module.register_buffer("master", master, persistent=False)
            specialise(module, Master)
            masters[module.weight] = master
    return masters


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Read the model by its float32 masters, without gradients; afterwards it trains on as before.

    Outside autocast a bf16 weight cannot be multiplied by float32 states.
    """
    layers = [module for module in model.modules() if isinstance(module, Master)]
    rounded = [layer.weight for layer in layers]
    for layer in layers:
        layer.weight = nn.Parameter(layer.master, requires_grad=False)
    try:
        yield
    finally:
        for layer, weight in zip(layers, rounded, strict=True):
            layer.weight = weight
