"""A tiny Skip-thoughts model in the published layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

SKIP_WORDS = (
    "<eos>", "UNK", ".", "the", "old", "harbour", "ships", "came", "home", "and", "quiet", "film", "is", "long",
    "London", "prices", "rose", "n't", "The", "caf\u00e9", "a\u2028b", "home",
)  # fmt: skip
"""The dictionary's lines; `home` stands twice."""


def save_tiny_skip_thoughts(folder: Path, words: Sequence[str] = SKIP_WORDS, dim: int = 6, units: int = 5) -> Path:
    """Write a tiny random model: 2 · units numbers of uni-skip, as many of bi-skip."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def gru(prefix: str, size: int) -> dict[str, np.ndarray]:
        shapes = {
            "W": (dim, 2 * size), "b": (2 * size,), "U": (size, 2 * size),
            "Wx": (dim, size), "bx": (size,), "Ux": (size, size),
        }  # fmt: skip
        return {f"{prefix}_{name}": draw(*shape) for name, shape in shapes.items()}

    more = {"Wemb": draw(4, dim), "history_errs": np.array([1.5, None], dtype=object)}  # neither is ever asked for
    np.savez(folder / "uni_skip.npz", **gru("encoder", 2 * units), **more)
    np.savez(folder / "bi_skip.npz", **gru("encoder", units), **gru("encoder_r", units), **more)
    for name in ("btable", "utable"):
        np.save(folder / f"{name}.npy", draw(len(words), dim))
    (folder / "dictionary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="")
    return folder


@pytest.fixture(scope="session")
def skip_thoughts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Skip-thoughts model; tests must not change it."""
    return save_tiny_skip_thoughts(tmp_path_factory.mktemp("skip_thoughts"))
