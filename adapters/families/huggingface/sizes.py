"""The sizes of an encoder, from its configuration and its weight files' headers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from safetensors import safe_open

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
