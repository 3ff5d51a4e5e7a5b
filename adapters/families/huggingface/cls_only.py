"""The top layer for one state a row: where a head reads [CLS] alone, nothing else of that layer is computed.

A layer's keys and values are made of all pieces, but its queries, its output and its feed-forward part work on each
piece by itself (Vaswani et al. 2017, section 3). So the top layer's are needed for the first piece of each row only:
five sixths of that layer's products, a seventh of all of all-MiniLM-L6-v2's, are for states that nobody reads.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded
from meltpoint.adapters.families.huggingface.specialise import specialise

_PARTS = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output", "intermediate", "output",
)  # fmt: skip
"""The parts of BERT's layers, and of its descendants' that kept its code (RoBERTa, ELECTRA, …)."""


class FirstState(nn.Module):
    """A mixin for BERT's layer, which then computes one state a row where no other is read."""

    attention: Any
    intermediate: Any
    output: Any

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """(1, rounded pieces, dim) → (1, batch, dim), the rows' first pieces, where `Unpadded` asks for them alone."""
        unpadded: Unpadded | None = named.get(UNPADDED)
        if unpadded is None or not unpadded.cls_only:
            whole: Tensor = super().forward(hidden_states, *arguments, **named)
            return whole
        own, first = self.attention.self, unpadded.first
        states = hidden_states[0]
        read = states.index_select(0, first)
        heads = (-1, own.num_attention_heads, own.attention_head_size)
        query, key, value = (
            part(given).view(heads) for part, given in ((own.query, read), (own.key, states), (own.value, states))
        )
        ratio = own.dropout.p if self.training else 0.0
        attended = ops.attend_first(query, key, value, unpadded, own.attention_head_size**-0.5, ratio)
        joined = self.attention.output(attended.flatten(1), read)
        alone: Tensor = self.output(self.intermediate(joined), joined)
        return alone[None]


def adopt(layer: nn.Module) -> bool:
    """Let a layer leave out the states that nobody reads.

    Returns:
        Whether it is made as BERT's are; else it was left as it was.
    """
    named = dict(layer.named_modules())
    if any(part not in named for part in _PARTS) or getattr(layer, "is_decoder", False):
        return False
    if not isinstance(getattr(named["attention.self"], "num_attention_heads", None), int):
        return False
    specialise(layer, FirstState)
    return True
