"""How large an encoder is, read off its weight files' headers."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import safe_open

from meltpoint.adapters.encoders._files import weight_files


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
