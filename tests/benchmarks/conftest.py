"""Fixtures: a random encoder of the suite's toy size, and a job on it that takes seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meltpoint.benchmarks.gpu.sizes import TINY, save_encoder
from meltpoint.benchmarks.job import Job


@pytest.fixture(scope="session")
def toy_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`hf:FOLDER` of a random two-layer BERT."""
    size = replace(TINY, positions=128)  # a job's longest input
    return save_encoder(size, tmp_path_factory.mktemp("toy-bert"))


@pytest.fixture
def toy_job(toy_encoder: str) -> Job:
    """Two trials of two epochs on a few generated sentences."""
    return Job(
        encoder=toy_encoder, mode="feature_extraction", task="demo_sentiment", data_dir=None, max_train_examples=24,
        learning_rates=(1e-3, 1e-2), batch_size=8,
    )  # fmt: skip
