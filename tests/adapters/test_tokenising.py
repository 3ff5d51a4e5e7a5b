"""Tokenising: the pieces are transformers' own, nothing is lost unseen, and windows hold each word once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.data.input_format import Tokenizer
from meltpoint.adapters.data.tokenising import encode_split, longest_first, split_windows
from meltpoint.adapters.encoder import Encoder
from meltpoint.tasks.core.task import Example

Load = Callable[[str], Encoder]
Folder = Callable[[str], Path]

FIRST = "The old harbour was quiet when the ships came home, 3.5 percent"
SECONDS = ["ships", "London and Paris are cities; Anna Berg lives in neither of them, the bank said on Monday"]


@pytest.mark.parametrize("limit", [8, 9, 20, 64])
def test_a_sentence_is_encoded_as_transformers_does(
    load_tiny: Load, family: str, hugging_face: transformers.PreTrainedTokenizerBase, limit: int
):
    pieces, segments, cut = load_tiny(family).tokenizer.sentence(FIRST, limit)
    expected = hugging_face(FIRST, truncation=True, max_length=limit)
    assert pieces == expected["input_ids"]
    assert segments in ([], expected.get("token_type_ids"))
    assert cut == max(0, len(hugging_face(FIRST)["input_ids"]) - limit)


@pytest.mark.parametrize("limit", [8, 9, 20, 33, 64])
@pytest.mark.parametrize("second", SECONDS)
def test_a_pair_is_encoded_and_cut_as_transformers_does(
    load_tiny: Load, family: str, hugging_face: transformers.PreTrainedTokenizerBase, limit: int, second: str
):
    for texts in ((FIRST, second), (second, FIRST)):
        pieces, segments, spans, cut = load_tiny(family).tokenizer.pair(*texts, limit)
        expected = hugging_face(*texts, truncation="longest_first", max_length=limit)
        assert pieces == expected["input_ids"]
        owners = expected.sequence_ids() if expected.is_fast else None
        if owners is not None:
            assert [[place for place, owner in enumerate(owners) if owner == text] for text in (0, 1)] == [
                list(range(*span)) for span in spans
            ]
        assert segments in ([], expected.get("token_type_ids"))
        assert cut == max(0, len(hugging_face(*texts)["input_ids"]) - limit)


def test_a_pair_with_an_empty_sentence_is_still_a_pair(load_tiny: Load):
    assert load_tiny("bert").tokenizer.pair("a", "", 8)[:2] == ([2, 5, 3, 3], [0, 0, 0, 1])


def test_segments_come_where_the_encoder_embeds_them(load_tiny: Load):
    assert load_tiny("bert").tokenizer.pair("a", "b", 8)[1] == [0, 0, 0, 1, 1]
    for family in ("roberta", "distilbert", "modernbert"):
        assert load_tiny(family).tokenizer.pair("a", "b", 8)[1] == []


def test_words_give_the_pieces_that_they_have_in_mid_sentence(
    load_tiny: Load, family: str, hugging_face: transformers.PreTrainedTokenizerBase
):
    tokenizer = load_tiny(family).tokenizer
    words = ["a", "harbour", "London", "3.5", "neither", "xyz"]
    joined = [piece for word in words[1:] for piece in tokenizer.word(word)]
    assert joined == hugging_face(" ".join(words), add_special_tokens=False)["input_ids"][-len(joined) :]


@pytest.mark.parametrize("word", ["\u00a0", "\u0012", "\u200b", "", " ", "é", "東"])
def test_no_word_is_ever_without_a_piece(load_tiny: Load, family: str, word: str):
    assert load_tiny(family).tokenizer.word(word)


def test_a_word_that_is_thrown_away_becomes_the_unknown_piece(minilm_encoder: Encoder):
    assert minilm_encoder.tokenizer.word("\u00a0") == [100]
    assert minilm_encoder.tokenizer.sentence("\u00a0", 8)[0] == [101, 102]


def test_framing_puts_the_special_tokens_around_pieces(minilm_encoder: Encoder):
    assert minilm_encoder.tokenizer.frame([7, 8]) == ([101, 7, 8, 102], [0, 0, 0, 0], 1)


def test_a_backend_that_cuts_and_pads_by_itself_is_stopped(minilm_encoder: Encoder):
    pieces, _, cut = minilm_encoder.tokenizer.sentence("word " * 300, 512)  # its own file says 128, padded to 128
    assert (len(pieces), cut) == (302, 0)
    assert len(minilm_encoder.tokenizer.sentence("word", 512)[0]) == 3


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 60))
def test_longest_first_cuts_one_piece_at_a_time_off_the_longer(first: int, second: int, room: int):
    kept = longest_first(first, second, room)
    assert sum(kept) == min(first + second, room)
    assert kept[0] <= first
    assert kept[1] <= second
    if kept != (first, second):  # what was cut is never left longer than what was kept whole, by more than one
        longer, shorter = (0, 1) if first > second else (1, 0)
        assert kept[shorter] == (first, second)[shorter] or kept[longer] - kept[shorter] in (0, 1)


def test_more_pieces_than_the_encoder_takes_are_refused(load_tiny: Load):
    with pytest.raises(ValueError, match="max_pieces is 65; this encoder takes at most 64"):
        encode_split("sentence_classification", [], load_tiny("bert").tokenizer, 65)


def test_truncated_sentences_are_counted(load_tiny: Load):
    examples = [Example("0", ("a " * 30,), label=0), Example("1", ("a",), label=1), Example("2", ("a " * 6,), label=1)]
    split = encode_split("sentence_classification", examples, load_tiny("bert").tokenizer, 8)
    assert (split.examples, split.truncated, split.windowed) == (3, 1, 0)
    assert [len(row.pieces) for row in split.rows] == [8, 3, 8]
    assert [(row.example, row.label) for row in split.rows] == [(0, 0), (1, 1), (2, 1)]


def encode_words(tokenizer: Tokenizer, sentences: list[list[str]], limit: int):
    examples = [
        Example(str(i), words=tuple(words), label=tuple(range(len(words)))) for i, words in enumerate(sentences)
    ]
    return encode_split("sequence_labelling", examples, tokenizer, limit)


def test_word_starts_point_at_each_words_first_piece(load_tiny: Load, family: str):
    tokenizer = load_tiny(family).tokenizer
    words = ["the", "harbour", "\u00a0", "London"]
    row = encode_words(tokenizer, [words], 64).rows[0]
    assert [row.pieces[start] for start in row.word_starts] == [tokenizer.word(word)[0] for word in words]
    assert row.label == (0, 1, 2, 3)


@given(
    st.lists(st.lists(st.sampled_from(["a", "the", "harbour", "qqqqqqqqqqqqqqqq", "\u00a0"]), max_size=25), max_size=3)
)
def test_each_word_is_in_exactly_one_window_and_no_window_is_too_long(load_tiny: Load, sentences: list[list[str]]):
    split = encode_words(load_tiny("bert").tokenizer, sentences, 12)
    assert all(len(row.pieces) <= 12 for row in split.rows)
    assert split.word_counts == [len(words) for words in sentences]
    for number, words in enumerate(sentences):
        rows = [row for row in split.rows if row.example == number]
        assert [label for row in rows for label in row.label] == list(range(len(words)))
        assert [row.offset for row in rows] == [row.label[0] for row in rows]
        assert all(len(row.word_starts) == len(row.label) for row in rows)


def test_windows_and_words_that_lose_pieces_are_counted(load_tiny: Load):
    giant, long = ["q" * 40], ["a"] * 30
    split = encode_words(load_tiny("bert").tokenizer, [giant, long, ["a"], [*giant, *giant]], 12)
    assert (split.truncated, split.windowed) == (2, 2)
    assert [row.example for row in split.rows] == [0, 1, 1, 1, 2, 3, 3]
    assert [len(row.word_starts) for row in split.rows] == [1, 10, 10, 10, 1, 1, 1]


@given(st.integers(1, 400), st.integers(6, 60))
def test_no_window_of_even_words_is_tiny(words: int, room: int):
    windows = split_windows([1] * words, room)
    assert [index for window in windows for index in window] == list(range(words))
    assert all(len(window) <= room for window in windows)
    assert len(windows) == 1 or min(map(len, windows)) >= room // 2
