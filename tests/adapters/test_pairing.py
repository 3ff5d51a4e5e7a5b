"""Pairs read jointly and apart: each sentence's pieces are its own, and apart neither knows of the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate, evaluation_batches, inputs, training_batches
from meltpoint.adapters.data.input_format import InputFormat
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import Pieces, feature_key
from meltpoint.adapters.features.reading import Features, open_features
from meltpoint.adapters.layers.attention import sentences
from meltpoint.tasks.core.task import Example

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]
Texts = tuple[str, str]
Pairing = Literal["joint", "separate"]
SEPARATE = InputFormat(pairing="separate")
PAIRINGS: list[Pairing] = ["joint", "separate"]
PAIRS: list[Texts] = [
    ("the old harbour was quiet", "ships came home"),
    ("London", "Paris and London are cities; Anna Berg lives in neither of them"),
    ("prices rose 3.5 percent, the bank said", "a film"),
    ("a film", ""),
]
WORDS = ("the", "old", "harbour", "was", "quiet", "London", ",", "3.5", "film", "ships")


def some_pairs(words: int) -> st.SearchStrategy[list[Texts]]:
    """One to four pairs of sentences of at most so many words; a word has up to seven pieces."""
    text = st.lists(st.sampled_from(WORDS), max_size=words).map(" ".join)
    return st.lists(st.tuples(text, text), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def bert(load_tiny: Load) -> Encoder:
    """A tiny BERT, at rest."""
    return load_tiny("bert").eval()


def encode(encoder: Encoder, given: Sequence[Texts], pairing: Pairing, limit: int = 64) -> EncodedSplit:
    examples = [Example(str(number), texts=texts, label=number % 2) for number, texts in enumerate(given)]
    return encode_split("pair_classification", examples, encoder.tokenizer, limit, InputFormat(pairing=pairing))


def batch_of(encoder: Encoder, split: EncodedSplit) -> Batch:
    return collate(split.rows, range(len(split.rows)), encoder.tokenizer.pad_piece, "pair_classification")


def alone(encoder: Encoder, text: str) -> Tensor:
    """Every layer's states of one sentence, special tokens included: (layers, pieces, dim)."""
    split = encode_split("sentence_classification", [Example("0", texts=(text,))], encoder.tokenizer, 64)
    batch = collate(split.rows, [0], encoder.tokenizer.pad_piece, "sentence_classification")
    return torch.stack(encoder(batch))[:, 0]


def both_alone(encoder: Encoder, texts: Texts) -> Tensor:
    """Two sentences' states one after the other, each encoded alone."""
    return torch.cat([alone(encoder, text) for text in texts], 1)


# --- whose each piece is ---


def own_pieces(batch: Batch, row: int, number: int) -> list[int]:
    return batch.pieces[row][batch.parts[row] == number].tolist()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_parts_mark_just_the_pieces_that_the_tokenizer_gives_each_sentence(
    load_tiny: Load, family: str, hugging_face: transformers.PreTrainedTokenizerBase, pairing: Pairing
):
    encoder = load_tiny(family)
    batch = batch_of(encoder, encode(encoder, PAIRS, pairing))
    for row, texts in enumerate(PAIRS):
        for number, text in enumerate(texts, 1):
            assert own_pieces(batch, row, number) == hugging_face(text, add_special_tokens=False)["input_ids"]
    rest = batch.pieces[(batch.parts == 0) & batch.piece_mask].tolist()
    assert set(rest) <= set(hugging_face.all_special_ids)
    assert not batch.parts[~batch.piece_mask].any()


@settings(deadline=None)
@given(given=some_pairs(12), limit=st.integers(8, 24))
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_pair_that_is_cut_keeps_the_beginnings_of_both_sentences(
    bert: Encoder, pairing: Pairing, given: list[Texts], limit: int
):
    split = encode(bert, given, pairing, limit)
    batch, cut = batch_of(bert, split), 0
    for row, texts in enumerate(given):
        whole = [bert.tokenizer.sentence(text, 64)[0][1:-1] for text in texts]
        kept = [own_pieces(batch, row, number) for number in (1, 2)]
        assert kept == [pieces[: len(own)] for pieces, own in zip(whole, kept, strict=True)]
        if pairing == "separate":
            assert [len(own) for own in kept] == [min(len(pieces), limit - 2) for pieces in whole]
        else:
            assert len(kept[0]) + len(kept[1]) == min(len(whole[0]) + len(whole[1]), limit - 3)
        assert int((batch.parts[row] == 0).sum()) == batch.pieces.shape[1] - len(kept[0]) - len(kept[1])
        cut += kept != whole
    assert split.truncated == cut


def test_an_encoder_that_reads_one_sentence_at_a_time_never_joins_a_pair(
    load_tiny: Load, monkeypatch: pytest.MonkeyPatch
):
    encoder = load_tiny("bert")
    assert encode_rows(encoder, InputFormat()) == encode_rows(encoder, InputFormat(pairing="joint"))
    monkeypatch.setattr(encoder.tokenizer, "joins_pairs", False)
    assert encode_rows(encoder, InputFormat()) == encode_rows(encoder, SEPARATE)
    with pytest.raises(ValueError, match="pairing is joint; this encoder reads one sentence at a time"):
        encode_rows(encoder, InputFormat(pairing="joint"))


def encode_rows(encoder: Encoder, input_format: InputFormat) -> object:
    return encode_split("pair_classification", [Example("0", texts=PAIRS[0])], encoder.tokenizer, 64, input_format).rows


# --- states ---


