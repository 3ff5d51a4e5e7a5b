"""Facts of an architecture: its longest input, how it numbers positions, and which parameters make a layer group.

A layer group is found by the forward pass: a parameter belongs to the first layer whose output depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from meltpoint.adapters.data.batch import Row
from meltpoint.adapters.data.tokenising import PieceTokenizer

UNBOUNDED = 100_000
"""Lengths from here on mean "no limit"; transformers writes 1e30 as a tokenizer's unknown longest input."""


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


def longest_input(model: Any, tokenizer: Any) -> int:
    """The longest input in subword tokens: the position embeddings, minus RoBERTa's reserve for padding."""
    limit = int(getattr(model.config, "max_position_embeddings", UNBOUNDED))
    padding = position_padding(model)
    reserved = 0 if padding is None else padding + 1
    limit = min([limit, *(table.num_embeddings - reserved for table in _position_tables(model))])
    known = tokenizer.model_max_length  # the unchecked value from tokenizer_config.json
    is_length = isinstance(known, int | float) and 0 < known < UNBOUNDED
    return min(limit, int(known)) if is_length else limit


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


def make_dropouts_real(model: nn.Module) -> None:
    """Insert a dropout wherever a ratio of 0 made a family build an identity instead (ModernBERT's `out_drop`)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Identity) and "drop" in name:
                setattr(parent, name, nn.Dropout(0.0))
