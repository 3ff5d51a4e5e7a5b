"""The attention of encoders, registered in transformers under its own name: torch's, also for rows without padding."""

from __future__ import annotations

from typing import Any

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
        its name there.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME


def attention_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """transformers' own mask, (batch, 1, pieces, pieces) bool, or None where nothing is masked.

    On a GPU a given mask is always used: to find out that it masks nothing, transformers would wait for the GPU.
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
    """The attention of each layer, called by transformers; its own where a batch has its padding.

    Args:
        query, key, value: (batch, heads, pieces, dim).
        attention_mask: (batch, 1, pieces, pieces) bool, True where attended, or None.
        others: under `UNPADDED` the rows of a batch without padding; (batch, pieces) is then (1, rounded pieces).

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
    return attend_unpadded(query, key, value, unpadded, scale, dropout)[None], None


def attend_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """softmax(query · keyᵀ · scale), dropped, · value (Vaswani et al. 2017, eq. 1), within each row of a batch.

    Args:
        query, key, value: (rounded pieces, heads, dim).
        unpadded: which pieces make a row.
        dropout: the share of attention weights that is dropped.

    Returns:
        (rounded pieces, heads, dim); pieces behind the real ones have no meaning.
    """
    rows = [unpadded.pad(states).transpose(1, 2) for states in (query, key, value)]  # (batch, heads, pieces, dim)
    attended = functional.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], attn_mask=unpadded.key_mask(), dropout_p=dropout, scale=scale
    )
    return unpadded.unpad(attended.transpose(1, 2))
