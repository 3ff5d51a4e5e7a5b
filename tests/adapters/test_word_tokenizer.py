"""Word tokenizers: what Moses' rules do to raw text, and what of them reaches an encoder, its cache and an export."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.adapters import encoders, settings
from meltpoint.adapters.data.input_format import InputFormat, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.data.word_tokenizer import default_word_tokenizer, separate_words
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.elmo.characters import piece_of
from meltpoint.adapters.features.layout import feature_key
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.task import Example

MOSES = InputFormat(word_tokenizer="moses")
KIND = "sentence_classification"
TEXT = 'He said it wasn\'t "good". Mr. Berg of the U.S. paid $3.50 (or more).'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT, 'He said it wasn \'t " good " . Mr. Berg of the U.S. paid $ 3.50 ( or more ) .'),
        ("It rained. We stayed in, as ever!", "It rained . We stayed in , as ever !"),
        ("AT&T's <1,000 men> ... wait", "AT & T 's < 1,000 men > ... wait"),
        ("", ""),
    ],
)
def test_moses_separates_punctuation_from_words_and_keeps_abbreviations_and_numbers(text, words):
    assert separate_words(text, "moses") == words


def test_whitespace_leaves_a_text_exactly_as_it_is():
    assert separate_words(f" {TEXT}  ", "whitespace") == f" {TEXT}  "


@pytest.mark.parametrize(
    ("reads_words", "tokenised", "expected"),
    [(True, False, "moses"), (True, True, "whitespace"), (False, False, "whitespace"), (False, True, "whitespace")],
)
def test_only_raw_text_for_an_encoder_that_reads_words_is_split_by_default(reads_words, tokenised, expected):
    assert default_word_tokenizer(reads_words, tokenised) == expected


def test_elmo_reads_words_and_no_other_family_does(elmo_folder: Path):
    assert encoders.resolve(f"elmo:{elmo_folder}", KIND).reads_words
    assert not encoders.resolve("minilm", KIND).reads_words


def test_elmo_gets_the_words_of_a_sentence_and_of_both_sentences_of_a_pair(elmo: Encoder):
    good = tuple(map(piece_of, ("It", "was", "good", ".")))
    split = encode_split(KIND, [Example("0", ("It was good.",), label=0)], elmo.tokenizer, 50, MOSES)
    assert split.rows[0].pieces == good
    pair = Example("0", ("It was good.", "Was it?"), label=0)
    row = encode_split("pair_classification", [pair], elmo.tokenizer, 50, MOSES).rows[0]
    assert row.pieces == (*good, *map(piece_of, ("Was", "it", "?")))
    assert row.cut == 4


def test_the_words_of_sequence_labelling_stay_as_they_are(elmo: Encoder):
    example = Example("0", words=("good.", "don't"), label=(0, 1))
    rows = [encode_split("sequence_labelling", [example], elmo.tokenizer, 50, own).rows for own in (MOSES, None)]
    assert rows[0] == rows[1]


def test_a_word_tokenizer_is_in_the_key_of_cached_features(elmo: Encoder):
    def key(text: str, own: InputFormat) -> str:
        split = encode_split(KIND, [Example("0", (text,), label=0)], elmo.tokenizer, 50, own)
        return feature_key(elmo, split, KIND, "fp32", "all").id

    assert key("It was good.", MOSES) != key("It was good.", InputFormat())
    assert key("It was good.", MOSES) == key("It was good .", InputFormat())  # the same words are the same states


def test_settings_of_two_word_tokenizers_are_two_settings_and_the_default_is_left_out():
    moses, plain = ({"word_tokenizer": word} for word in ("moses", "whitespace"))
    full = settings.complete(moses, "feature_extraction", "bcn")
    assert full["word_tokenizer"] == "moses"
    assert settings.complete(plain, "feature_extraction", "bcn") == settings.complete({}, "feature_extraction", "bcn")
    assert input_format_of(full, joint_pairs=True) == MOSES
    with pytest.raises(ValueError, match="word_tokenizer has no place"):
        settings.complete(moses, "feature_extraction", "bilstm_crf")


def test_a_complete_setting_is_found_in_a_space_that_searches_what_it_leaves_out():
    allowed = {own.name: own for own in settings.parameters("feature_extraction", "bcn")}
    space = Space.of({"word_tokenizer": {"choice": ["moses", "whitespace"]}}, allowed)
    assert space.trimmed(settings.complete({}, "feature_extraction", "bcn")) == {"word_tokenizer": "whitespace"}
    assert space.from_params({})[0] == {"word_tokenizer": "whitespace"}
