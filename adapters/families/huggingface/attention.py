"""Our attention as transformers calls it: registered under a name of its own, for short rows or whole batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from meltpoint.adapters.cpu.attention import LONGEST, attend
from meltpoint.adapters.cpu.unpadded_attention import attend_unpadded, attends_short
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded

NAME = "meltpoint_short"
"""What `attn_implementation` calls this in transformers."""


def register() -> str:
    """Make transformers know this attention.

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
    """What transformers calls in each layer: `attend` on short CPU sequences, else torch's kernels.

    Args:
        query, key, value: (batch, heads, pieces, dim).
        attention_mask: (batch, 1, pieces, pieces) bool, True where attended, or None.
        others: under `UNPADDED` the rows of a batch without padding; (batch, pieces) is then (1, rounded pieces).

    Returns:
        ((batch, pieces, heads, dim), None).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    unpadded = others.get(UNPADDED)
    if unpadded is not None:
        return _forward_unpadded(query, key, value, unpadded, scale, dropout), None
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    unusual = any(others.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    masked = attention_mask is None or attention_mask.dtype == torch.bool
    short = query.shape[2] <= LONGEST or dropout > 0.0
    same = query.shape == key.shape == value.shape
    if query.device.type != "cpu" or unusual or causal or not (masked and short and same):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
        return found
    return attend(query, key, value, attention_mask, scale, dropout).transpose(1, 2).contiguous(), None


def _forward_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """(1, heads, rounded pieces, dim) → (1, rounded pieces, heads, dim): each row attends to itself."""
    pieces = [states[0].transpose(0, 1) for states in (query, key, value)]  # (rounded pieces, heads, dim)
    if attends_short(query, unpadded, dropout):
        return attend_unpadded(pieces[0], pieces[1], pieces[2], unpadded, scale, dropout)[None]
    rows = [unpadded.pad(states).transpose(1, 2) for states in pieces]  # (batch, heads, pieces, dim)
    attended = functional.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], attn_mask=unpadded.key_mask(), dropout_p=dropout, scale=scale
    )
    return unpadded.unpad(attended.transpose(1, 2))[None]
