"""A tiny random BERT, a small task of one's own and a quick space, with which whole sweeps run in seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

GOOD, BAD = ("fine", "lovely", "great", "warm"), ("dull", "awful", "cold", "poor")
THINGS = ("film", "meal", "hotel", "story", "song", "walk")

TASK_YAML = """\
name: tiny_reviews
kind: sentence_classification
files: {train: train.tsv, dev: dev.tsv, test: test.tsv}
format: tsv
header: true
columns: {text: sentence, label: label}
labels: [bad, good]
metric: accuracy
"""

QUICK_SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-4, 1.0e-2], first: 1.0e-3, grid: [1.0e-3, 1.0e-2]}
  dropout: {choice: [0.0, 0.1], first: 0.1}
  epochs: 2
  batch_size: 8
"""


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`hf:FOLDER` of a random two-layer BERT."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny-bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was", "and", *GOOD, *BAD, *THINGS]
    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=True)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file with its three splits beside it."""
    folder = tmp_path_factory.mktemp("tiny-task")
    draw = random.Random(0)
    for split, count in (("train", 32), ("dev", 16), ("test", 24)):
        rows = ["sentence\tlabel"]
        for index in range(count):
            tone = (BAD, GOOD)[index % 2]
            sentence = f"the {draw.choice(THINGS)} was {draw.choice(tone)} and {draw.choice(tone)}"
            rows.append(f"{sentence}\t{('bad', 'good')[index % 2]}")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    path = folder / "tiny_reviews.yaml"
    path.write_text(TASK_YAML, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def quick_space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space whose trials take a second."""
    path = tmp_path_factory.mktemp("space") / "quick.yaml"
    path.write_text(QUICK_SPACE, encoding="utf-8")
    return path
