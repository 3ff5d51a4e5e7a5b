"""Cached features: the bytes are those of a direct forward pass, whoever encodes, and damage is made good."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.batching import evaluation_batches, inputs
from meltpoint.adapters.features.layout import ENCODING_BATCH, feature_key, layout, rows_digest
from meltpoint.adapters.features.reading import Features, needed_bytes, open_features
from meltpoint.adapters.layers.affine import first_states
from meltpoint.adapters.training.evaluation import EVALUATION_BATCH

CPU = torch.device("cpu")
NOTE = {"encoder": "tiny", "task": "reviews", "split": "train"}
ROWS = 300  # three shards


def make_split(kind="sentence_classification", rows=ROWS, seed=0):
    """Rows of 4 to 30 random pieces; words of one to three pieces for sequence labelling."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, size=1):
        return torch.randint(low, high, (size,), generator=generator).tolist()

    made = []
    for number in range(rows):
        pieces = tuple(draw(5, 40, draw(4, 31)[0]))
        starts = tuple(range(1, len(pieces) - 1, draw(1, 4)[0])) if kind == "sequence_labelling" else ()
        made.append(Row(number, 0, pieces, (0,) * len(pieces), starts, None))
    return EncodedSplit(made, rows)


def direct(encoder, split, kind, precision="fp32", pieces="all"):
    """Row → (layers, positions, dim), from the batches that an evaluation runs."""
    found = {}
    encoder.eval()
    for batch in evaluation_batches(inputs(split), kind, encoder.tokenizer.pad_piece, EVALUATION_BATCH):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            states = torch.stack([state.float() for state in encoder(batch)])
        for place, row in enumerate(batch.rows):
            count = len(split.rows[row].pieces)
            found[row] = states[:, place, :count]
            if pieces == "first":
                firsts = [first_states(layer[None], batch)[0] for layer in states]
                words = len(split.rows[row].word_starts)
                found[row] = torch.stack([one[place, :words] if words else one[place][None] for one in firsts])
    return found


def open_all(folder, encoder, split, kind="sentence_classification", precision="fp32", pieces="all", layers=(0, 1, 2)):
    key = feature_key(encoder, split, kind, precision, pieces)
    return open_features(folder, key, encoder, split, kind, layers, CPU, NOTE)


def states_of(features: Features, row: int) -> torch.Tensor:
    """(layers, positions, dim) of one row."""
    return features.gather([row])[:, 0]


def the_entry(folder: Path) -> Path:
    (path,) = [path for path in folder.iterdir() if path.is_dir()]
    return path


def written_at(folder: Path) -> list[int]:
    """When each shard was written: what is not written again keeps its time."""
    return [path.stat().st_mtime_ns for path in sorted(the_entry(folder).glob("shard-*.bin"))]


@pytest.fixture(scope="module")
def encoder(load_tiny):
    return load_tiny("bert")


@pytest.fixture(scope="module")
def split():
    return make_split()


@pytest.fixture(scope="module")
def opened(tmp_path_factory, encoder, split):
    """(features, what a direct forward pass gives) of one split."""
    return open_all(tmp_path_factory.mktemp("features"), encoder, split), direct(
        encoder, split, "sentence_classification"
    )


def test_fp32_features_are_the_direct_forward_pass_bit_for_bit(opened):
    features, expected = opened
    assert features.layers == (0, 1, 2)
    assert features.lengths.tolist() == [expected[row].shape[1] for row in range(ROWS)]
    assert all(torch.equal(states_of(features, row), expected[row]) for row in range(ROWS))


@pytest.mark.parametrize("kind", ["sentence_classification", "sequence_labelling"])
def test_first_pieces_are_those_that_a_linear_head_reads(tmp_path, encoder, kind):
    split = make_split(kind, 150)
    expected = direct(encoder, split, kind, pieces="first")
    features = open_all(tmp_path, encoder, split, kind, pieces="first")
    assert all(torch.equal(states_of(features, row), expected[row]) for row in range(150))


def test_bf16_features_are_the_autocast_states_within_bf16_rounding(tmp_path, encoder, split):
    expected = direct(encoder, split, "sentence_classification", "bf16")
    features = open_all(tmp_path, encoder, split, precision="bf16")
    assert features.dtype == torch.bfloat16
    for row in range(ROWS):
        difference = (states_of(features, row).float() - expected[row]).abs()
        assert bool((difference <= expected[row].abs() * 2**-8).all())  # bfloat16 has 8 significant bits


@given(rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40))
def test_gather_gives_rows_in_order_and_zeros_behind_them(opened, rows):
    features, expected = opened
    batch = features.gather(rows)
    longest = max(expected[row].shape[1] for row in rows)
    assert batch.shape == (3, len(rows), longest, 32)
    for place, row in enumerate(rows):
        count = expected[row].shape[1]
        assert torch.equal(batch[:, place, :count], expected[row])
        assert not batch[:, place, count:].any()


