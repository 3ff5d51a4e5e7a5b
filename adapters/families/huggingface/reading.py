"""The facts that decide how a batch is read: positions, lengths, and rows that show whether padding reaches states."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from meltpoint.adapters.data.batch import Row
from meltpoint.adapters.data.tokenising import PieceTokenizer

UNBOUNDED = 100_000
"""transformers writes 1e30 as a tokenizer's longest input where it does not know it."""


_ODD_PIECES = 24
"""The most special pieces of the rows that are checked: those that embeddings take for padding, then the lowest."""


def _position_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings of absolute positions."""
    named = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    return [module for module in named if isinstance(module, nn.Embedding)]


def position_padding(model: nn.Module) -> int | None:
    """The piece that RoBERTa's kin do not count when they number positions, from the next number on; None elsewhere."""
    return max((table.padding_idx for table in _position_tables(model) if table.padding_idx is not None), default=None)


def positions_after_padding(pieces: Tensor, padding: int) -> Tensor:
    """RoBERTa's positions, (batch, pieces): a literal padding piece within a text has none of its own either."""
    is_counted = (pieces != padding).long()
    return is_counted.cumsum(1) * is_counted + padding


def length_of_change(config: Any) -> int:
    """The length above which a family reads the whole batch in another way, as its short texts would not be alone."""
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird
        return int((5 + 2 * config.num_random_blocks) * config.block_size)
    ropes = getattr(config, "rope_parameters", None) or {}
    parts = [
        part for part in (ropes, *ropes.values()) if isinstance(part, dict) and part.get("rope_type") == "longrope"
    ]
    return min((int(part["original_max_position_embeddings"]) for part in parts), default=UNBOUNDED)


def longest_input(model: Any, tokenizer: Any) -> int:
    """The longest input in subword tokens: the position embeddings, less those that RoBERTa keeps for padding."""
    limit = int(getattr(model.config, "max_position_embeddings", UNBOUNDED))
    padding = position_padding(model)
    reserved = 0 if padding is None else padding + 1
    limit = min([limit, *(table.num_embeddings - reserved for table in _position_tables(model))])
    known = tokenizer.model_max_length  # whatever tokenizer_config.json has under that name
    is_length = isinstance(known, int | float) and 0 < known < UNBOUNDED
    return min(limit, int(known)) if is_length else limit


def rows_to_check(model: Any, pieces_of: PieceTokenizer, tokenizer: Any) -> list[Row]:
    """Rows of several lengths, one of them with every piece that a family may take for padding or count apart.

    Args:
        model: the encoder.
        pieces_of: its tokenizer as ours.
        tokenizer: its tokenizer as transformers'.
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
