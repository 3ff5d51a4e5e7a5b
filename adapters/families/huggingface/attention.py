"""Attention for encoders, registered in transformers under its own name: torch's attention, also for unpadded rows.

If a head reads only [CLS], only [CLS] is computed in the top layer. A layer's keys and values use all pieces, but its
queries, its output and its feed-forward part treat each piece separately (Vaswani et al. 2017, section 3), so they are
needed only for the first piece of each row. Otherwise five sixths of that layer's products, a seventh of
all-MiniLM-L6-v2's, would compute states that nothing reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded

NAME = "meltpoint_unpadded"
"""Its `attn_implementation` in transformers."""


def register() -> str:
    """Register this attention in transformers.

    Returns:
        its registered name.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME


def attention_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """transformers' own mask, (batch, 1, pieces, pieces) bool, or None if nothing is masked.

    On a GPU a given mask is always used: checking that it masks nothing would make transformers wait for the GPU.
    """
    given = named.get("attention_mask")
    if given is not None and given.device.type != "cpu":
        named["allow_is_bidirectional_skip"] = False
    mask: Tensor | None = sdpa_mask(*arguments, **named)
    return mask


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention of each layer, called by transformers; transformers' own if a batch keeps its padding.

    Args:
        query, key, value: (batch, heads, pieces, dim).
        attention_mask: (batch, 1, pieces, pieces) bool, True where attended, or None.
        others: under `UNPADDED`, the rows of a batch without padding; (batch, pieces) is then (1, rounded pieces).
            Under `sliding_window`, the number of pieces on each side that a piece attends to, plus 1 (ModernBERT).

    Returns:
        ((batch, pieces, heads, dim), None).
    """
    unpadded: Unpadded | None = others.get(UNPADDED)
    if unpadded is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # (1, heads, rounded pieces, dim) → (rounded pieces, heads, dim)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return attend_unpadded(query, key, value, unpadded, scale, dropout, others.get("sliding_window"))[None], None


def attend_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float,
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query · keyᵀ · scale), with dropout, · value (Vaswani et al. 2017, eq. 1), within each row of a batch.

    Args:
        query, key, value: (rounded pieces, heads, dim).
        unpadded: the layout of the batch's rows.
        dropout: the share of attention weights that is dropped.
        window: the distance from which a piece is not attended to; None if every piece is.

    Returns:
        (rounded pieces, heads, dim); pieces after the real ones have no meaning.
    """
    rows = [unpadded.pad(states).transpose(1, 2) for states in (query, key, value)]  # (batch, heads, pieces, dim)
    attended = functional.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], attn_mask=unpadded.key_mask(window), dropout_p=dropout, scale=scale
    )
    return unpadded.unpad(attended.transpose(1, 2))


_PARTS = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output", "intermediate", "output",
)  # fmt: skip
"""The parts of BERT's layers, and of layers with the same code (RoBERTa, ELECTRA, …)."""


class FirstState(nn.Module):
    """A mixin for BERT's layer that computes one state per row if no other is read."""

    own_class: Any
    attention: Any
    intermediate: Any
    output: Any

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """(1, rounded pieces, dim) → (1, batch, dim), the rows' first pieces, if `Unpadded` needs only these."""
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
        attended = attend_first(query, key, value, unpadded, own.attention_head_size**-0.5, ratio)
        joined = self.attention.output(attended.flatten(1), read)
        alone: Tensor = self.output(self.intermediate(joined), joined)
        return alone[None]


def adopt(layer: nn.Module) -> bool:
    """Make a layer skip the states that nothing reads.

    Returns:
        Whether its parts are BERT's; otherwise it is unchanged.
    """
    named = dict(layer.named_modules())
    if any(part not in named for part in _PARTS) or getattr(layer, "is_decoder", False):
        return False
    if not isinstance(getattr(named["attention.self"], "num_attention_heads", None), int):
        return False
    own = type(layer)
    # A subclass of its class, so that the layer stays the same object, with its weights, their names and its hooks.
    layer.__class__ = type(f"FirstState{own.__name__}", (FirstState, own), {"own_class": own})
    return True


def restore(layer: nn.Module) -> None:
    """Undo `adopt`."""
    assert isinstance(layer, FirstState), "the layer was adopted"
    layer.__class__ = layer.own_class


def attend_first(query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float) -> Tensor:
    """Attention with one query per row, from its first piece.

    Args:
        query: (batch, heads, dim), in the batch's order.
        key, value: (rounded pieces, heads, dim).
        unpadded: the layout of the batch's rows.
        dropout: the share of attention weights that is dropped.

    Returns:
        (batch, heads, dim).
    """
    keys, values = (unpadded.pad(states).transpose(1, 2) for states in (key, value))  # (batch, heads, pieces, dim)
    scores = query[:, :, None] @ keys.transpose(2, 3) * scale
    weights = torch.softmax(scores.masked_fill(~unpadded.key_mask(), float("-inf")), -1)
    return (functional.dropout(weights, dropout) @ values).squeeze(2)
