"""BERT's self-attention through `ops.self_attend`, which makes queries, keys and values by one product on a CPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded
from meltpoint.adapters.families.huggingface.specialise import specialise

_PARTS = ("query", "key", "value")


class FusedQkv(nn.Module):
    """A mixin for BERT's self-attention: another way to compute it where a batch comes without padding."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dropout: nn.Dropout
    num_attention_heads: int
    attention_head_size: int

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        """(1, rounded pieces, dim) → the same, and no attention weights."""
        unpadded: Unpadded | None = named.get(UNPADDED)
        if unpadded is None:
            return super().forward(hidden_states, *arguments, **named)
        ratio = self.dropout.p if self.training else 0.0
        projections, scale = (self.query, self.key, self.value), self.attention_head_size**-0.5
        attended = ops.self_attend(hidden_states[0], projections, self.num_attention_heads, unpadded, scale, ratio)
        return attended[None], None


def adopt(attention: nn.Module) -> bool:
    """Let an attention compute its queries, keys and values at once.

    Returns:
        Whether it is made as BERT's is; else it was left as it was.
    """
    parts = [getattr(attention, part, None) for part in _PARTS]
    if not all(type(part) is nn.Linear and part.bias is not None for part in parts):
        return False
    sizes = [getattr(attention, name, None) for name in ("num_attention_heads", "attention_head_size")]
    is_sized = all(isinstance(size, int) for size in sizes)
    if not is_sized or not isinstance(getattr(attention, "dropout", None), nn.Dropout):
        return False
    if getattr(attention, "is_decoder", False):
        return False
    specialise(attention, FusedQkv)
    return True
