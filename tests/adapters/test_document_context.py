"""Document context: a sentence is read within its document, each word scored once, heads see the sentence alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import collate, stitch
from meltpoint.adapters.data.document_context import documents, documents_fingerprint
from meltpoint.adapters.data.input_format import InputFormat
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import open_features
from meltpoint.tasks.core.task import Example

Load = Callable[..., Encoder]
DOCUMENT = InputFormat(context="document")
WORDS = ("the", "harbour", "was", "quiet", "London", "film", "a", "qqqq")


def sentences(*lengths: int, group: str = "1", first: int = 0) -> list[Example]:
    """Sentences of one document; every word is a label of its own."""
    found = []
    for number, length in enumerate(lengths, first):
        words = tuple(WORDS[(3 * number + place) % len(WORDS)] for place in range(length))
        found.append(Example(str(number), words=words, label=tuple(place % 3 for place in range(length)), group=group))
    return found


def split_of(
    encoder: Encoder, examples: list[Example], limit: int = 64, input_format: InputFormat = DOCUMENT
) -> EncodedSplit:
    return encode_split("sequence_labelling", examples, encoder.tokenizer, limit, input_format)


def states(encoder: Encoder, split: EncodedSplit, rows: list[int]) -> torch.Tensor:
    """The top layer's states of rows."""
    with torch.no_grad():
        return encoder.read_top(collate(split.rows, rows, encoder.tokenizer.pad_piece, "sequence_labelling"))


# --- which pieces ---


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.lists(st.integers(1, len(sizes)), min_size=1, max_size=4))
    ),
    st.integers(6, 40),
)
def test_context_is_whole_words_next_to_the_window_and_as_many_as_fit(case: tuple[list[int], list[int]], room: int):
    sizes, cuts = case
    bounds = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    pieces = [[100 * place + piece for piece in range(size)] for place, size in enumerate(sizes)]
    parts = [pieces[start:stop] for start, stop in itertools.pairwise(bounds)]
    examples = [Example(str(number), words=("w",) * len(part), group="d") for number, part in enumerate(parts)]
    for number, around in enumerate(documents(examples, parts)):
        own = range(len(parts[number]))
        inside = [piece for word in parts[number] for piece in word]
        if len(inside) > room:
            continue
        before, after = around.of(own, room)
        assert len(before) + len(inside) + len(after) <= room
        start, stop = bounds[number], bounds[number + 1]
        lefts = [tuple(p for word in pieces[first:start] for p in word) for first in range(start + 1)]
        rights = [tuple(p for word in pieces[stop:last] for p in word) for last in range(stop, len(pieces) + 1)]
        assert before in lefts
        assert after in rights
        rest = room - len(before) - len(inside) - len(after)
        assert len(after) == len(rights[-1]) or len(rights[rights.index(after) + 1]) - len(after) > rest


def test_both_sides_get_about_the_same_and_what_one_cannot_use_goes_to_the_other():
    parts = [[[10 * s + w] for w in range(10)] for s in range(3)]
    examples = [Example(str(n), words=("w",) * 10, group="d") for n in range(3)]
    first, middle, last = documents(examples, parts)
    assert [len(side) for side in middle.of(range(10), 20)] == [5, 5]
    assert [len(side) for side in first.of(range(10), 20)] == [0, 10]
    assert [len(side) for side in last.of(range(10), 20)] == [10, 0]


def test_context_ends_with_the_document_and_at_the_gaps_of_a_sample(load_tiny: Load):
    examples = [*sentences(3, 3), *sentences(3, group="2", first=2), *sentences(3, group="2", first=4)]
    split = split_of(load_tiny("bert"), examples)
    one, two, three, four = split.rows
    assert (one.before, two.after) == ((2,), (3,))  # [CLS] and [SEP]
    assert one.after == (*two.pieces, 3)
    assert (three.before, three.after, four.before, four.after) == ((2,), (3,), (2,), (3,))
    assert split.alone == 2