def test_a_second_opening_encodes_nothing(tmp_path, load_tiny, split):
    encoder = load_tiny("bert")
    open_all(tmp_path, encoder, split)
    encoder.forward = None  # whoever runs it now breaks
    again = open_all(tmp_path, encoder, split)
    assert again.gather([0]).any()


def test_the_digest_knows_pieces_segments_and_words_but_no_labels():
    row = Row(0, 0, (5, 6, 7, 8), (0, 0, 1, 1), (1, 2), (0, 0))
    same = dataclasses.replace(row, label=(1, 1), example=4)
    others = [
        dataclasses.replace(row, pieces=(5, 6, 8, 7)),
        dataclasses.replace(row, segments=(0, 0, 0, 1)),
        dataclasses.replace(row, word_starts=(1, 3)),
    ]
    assert rows_digest([row]) == rows_digest([same])
    assert len({rows_digest([one]) for one in [row, *others]}) == 4
    assert rows_digest([row, row]) != rows_digest([row])
    joined = dataclasses.replace(row, pieces=row.pieces * 2, segments=row.segments * 2, word_starts=(1, 2, 1, 2))
    assert rows_digest([row, row]) != rows_digest([joined])  # where a row ends counts


@given(seed=st.integers(0, 99), rows=st.integers(0, 700))
def test_the_layout_holds_every_row_once_in_shards_of_whole_batches(seed, rows):
    found = layout(make_split(rows=rows, seed=seed), "all")
    assert sorted(found.order.tolist()) == list(range(rows))
    assert [row for shard in found.shards for row in shard] == list(range(rows))
    assert all(len(shard) % ENCODING_BATCH == 0 for shard in found.shards[:-1])
    assert len(found.shards) <= 64


@pytest.mark.parametrize("damage", ["a byte", "cut short", "no file", "no manifest", "half a manifest"])
def test_a_damaged_shard_is_encoded_again_and_the_others_are_not(tmp_path, encoder, split, opened, damage):
    open_all(tmp_path, encoder, split)
    before = written_at(tmp_path)
    path = the_entry(tmp_path) / "shard-0001.bin"
    content = path.read_bytes()
    changed = content[:999] + bytes([content[999] ^ 1]) + content[1000:]
    manifest = path.with_suffix(".json")
    {
        "a byte": lambda: path.write_bytes(changed), "cut short": lambda: path.write_bytes(content[:-40]),
        "no file": path.unlink, "no manifest": manifest.unlink,
        "half a manifest": lambda: manifest.write_text(manifest.read_text(encoding="utf-8")[:20]),
    }[damage]()  # fmt: skip
    features = open_all(tmp_path, encoder, split)
    assert path.read_bytes() == content
    assert all(torch.equal(states_of(features, row), opened[1][row]) for row in range(ROWS))
    after = written_at(tmp_path)
    assert [before[0], before[2]] == [after[0], after[2]]
    assert after[1] != before[1]


def test_layers_that_are_missing_are_added_and_those_that_were_there_stay(tmp_path, encoder, split, opened):
    top = open_all(tmp_path, encoder, split, layers=(2,))
    key = feature_key(encoder, split, "sentence_classification", "fp32", "all")
    assert needed_bytes(tmp_path, key, encoder, split, (0,)) == 2 * top.bytes
    bottom = open_all(tmp_path, encoder, split, layers=(0,))
    before = written_at(tmp_path)
    both = open_all(tmp_path, encoder, split, layers=(2, 0))
    assert written_at(tmp_path) == before
    expected = opened[1][7]
    assert torch.equal(states_of(top, 7), expected[2:])  # what was open before stays readable
    assert torch.equal(states_of(bottom, 7), expected[:1])
    assert torch.equal(states_of(both, 7), expected[[0, 2]])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing more than `size` bytes into a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_leaves_nothing_that_looks_whole(tmp_path, load_tiny, split, opened):
    encoder = load_tiny("bert").train()
    with files_of_at_most(200_000), pytest.raises(OSError, match=r"no room for .* MB .*cache rm"):
        open_all(tmp_path, encoder, split)
    left = {path.suffix for path in the_entry(tmp_path).iterdir()}
    assert left == {".json", ".lock"}
    assert not list(the_entry(tmp_path).glob("shard-*.json"))
    assert encoder.training
    features = open_all(tmp_path, encoder, split)  # room again
    assert all(torch.equal(states_of(features, row), opened[1][row]) for row in range(ROWS))


def test_the_real_encoder_gives_the_same_states_whatever_other_rows_share_a_batch(minilm_encoder, tmp_path):
    split = make_split(rows=70)
    expected = direct(minilm_encoder, split, "sentence_classification")
    features = open_all(tmp_path, minilm_encoder, split, layers=range(7))
    assert all(torch.equal(states_of(features, row), expected[row]) for row in range(70))
