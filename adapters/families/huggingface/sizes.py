"""How large an encoder is, read off its configuration and its weight files' headers."""

from __future__ import annotations

import json
import math
from pathlib import Path

from safetensors import safe_open

from meltpoint.adapters.families.huggingface.files import weight_files

STATE_SIZES = ("hidden_size", "dim", "d_model")
"""What families call the size of a state in config.json."""


def state_size(folder: Path) -> int:
    """How many numbers a state has.

    Raises:
        ValueError: config.json does not say.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = next((config[name] for name in STATE_SIZES if isinstance(config.get(name), int)), None)
    if found is None:
        raise ValueError(f"{folder / 'config.json'} names no size of a state ({', '.join(STATE_SIZES)}).")
    return int(found)


RESERVED_POSITIONS = {
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Model types whose first positions, up to the padding piece's number, are never a piece's own."""

UNKNOWN_LENGTH = 100_000
"""transformers writes 1e30 as a tokenizer's longest input where it does not know it."""


def longest_input(folder: Path) -> int | None:
    """How many pieces an encoder takes, special tokens included; None where its files do not say."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    positions, known = config.get("max_position_embeddings"), tokenizer.get("model_max_length")
    limits = []
    if isinstance(positions, int):
        pad = config.get("pad_token_id") if config.get("model_type") != "mpnet" else 1
        reserved = config.get("model_type") in RESERVED_POSITIONS and isinstance(pad, int)
        limits.append(positions - pad - 1 if reserved else positions)
    if isinstance(known, int | float) and known < UNKNOWN_LENGTH:
        limits.append(int(known))
    return min(limits, default=None)


def weights_without_embeddings(folder: Path) -> int:
    """The weights that a forward pass multiplies by: all matrices but look-up tables and the language-model head."""
    count = 0
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                shape = file.get_slice(name).get_shape()
                if len(shape) > 1 and "embedding" not in name and not name.startswith(("cls.", "lm_head.", "pooler.")):
                    count += math.prod(shape)
    return count
