"""A tiny random BERT, a small task of one's own and a quick space, with which whole sweeps run in seconds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

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


def save_tiny_bert(folder: Path, words: Iterable[str]) -> None:
    """Save a random two-layer BERT with a tokenizer that knows the words."""
    import torch
    import transformers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    transformers.BertTokenizer(vocab=vocabulary, do_lower_case=True).save_pretrained(folder)


def write_splits(folder: Path, sizes: Mapping[str, int], row: Callable[[int, random.Random], tuple[str, str]]) -> None:
    """Write each split of a task as a file of tab-separated values.

    Args:
        sizes: split → its number of rows.
        row: the sentence and the label of a row, by its number and with a generator for its draws.
    """
    draw = random.Random(0)
    for split, count in sizes.items():
        rows = ["sentence\tlabel", *("\t".join(row(number, draw)) for number in range(count))]
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`hf:FOLDER` of a random two-layer BERT."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    save_tiny_bert(folder, ["the", "was", "and", *GOOD, *BAD, *THINGS])
    return f"hf:{folder}"


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file with its three splits beside it."""

    def row(number: int, draw: random.Random) -> tuple[str, str]:
        tone = (BAD, GOOD)[number % 2]
        sentence = f"the {draw.choice(THINGS)} was {draw.choice(tone)} and {draw.choice(tone)}"
        return sentence, ("bad", "good")[number % 2]

    folder = tmp_path_factory.mktemp("tiny-task")
    write_splits(folder, {"train": 32, "dev": 16, "test": 24}, row)
    path = folder / "tiny_reviews.yaml"
    path.write_text(TASK_YAML, encoding="utf-8")
    return path


@pytest.fixture
def without_test(tiny_task: Path, tmp_path: Path) -> Path:
    """The same task file, which names no test split."""
    shutil.copytree(tiny_task.parent, tmp_path / "without-test")
    path = tmp_path / "without-test" / tiny_task.name
    path.write_text(TASK_YAML.replace(", test: test.tsv", ""), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def quick_space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space whose trials take a second."""
    path = tmp_path_factory.mktemp("space") / "quick.yaml"
    path.write_text(QUICK_SPACE, encoding="utf-8")
    return path


def bare_order(number: int) -> Any:
    """An order that names no real encoder or task, for drivers whose workers train nothing."""
    from meltpoint.sweeps.worker.work_order import Order
    from meltpoint.tasks.core.task import DataSpec

    return Order(
        id=str(number), number=number, role="search", encoder="e", mode="m", task="t", head="h", seed=0, setting={},
        data=DataSpec("t"), data_fingerprint="", encoder_fingerprint="", checkpoint="nowhere", cpus=1, gpus=0,
    )  # fmt: skip
