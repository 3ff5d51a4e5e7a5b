"""The end of BERT's half layers, `LayerNorm(dropout(dense(x)) + residual)`, through `ops.residual_norm`."""

from __future__ import annotations

from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.families.huggingface.specialise import specialise


class FusedOutput(nn.Module):
    """A mixin for BERT's outputs: dropout, residual and norm as one operation."""

    dense: nn.Linear
    dropout: nn.Dropout
    LayerNorm: nn.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(…, wide), (…, dim) → (…, dim)."""
        ratio = self.dropout.p if self.training else 0.0
        return ops.residual_norm(self.dense(hidden_states), input_tensor, self.LayerNorm, ratio)


def adopt(output: nn.Module) -> bool:
    """Let the end of half a layer compute its dropout, residual and norm at once.

    Returns:
        Whether it is made as BERT's are; else it was left as it was.
    """
    if [name for name, _ in output.named_children()] != ["dense", "LayerNorm", "dropout"]:
        return False
    dense, norm, dropout = output.children()
    if type(dense) is not nn.Linear or type(norm) is not nn.LayerNorm or not isinstance(dropout, nn.Dropout):
        return False
    if norm.weight is None or norm.bias is None or norm.normalized_shape != (dense.out_features,):
        return False
    specialise(output, FusedOutput)
    return True
