"""Encoders of published sizes with random weights, and sentences of made-up words, for speeds without a hub."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from meltpoint.tasks.core.task import Example, Task

WORDS = 28_000
SIZES: dict[str, dict[str, int]] = {
    "bert_base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
"""BERT-base (Devlin et al. 2018), all-MiniLM-L6-v2, and one for tests on a CPU."""

TASK = Task("made_up", "sentence_classification", "accuracy", "", {}, labels=("no", "yes"))


def encoder_folder(size: str, folder: Path) -> Path:
    """Write a BERT of a size, in the hub's layout."""
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = dict(SIZES[size])
    config = transformers.BertConfig(vocab_size=30_522, **shape)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def sentences(count: int, pieces: int | None, seed: int) -> list[Example]:
    """Sentences of a length in subword tokens, or of SST-2's lengths (19 words in the mean, 52 at most) if None.

    The label is whether the first word's number is even.
    """
    draw = random.Random(seed)
    found = []
    for number in range(count):
        length = pieces - 2 if pieces is not None else min(52, max(2, round(draw.lognormvariate(2.8, 0.55))))
        words = [draw.randrange(WORDS) for _ in range(length)]
        found.append(Example(str(number), texts=(" ".join(f"w{word}" for word in words),), label=words[0] % 2))
    return found


def work_of_an_example(size: str, pieces: int) -> float:
    """Floating-point operations of a training step's products for one sentence: 6 a weight and subword token, and
    attention's 12 · layers · pieces² · dim (Kaplan et al. 2020, table 1)."""
    shape = SIZES[size]
    dim, layers, inner = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    weights = layers * (4 * dim * dim + 2 * dim * inner)
    return float(6 * weights * pieces + 12 * layers * pieces**2 * dim)
