"""The attention of `ops` as transformers calls it, registered under a name of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from meltpoint.adapters import ops
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded

NAME = "meltpoint_short"
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
    """The attention of each layer, called by transformers: `ops.attend`, or transformers' own for what that has not.

    Args:
        query, key, value: (batch, heads, pieces, dim).
        attention_mask: (batch, 1, pieces, pieces) bool, True where attended, or None.
        others: under `UNPADDED` the rows of a batch without padding; (batch, pieces) is then (1, rounded pieces).

    Returns:
        ((batch, pieces, heads, dim), None).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    unpadded: Unpadded | None = others.get(UNPADDED)
    if unpadded is not None:
        # (1, heads, rounded pieces, dim) → (rounded pieces, heads, dim)
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        return ops.attend_unpadded(query, key, value, unpadded, scale, dropout)[None], None
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    unusual = any(others.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    masked = attention_mask is None or attention_mask.dtype == torch.bool
    if unusual or causal or not masked or not query.shape == key.shape == value.shape:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
        return found
    return ops.attend(query, key, value, attention_mask, scale, dropout).transpose(1, 2).contiguous(), None
