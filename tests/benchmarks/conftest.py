"""A job on the suite's tiny encoder that takes seconds."""

from __future__ import annotations

import pytest

from meltpoint.benchmarks.job import Job


@pytest.fixture
def toy_job(tiny_encoder: str) -> Job:
    """Two trials of two epochs on a few generated sentences."""
    return Job(
        encoder=tiny_encoder, mode="feature_extraction", task="demo_sentiment", data_dir=None, max_train_examples=24,
        learning_rates=(1e-3, 1e-2), batch_size=8,
    )  # fmt: skip
