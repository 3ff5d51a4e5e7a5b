"""transformers' exact GELU through `ops.gelu`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from meltpoint.adapters import ops


class Gelu(nn.Module):
    """GELU with the exact error function (Hendrycks & Gimpel 2016)."""

    def forward(self, states: Tensor) -> Tensor:
        """Element by element, of the same type."""
        return ops.gelu(states)


def replace_gelus(model: nn.Module) -> None:
    """Put a `Gelu` where transformers' exact one is."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is GELUActivation and child.act is functional.gelu:
                setattr(parent, name, Gelu())
