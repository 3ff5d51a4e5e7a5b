"""Fixtures: a random encoder of the suite's toy size, and a job on it that takes seconds."""

from __future__ import annotations

import pytest
import torch
import transformers

from meltpoint.benchmarks.job import Job


@pytest.fixture(scope="session")
def toy_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`hf:FOLDER` of a random two-layer BERT."""
    folder = tmp_path_factory.mktemp("toy-bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(123))]
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture
def toy_job(toy_encoder: str) -> Job:
    """Two trials of two epochs on a few generated sentences."""
    return Job(
        encoder=toy_encoder, mode="feature_extraction", task="demo_sentiment", data_dir=None, max_train_examples=24,
        learning_rates=(1e-3, 1e-2), batch_size=8,
    )  # fmt: skip
