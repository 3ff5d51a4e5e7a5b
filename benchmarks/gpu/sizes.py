"""Sizes of the benchmarked encoder and workload, with random weights and inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from meltpoint import tasks
from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.tasks.core.task import Example

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP = 2, 3


@dataclass(frozen=True)
class Size:
    """The size of an encoder and of a workload.

    Attributes:
        layers, dim, heads, feed_forward, vocabulary, positions: the dimensions of a BERT.
        length: subword tokens of every input including special tokens, so that there is no padding.
        batch: examples per step.
        steps: steps per epoch.
        epochs: epochs per run; the first one is a warm-up and is not counted.
        matmuls: sizes of the square products whose best rate is the limit.
        together: number of frozen trials that are trained together.
    """

    layers: int
    dim: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    length: int
    batch: int
    steps: int
    epochs: int
    matmuls: tuple[int, ...]
    together: int

    @property
    def examples(self) -> int:
        """Examples per epoch."""
        return self.batch * self.steps


BASE = Size(12, 768, 12, 3072, 30522, 512, 128, 64, 50, 3, (4096, 8192, 16384), 64)
"""BERT-base (Devlin et al. 2019, section 3) at length 128."""

MINILM = Size(6, 384, 12, 1536, 30522, 512, 48, 32, 120, 4, (4096, 8192), 16)
"""all-MiniLM-L6-v2 (Wang et al. 2020) at the length of short sentence pairs and the usual batch of fine-tuning."""

TINY = Size(2, 32, 2, 64, 128, 64, 16, 4, 3, 2, (64, 128), 3)
"""A toy size that runs anywhere in seconds."""


def config_of(size: Size) -> transformers.BertConfig:
    """The configuration of a BERT of this size."""
    return transformers.BertConfig(
        vocab_size=size.vocabulary, hidden_size=size.dim, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=size.feed_forward,
        max_position_embeddings=size.positions,
    )  # fmt: skip


def save_encoder(size: Size, folder: Path) -> str:
    """Write a random encoder and a tokenizer in the hub's layout, and return their name for Meltpoint."""
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.BertModel(config_of(size), add_pooling_layer=False).save_pretrained(folder)
    words = [*SPECIALS, *(f"w{number}" for number in range(size.vocabulary - len(SPECIALS)))]
    transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return f"hf:{folder}"


def random_data(size: Size) -> EncodedData:
    """Rows of exactly `length` subword tokens with random classes, for one epoch; dev is one batch of them."""
    task = tasks.get("demo_sentiment")
    draw = np.random.default_rng(0)
    middle = draw.integers(len(SPECIALS), size.vocabulary, (size.examples, size.length - 2)).tolist()
    labels = draw.integers(0, task.outputs, size.examples).tolist()
    rows = [
        Row(index, 0, (CLS, *pieces, SEP), (0,) * size.length, (), label)
        for index, (pieces, label) in enumerate(zip(middle, labels, strict=True))
    ]
    dev = rows[: size.batch]
    gold = [Example(str(row.example), label=row.label) for row in dev]
    return EncodedData(task, EncodedSplit(rows, len(rows)), EncodedSplit(dev, len(dev)), gold)