def check_states(encoder: Encoder, given: Sequence[Texts]) -> None:
    """Every layer, and the top alone."""
    batch = batch_of(encoder, encode(encoder, given, "separate"))
    with torch.no_grad():
        states, top = torch.stack(encoder.read(batch)), encoder.read_top(batch)
        for row, texts in enumerate(given):
            expected = both_alone(encoder, texts)
            assert int(batch.piece_mask[row].sum()) == expected.shape[1]
            torch.testing.assert_close(states[:, row][:, batch.piece_mask[row]], expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(top, states[-1], atol=2e-6, rtol=1e-5)


def test_a_pair_encoded_separately_has_the_states_of_its_sentences_alone(load_tiny: Load, family: str):
    check_states(load_tiny(family).eval(), PAIRS)


def test_the_rows_of_several_lanes_are_encoded_as_each_lane_alone(bert: Encoder):
    split = encode(bert, PAIRS * 2, "separate")

    def first(seeds: list[int]) -> tuple[Tensor, Batch]:
        rows = training_batches(inputs(split), "pair_classification", 0, 3, seeds, 1, by_length=False)
        batch = next(iter(rows))
        with torch.no_grad():
            read = bert.read_top(batch)
        return read.view(len(seeds), 3, *read.shape[1:]), batch

    both, together = first([0, 1])
    for lane, found in enumerate(sentences(both, together)[0].states):
        own, batch = first([lane])
        expected = sentences(own, batch)[0]
        mask = expected.mask[0]
        torch.testing.assert_close(found[:, : mask.shape[1]][mask], expected.states[0][mask], atol=2e-6, rtol=1e-5)


def test_first_states_alone_are_those_of_both_sentences(bert: Encoder):
    batch = batch_of(bert, encode(bert, PAIRS, "separate"))
    assert batch.cuts is not None
    alone = replace(batch, cls_only=True)
    rows = torch.arange(len(PAIRS))
    with torch.no_grad():
        for whole, found in zip(bert.read(batch), bert.read(alone), strict=True):
            torch.testing.assert_close(found[:, 0], whole[:, 0])
            torch.testing.assert_close(found[rows, batch.cuts], whole[rows, batch.cuts])
        assert torch.equal(bert.read_top(alone), bert.read(alone)[-1])


# --- cached ---


def open_all(folder: Path, encoder: Encoder, split: EncodedSplit, pieces: Pieces) -> Features:
    key = feature_key(encoder, split, "pair_classification", "fp32", pieces)
    return open_features(
        folder, key, encoder, split, "pair_classification", range(encoder.layers), torch.device("cpu"), {}
    )  # fmt: skip


def test_cached_states_of_separate_pairs_are_those_of_the_sentences_alone(bert: Encoder, tmp_path: Path):
    split = encode(bert, PAIRS, "separate")
    features = open_all(tmp_path, bert, split, "all")
    with torch.no_grad():
        for row, texts in enumerate(PAIRS):
            torch.testing.assert_close(features.gather([row])[:, 0], both_alone(bert, texts), atol=2e-6, rtol=1e-5)
    for batch in evaluation_batches(inputs(split, features), "pair_classification", 0, 3):
        assert (batch.source, batch.states is None) == (None, False)
        with torch.no_grad():
            expected = torch.stack(bert.read(collate(split.rows, batch.rows, 0, "pair_classification")))
        real = batch.piece_mask
        torch.testing.assert_close(batch.states[:, 0][:, real], expected[:, real], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("all_are_there", [False, True])
def test_cached_first_pieces_of_separate_pairs_are_both_first_pieces(
    bert: Encoder, tmp_path: Path, all_are_there: bool
):
    split = encode(bert, PAIRS, "separate")
    if all_are_there:
        open_all(tmp_path, bert, split, "all")
    features = open_all(tmp_path, bert, split, "first")
    (batch,) = evaluation_batches(inputs(split, features, first_pieces=True), "pair_classification", 0, 8)
    assert batch.parts.tolist() == [[1, 2]] * len(PAIRS)
    with torch.no_grad():
        for place, row in enumerate(batch.rows):
            expected = torch.stack([alone(bert, text)[:, 0] for text in PAIRS[row]], 1)
            torch.testing.assert_close(batch.states[:, 0, place], expected, atol=2e-6, rtol=1e-5)


def test_states_are_never_taken_for_those_of_other_inputs_of_the_same_pieces(bert: Encoder):
    split = encode(bert, PAIRS, "separate")

    def key(shift: int) -> str:
        rows = [replace(row, cut=0 if shift < 0 else row.cut + shift) for row in split.rows]
        return feature_key(bert, EncodedSplit(rows, len(rows)), "pair_classification", "fp32", "all").id

    assert len({key(-1), key(0), key(1)}) == 3


# --- trained ---


@pytest.mark.parametrize("family", ["bert", "elmo"])
@pytest.mark.parametrize("head", ["esim", "bi_attention"])
def test_a_frozen_encoder_trains_a_head_on_separate_pairs_alike_from_the_cache_and_without(
    make_trainer: Callable[..., Any], load_tiny: Load, elmo: Encoder, kept_states: Any, head: str, family: str
):
    encoder = elmo if family == "elmo" else load_tiny(family)
    losses = []
    for states in (kept_states, None):
        trainer = make_trainer(
            "feature_extraction", "pair_classification", head, encoder=encoder, frozen_states=states, dropout=0.0,
            pairing="separate", learning_rate=1e-3,
        )  # fmt: skip
        assert all(row.cut for row in trainer.data.train.rows)
        losses.append([result.train_loss for result in trainer.results()])
    assert kept_states.opened == 2
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)
    assert losses[1][1] < losses[1][0]
