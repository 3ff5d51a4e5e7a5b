"""Epochs on cached hidden states against encoding, with a toy encoder: consistency of the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.benchmarks import frozen_epochs
from meltpoint.benchmarks.encoded import encoded
from meltpoint.benchmarks.gpu.frozen import FolderCache
from meltpoint.benchmarks.gpu.sizes import TINY
from meltpoint.tasks.core.task import DataSpec

KIND = "sentence_classification"
DATA = DataSpec("demo_sentiment", None, 24)


@pytest.fixture
def encoder(toy_encoder: str) -> Encoder:
    return encoders.load(encoders.resolve(toy_encoder, KIND))


def test_the_ratios_are_those_of_neighbouring_runs(encoder: Encoder):
    data = encoded(encoder, DATA, dev_rows=8)
    result = frozen_epochs.measure("toy", encoder, data, "linear", members=3, batch_size=8, repeats=1)
    assert result.rows == 24
    assert result.pieces == sum(len(row.pieces) for row in data.train.rows)
    assert result.epoch_share.median == pytest.approx(result.epoch_seconds.median / result.encoding_seconds.median)
    assert result.bundle_ratio.median == pytest.approx(result.bundle_seconds.median / result.epoch_seconds.median)
    assert "3 side by side" in frozen_epochs.lines(result)[-1]


def test_epochs_read_what_was_encoded_and_encode_nothing(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data, cache = encoded(encoder, DATA, dev_rows=8), FolderCache(tmp_path, "cpu")
    assert frozen_epochs.encoding_seconds(encoder, data, "linear", 8, cache) > 0
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    assert written
    monkeypatch.setattr(type(encoder), "read", None)  # so that a call raises
    monkeypatch.setattr(type(encoder), "read_top", None)
    assert frozen_epochs.epoch_seconds(encoder, data, "linear", 8, 2, cache) > 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")} == written


def test_a_random_base_has_the_pieces_of_the_encoder_that_it_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(frozen_epochs, "BASE", TINY)
    minilm = encoders.load(encoders.resolve("minilm", KIND))
    base = encoders.load(encoders.resolve(frozen_epochs.random_base(tmp_path, minilm), KIND))
    assert (base.layers, base.dim) == (TINY.layers + 1, TINY.dim)
    texts = [encoded(one, DATA).train.rows for one in (minilm, base)]
    assert [row.pieces for row in texts[0]] == [row.pieces for row in texts[1]]