@pytest.mark.parametrize("chosen", [[1], [0, 2, 3], [3, 5], [4]])
def test_a_sampled_sentence_is_read_as_in_its_whole_document(load_tiny: Load, chosen: list[int]):
    encoder = load_tiny("bert")
    whole = [*sentences(9, 4, 7, 3), *sentences(5, 6, group="2", first=4)]
    every = split_of(encoder, whole, limit=20)
    sample = [whole[place] for place in chosen]
    read = encode_split("sequence_labelling", sample, encoder.tokenizer, 20, DOCUMENT, whole)
    assert [replace(row, example=chosen[row.example]) for row in read.rows] == [
        row for row in every.rows if row.example in chosen
    ]
    assert read.alone == 0
    assert split_of(encoder, sample, limit=20).alone > 0 or len(chosen) == 3, "without the others most stand alone"


def test_the_fingerprint_sees_the_words_around_a_sample_and_of_a_whole_split_only_what_stands_together():
    whole = [*sentences(3, 4), *sentences(2, group="2", first=2)]
    other = [whole[0], replace(whole[1], words=("a", "film", "was", "a")), whole[2]]
    assert documents_fingerprint((whole, None)) == documents_fingerprint((other, None)), "its words are in another one"
    of_sample = documents_fingerprint((whole[:1], whole))
    assert len({of_sample, documents_fingerprint((whole[:1], other)), documents_fingerprint((whole[1:2], whole))}) == 3
    assert of_sample == documents_fingerprint((whole[:1], list(whole)))


def test_no_input_is_longer_than_the_limit_and_no_word_is_lost(load_tiny: Load):
    split = split_of(load_tiny("bert"), sentences(9, 30, 2, 7), limit=16)
    assert max(len(row.inputs[0]) for row in split.rows) == 16
    assert split.windowed == len([n for n in range(4) if [row.example for row in split.rows].count(n) > 1]) > 0
    labels: list[Any] = [list(row.label) for row in split.rows]
    assert stitch(split, labels) == [list(example.label) for example in sentences(9, 30, 2, 7)]


# --- what the encoder makes of it ---


def test_the_states_are_those_of_the_words_in_their_document(load_tiny: Load):
    encoder = load_tiny("bert")
    examples = sentences(4, 5, 3)
    together = Example("0", words=tuple(word for example in examples for word in example.words))
    whole = states(encoder, split_of(encoder, [together], input_format=InputFormat()), [0])[0]
    split = split_of(encoder, examples)
    start = 1  # after [CLS]
    for number, row in enumerate(split.rows):
        found = states(encoder, split, [number])[0]
        torch.testing.assert_close(found, whole[start : start + len(row.pieces)], atol=1e-6, rtol=1e-5)
        start += len(row.pieces)


@pytest.mark.parametrize("pieces", ["all", "first"])
def test_cached_states_are_those_of_the_encoder(load_tiny: Load, pieces: Any, tmp_path):
    encoder = load_tiny("bert")
    split = split_of(encoder, sentences(4, 5, 3))
    key = feature_key(encoder, split, "sequence_labelling", "fp32", pieces)
    features = open_features(tmp_path, key, encoder, split, "sequence_labelling", [2], torch.device("cpu"), {})
    direct = states(encoder, split, [0, 1, 2])
    for number, row in enumerate(split.rows):
        wanted = direct[number, : len(row.pieces)]
        expected = wanted if pieces == "all" else wanted[list(row.word_starts)]
        torch.testing.assert_close(features.gather([number])[0, 0], expected, atol=1e-6, rtol=1e-5)


def test_context_is_part_of_what_names_the_cached_states(load_tiny: Load):
    encoder = load_tiny("bert")
    splits = [split_of(encoder, sentences(4, 5)), split_of(encoder, sentences(4, 5)[:1] + sentences(6, first=1))]
    keys = {feature_key(encoder, EncodedSplit(s.rows[:1], 1), "sequence_labelling", "fp32", "all").id for s in splits}
    assert len(keys) == 2


@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
def test_a_trial_trains_in_context(make_trainer: Callable[..., Any], mode: str):
    examples = sentences(4, 5, 3, 6)
    still = {} if mode == "feature_extraction" else {"encoder_dropout": 0.0}
    trainer = make_trainer(
        mode, "sequence_labelling", "linear", train=examples, dev=examples, context="document", epochs=40,
        learning_rate=5e-3, batch_size=2, dropout=0.0, max_pieces=64, **still,
    )  # fmt: skip
    assert any(row.before for row in trainer.data.train.rows)
    results = list(trainer.results())
    assert results[-1].train_loss < results[0].train_loss / 2
