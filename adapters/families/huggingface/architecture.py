"""Facts of an architecture that its code reveals, and the attention that Meltpoint puts into its layers.

A layer group is found by the forward pass: a parameter belongs to the first layer whose output depends on it.

The attention is torch's, also for unpadded rows, registered in transformers under its own name. If a head reads only
[CLS], only [CLS] is computed in the top layer. A layer's keys and values use all pieces, but its queries, its output
and its feed-forward part treat each piece separately (Vaswani et al. 2017, section 3), so they are needed only for the
first piece of each row. Otherwise five sixths of that layer's products, a seventh of all-MiniLM-L6-v2's, would compute
states that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from meltpoint.adapters.data.batch import UNPADDED, Row, Unpadded
from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.families.huggingface.pretrained import UNBOUNDED
from meltpoint.adapters.layers.side_by_side import SideBySide

_ODD_PIECES = 24
"""The most special pieces in the checked rows: first the embeddings' padding pieces, then the lowest ids."""


def _position_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings of absolute positions."""
    named = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    return [module for module in named if isinstance(module, nn.Embedding)]


def position_padding(model: nn.Module) -> int | None:
    """The piece that RoBERTa-like models skip when they number positions, starting after its id; None for others."""
    return max((table.padding_idx for table in _position_tables(model) if table.padding_idx is not None), default=None)


def positions_after_padding(pieces: Tensor, padding: int) -> Tensor:
    """RoBERTa's positions, (batch, pieces): a literal padding piece within a text gets no number either."""
    is_counted = (pieces != padding).long()
    return is_counted.cumsum(1) * is_counted + padding


def length_of_change(config: Any) -> int:
    """The length above which a family reads a whole batch differently, including texts that are short on their own."""
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird
        return int((5 + 2 * config.num_random_blocks) * config.block_size)
    ropes = getattr(config, "rope_parameters", None) or {}
    parts = [
        part for part in (ropes, *ropes.values()) if isinstance(part, dict) and part.get("rope_type") == "longrope"
    ]
    return min((int(part["original_max_position_embeddings"]) for part in parts), default=UNBOUNDED)


def window_of(config: Any) -> int | None:
    """The number of pieces on each side that some layers attend to (ModernBERT); None if all layers see whole rows."""
    # NeoMME refuses the attribute, which may vary by layer; ModernBERT's is no key of its dictionary.
    window = config.to_dict().get("sliding_window") or getattr(config, "sliding_window", None)
    return window if isinstance(window, int) else None


def positions_of(model: Any) -> int:
    """The number of the position embeddings that are used, without RoBERTa's reserve for padding."""
    padding = position_padding(model)
    reserved = 0 if padding is None else padding + 1
    limit = int(getattr(model.config, "max_position_embeddings", UNBOUNDED))
    return min([limit, *(table.num_embeddings - reserved for table in _position_tables(model))])


def rows_to_check(model: Any, pieces_of: PieceTokenizer, tokenizer: Any) -> list[Row]:
    """Rows of several lengths; one has every piece that a family may treat as padding or number separately.

    Args:
        model: the encoder.
        pieces_of: its tokenizer, ours.
        tokenizer: its tokenizer, transformers'.
    """
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    padding = {table.padding_idx for table in tables if table.padding_idx is not None}
    odd = sorted({*range(5), *tokenizer.all_special_ids, *padding}, key=lambda piece: (piece not in padding, piece))
    known = model.get_input_embeddings().num_embeddings
    a, b = pieces_of.word("a"), pieces_of.word("b")
    special = [*a, *[piece for piece in odd if piece < known][:_ODD_PIECES], *b]
    rows = []
    for pieces in ([*a, *b], special, [*special, *a, *b], [*b, *a]):
        size = pieces_of.max_pieces - len(pieces_of.frame(())[0])
        framed, segments, _ = pieces_of.frame(pieces[:size])
        rows.append(Row(0, 0, tuple(framed), tuple(segments), (), None))
    return rows


