"""The budget of the feature cache: what is removed, and what happens to what does not fit."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
import torch

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.features.entries import entries
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import Budget, choose, needed_bytes, open_features

KIND = "sentence_classification"
ROWS, PIECES, DIM, LAYERS = 20, 10, 32, (0, 1, 2)
ENTRY_BYTES = ROWS * PIECES * DIM * len(LAYERS) * 4
ROOM = 20_000  # bytes of manifests and of entry.json, generously


def split_of(piece: int) -> EncodedSplit:
    return EncodedSplit([Row(n, 0, (piece,) * PIECES, (), (), None) for n in range(ROWS)], ROWS)


@pytest.fixture(scope="module")
def encoder(load_tiny):
    return load_tiny("bert")


@pytest.fixture
def make(tmp_path, encoder):
    """Piece → an entry, used at second `piece` of 1970, and closed; gives its key."""

    def made(piece):
        key = feature_key(encoder, split_of(piece), KIND, "fp32", "all")
        open_features(tmp_path, key, encoder, split_of(piece), KIND, LAYERS, torch.device("cpu"), {})
        os.utime(tmp_path / key.id / "entry.json", (piece, piece))
        return key

    return made


@pytest.fixture
def decide(tmp_path, encoder):
    """(budget, precision, layers) → the decision on the split of piece 9."""

    def decided(budget, precision="fp32", layers=LAYERS):
        key = feature_key(encoder, split_of(9), KIND, precision, "all")
        return choose(tmp_path, key, encoder, split_of(9), layers, budget), key

    return decided


def test_what_fits_is_cached_and_nothing_is_removed(make, decide, tmp_path):
    old = make(5)
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision.key == key
    assert [entry.id for entry in entries(tmp_path)] == [old.id]


def test_needed_bytes_are_what_the_states_take(tmp_path, encoder, make):
    key = feature_key(encoder, split_of(9), KIND, "fp32", "all")
    assert needed_bytes(tmp_path, key, encoder, split_of(9), LAYERS) == ENTRY_BYTES
    assert needed_bytes(tmp_path, replace(key, precision="bf16"), encoder, split_of(9), LAYERS) == ENTRY_BYTES // 2
    assert needed_bytes(tmp_path, replace(key, pieces="first"), encoder, split_of(9), (2,)) == ROWS * DIM * 4
    make(9)
    assert needed_bytes(tmp_path, key, encoder, split_of(9), LAYERS) == 0


def test_the_entry_used_least_recently_goes_first_and_no_more_than_needed(make, decide, tmp_path):
    _, young = make(5), make(6)
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision.key == key
    assert [entry.id for entry in entries(tmp_path)] == [young.id]


def test_opening_an_entry_makes_it_the_youngest(make, tmp_path, encoder):
    old, young = make(5), make(6)
    open_features(tmp_path, old, encoder, split_of(5), KIND, (2,), torch.device("cpu"), {})
    assert [entry.id for entry in entries(tmp_path)] == [young.id, old.id]


def test_an_open_entry_stays_and_the_next_one_goes(make, decide, tmp_path, encoder):
    old, _ = make(5), make(6)
    reading = open_features(tmp_path, old, encoder, split_of(5), KIND, (2,), torch.device("cpu"), {})
    os.utime(tmp_path / old.id / "entry.json", (5, 5))
    decision, key = decide(Budget(2 * ENTRY_BYTES + ROOM, disk_margin_bytes=0))
    assert decision.key == key
    assert [entry.id for entry in entries(tmp_path)] == [old.id]
    assert reading.gather([0]).any()


def test_what_can_never_fit_removes_nothing_and_runs_on_the_fly(make, decide, tmp_path):
    old = make(5)
    decision, _ = decide(Budget(ENTRY_BYTES - 1, disk_margin_bytes=0))
    assert decision.key is None
    assert "encoder runs in each batch" in decision.words
    assert [entry.id for entry in entries(tmp_path)] == [old.id]


def test_float32_that_does_not_fit_is_kept_in_bf16_where_the_caller_says_so(decide):
    decision, key = decide(Budget(ENTRY_BYTES - 1, "bf16", disk_margin_bytes=0))
    assert decision.key == replace(key, precision="bf16")
    assert "do not fit" in decision.words
    assert "bf16" in decision.words


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_does_not_fit_in_bf16_either_runs_on_the_fly(decide, precision):
    decision, _ = decide(Budget(ENTRY_BYTES // 2 - 1, "bf16", disk_margin_bytes=0), precision)
    assert decision.key is None


def test_a_subset_of_layers_fits_where_all_do_not(decide):
    budget = Budget(ENTRY_BYTES // 2, disk_margin_bytes=0)
    assert decide(budget)[0].key is None
    assert decide(budget, layers=(2,))[0].key is not None


def test_a_disk_that_is_almost_full_counts_like_a_budget(decide, tmp_path):
    free = shutil.disk_usage(tmp_path).free
    decision, _ = decide(Budget(10**15, disk_margin_bytes=2 * free))
    assert decision.key is None
    assert "GB free" in decision.words or "MB free" in decision.words


def test_an_entry_that_is_there_is_used_whatever_the_budget(make, decide):
    key = make(9)
    assert decide(Budget(0))[0].key == key
