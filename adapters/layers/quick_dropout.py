"""`nn.Dropout` through `ops.dropout`, which has a quick mask on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from meltpoint.adapters import ops


class QuickDropout(nn.Dropout):
    """`nn.Dropout`; its `inplace` is not looked at."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop in training mode."""
        return ops.dropout(input, self.p) if self.training else input


def replace_dropouts(model: nn.Module) -> None:
    """Put a `QuickDropout` of the same ratio where a plain `nn.Dropout` is."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, QuickDropout(child.p))