def find_groups(model: nn.Module, states: Sequence[Tensor]) -> dict[str, int]:
    """Parameter name → the number of its layer group, 0 for the embeddings.

    Among parameters in module lists, a layer owns those that its output is the first to depend on, whether the family
    keeps one list or (XLM, FlauBERT) one list for each part of a layer. Outside lists, parameters that the first
    layer's output depends on are below or next to it (also DeBERTa's relative positions, which every layer reads); the
    rest are above (ModernBERT's final norm).

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
    """Parameter id → the number of the first state that depends on it, from autograd's graph."""
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
    """The first layer among the nearest parameters of one that no state depends on (Longformer's global attention)."""
    while name:
        name = name.rpartition(".")[0]
        near = [number for other, number in first.items() if other.startswith(f"{name}.")]
        if near:
            return min(near)
    return 0


def layer_stack(model: nn.Module) -> nn.ModuleList:
    """The list of the transformer's layers: the list with most of the weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda modules: sum(parameter.numel() for parameter in modules.parameters()))


def supports_checkpointing(model: Any) -> bool:
    """True if transformers can recompute each of the model's layers in the backward pass."""
    layers = layer_stack(model)
    return model.supports_gradient_checkpointing and all(isinstance(own, GradientCheckpointingLayer) for own in layers)


def set_dropout(model: nn.Module, ratio: float) -> None:
    """Set every dropout's ratio.

    Most families hold an `nn.Dropout` and hand its ratio to the fused attention; some (ModernBERT) keep the ratio of
    the attention as a plain number on the module.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = ratio
            continue
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, ratio)


def make_dropouts_real(model: nn.Module) -> None:
    """Insert a dropout wherever a ratio of 0 made a family build an identity instead (ModernBERT's `out_drop`)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Identity) and "drop" in name:
                setattr(parent, name, nn.Dropout(0.0))


# The attention.


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
    if dropout > 0.0 and query.device.type == "cpu":
        return attend_by_length(query, key, value, unpadded, scale, dropout, window)
    rows = [unpadded.pad(states).transpose(1, 2) for states in (query, key, value)]  # (batch, heads, pieces, dim)
    attended = functional.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], attn_mask=unpadded.key_mask(window), dropout_p=dropout, scale=scale
    )
    return unpadded.unpad(attended.transpose(1, 2))


def attend_by_length(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float, window: int | None
) -> Tensor:  # fmt: skip
    """`attend_unpadded` with dropout on a CPU.

    torch has no fused attention for that, and its plain one works on the whole padded batch in float32. A few rows of
    similar length at a time have little padding; their products run in the states' precision, their softmax in float32.
    """
    found = []
    for pieces, part in unpadded.parts:
        flat = [part.rows_of(states[pieces]) for states in (query, key, value)]  # (batch · pieces, heads, dim)
        rows = [states.view(-1, part.longest, *states.shape[1:]).transpose(1, 2) for states in flat]
        scores = (rows[0] * scale) @ rows[1].transpose(2, 3)
        scores = scores.masked_fill(~part.key_mask(window), -torch.inf)
        weights = functional.dropout(scores.softmax(-1, dtype=torch.float32).to(scores.dtype), dropout)
        found.append((weights @ rows[2]).transpose(1, 2).flatten(0, 1).index_select(0, part.places))
    rest = query.new_zeros(len(query) - len(unpadded.places), *query.shape[1:])
    return torch.cat([*found, rest])


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


# LoRA.


ADAPTER = "default"  # peft's name of the only adapter


def lora_parts(model: nn.Module) -> list[Any]:
    """The layers that LoRA's matrices were added to."""
    from peft.tuners.lora import LoraLayer

    return [part for part in model.modules() if isinstance(part, LoraLayer)]


def put_side_by_side(models: Sequence[Sequence[Any]]) -> None:
    """Put the LoRA matrices of several models' layers side by side into the first model's."""
    for same in zip(*models, strict=True):
        part = same[0]
        factors = [one.scaling[ADAPTER] / part.scaling[ADAPTER] for one in same]
        part.lora_A[ADAPTER] = SideBySide([one.lora_A[ADAPTER] for one in same], [1.0] * len(same))
        part.lora_B[ADAPTER] = SideBySide([one.lora_B[ADAPTER] for one in same], factors)


def name_without(name: str) -> str:
    """The name of a parameter before LoRA's matrices were added: that of the layer's own weight."""
    return re.sub(r"\.lora_[AB]\.default\.weight$", ".weight", name).replace(".base_layer.", ".")
