"""Sizes, layer groups and attention of an architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded
from meltpoint.adapters.families.huggingface.files import weight_files
from meltpoint.adapters.families.huggingface.supported import read_config
from meltpoint.tasks.core.files import parse_json, read_bytes

STATE_SIZES = ("hidden_size", "dim", "d_model")
"""The keys of config.json that different model types use for the size of a hidden state."""


def state_size(folder: Path) -> int:
    """The size of a hidden state.

    Raises:
        ValueError: config.json does not name it.
    """
    config = read_config(folder)
    size = next((config[name] for name in STATE_SIZES if isinstance(config.get(name), int)), None)
    if size is None:
        raise ValueError(f"{folder / 'config.json'} names no size of a state ({', '.join(STATE_SIZES)}).")
    return int(size)


RESERVED_POSITIONS = {
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Model types that number positions from `pad_token_id + 1`, so that the first position embeddings are never used."""

UNKNOWN_LENGTH = 100_000
"""Larger values of `model_max_length` mean "unknown"; transformers writes 1e30."""


def longest_input(folder: Path) -> int | None:
    """The longest input of an encoder in pieces, special tokens included; None if its files do not name it."""
    config, tokenizer = read_config(folder), _tokenizer_config(folder / "tokenizer_config.json")
    positions, known = config.get("max_position_embeddings"), tokenizer.get("model_max_length")
    limits = []
    if isinstance(positions, int):
        pad = config.get("pad_token_id") if config.get("model_type") != "mpnet" else 1
        is_reserved = config.get("model_type") in RESERVED_POSITIONS
        limits.append(positions - pad - 1 if is_reserved and isinstance(pad, int) else positions)
    if isinstance(known, int | float) and 0 < known < UNKNOWN_LENGTH:
        limits.append(int(known))
    return min(limits, default=None)


def _tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = parse_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the encoder again.") from None
    return found if isinstance(found, dict) else {}


def weights_without_embeddings(folder: Path) -> int:
    """The number of weights that a forward pass multiplies by: all matrices except embeddings, LM head and pooler."""
    count = 0
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not iterable itself
                shape = file.get_slice(name).get_shape()
                if len(shape) > 1 and "embedding" not in name and not name.startswith(("cls.", "lm_head.", "pooler.")):
                    count += math.prod(shape)
    return count


def find_groups(model: nn.Module, states: Sequence[Tensor]) -> dict[str, int]:
    """The name of each parameter, and the number of its layer group, 0 for the embeddings.

    A layer has the parameters, of those in lists of modules, that its output is the first to depend on, whether the
    family keeps them in one list or (XLM, FlauBERT) in one for each part of a layer. Outside lists, those that the
    first layer's output depends on lie below or beside it (also DeBERTa's relative positions, which every layer
    reads), the rest above (ModernBERT's final norm).

    Args:
        model: the encoder.
        states: all layers' states of a text, embeddings first, with their graph.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    listed = {id(parameter) for module in lists for parameter in module.parameters()}
    named = sorted(model.named_parameters(), key=lambda pair: id(pair[1]) not in listed)
    found = _first_layers(states)
    first = {name: found[id(parameter)] for name, parameter in named if id(parameter) in found}
    below = 1 if len(states) > 2 else 0  # a single layer's output is already past the norm
    top = max(first.get(name, 0) for name, parameter in named if id(parameter) in listed)
    groups = {}
    for name, parameter in named:
        if id(parameter) in listed:
            groups[name] = first[name] if name in first else _first_beside(name, first)
        else:
            number = min(first.get(name, 0), top)
            groups[name] = 0 if number <= below else number
    return groups


def _first_layers(states: Sequence[Tensor]) -> dict[int, int]:
    """The id of each parameter and the number of the first of the states that depend on it, by autograd's graph."""
    first: dict[int, int] = {}
    seen = set()
    for number, state in enumerate(states):
        nodes = [state.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):  # a leaf of the graph
                first[id(node.variable)] = number
            nodes.extend(below for below, _ in node.next_functions)
    return first


def _first_beside(name: str, first: Mapping[str, int]) -> int:
    """The first layer of the parameters nearest to one that nothing depends on (Longformer's global attention)."""
    while name:
        name = name.rpartition(".")[0]
        near = [number for other, number in first.items() if other.startswith(f"{name}.")]
        if near:
            return min(near)
    return 0


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
