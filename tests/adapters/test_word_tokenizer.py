"""Word tokenizers: what Moses' rules do to raw text, and what of them reaches an encoder, its cache and an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from meltpoint.adapters import heads, settings
from meltpoint.adapters.data.batching import collate, inputs
from meltpoint.adapters.data.input_format import (
    FEATS,
    STATISTICS,
    InputFormat,
    default_word_tokenizer,
    input_format_of,
    is_number,
    of_words,
    pair_statistics,
    separate_words,
)
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.elmo.layers import piece_of
from meltpoint.adapters.features.layout import feature_key, rows_digest
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.layers.attention import compared
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example
from meltpoint.tests.adapters.head_cases import CUTS, DIM, make_batch

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


def test_a_setting_names_the_word_tokenizer_unless_its_head_labels_words():
    moses = {"word_tokenizer": "moses"}
    assert input_format_of(settings.complete(moses, "feature_extraction", "bcn"), joint_pairs=True) == MOSES
    with pytest.raises(ValueError, match="word_tokenizer has no place"):
        settings.complete(moses, "feature_extraction", "bilstm_crf")


def test_a_complete_setting_is_found_in_a_space_that_searches_what_it_leaves_out():
    allowed = {own.name: own for own in settings.parameters("feature_extraction", "bcn")}
    space = Space.of({"word_tokenizer": {"choice": ["moses", "whitespace"]}}, allowed)
    assert space.trimmed(settings.complete({}, "feature_extraction", "bcn")) == {"word_tokenizer": "whitespace"}
    assert space.from_params({})[0] == {"word_tokenizer": "whitespace"}


ON = {FEATS: True}
WORDS = ("ships", "came", "home", "3.5", "3", "1,000", "3", "-2", ".", "nan")


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [("3 ships came", "the 3 ships 3", (1, 1, 1, 2 / 3, 2 / 3, (3 / 4 + 4 / 3) / 2)),
     ("", "ships", (1, 0, 1, 0, 0, 1)), ("", "", (1, 0, 1, 0, 0, 1))],
)  # fmt: skip
def test_small_pairs_have_the_numbers_counted_by_hand(one: str, two: str, wanted: tuple[float, ...]):
    assert of_words(one.split(), two.split()) == pytest.approx(wanted)


def by_loops(one: list[str], two: list[str]) -> list[float]:
    """The six numbers of the released `eval_msrp.py`, word by word and without sets."""
    words_one, words_two = list(dict.fromkeys(one)), list(dict.fromkeys(two))
    numbers_one, numbers_two = ([word for word in words if is_number(word)] for words in (words_one, words_two))
    inside = all(number in numbers_two for number in numbers_one)
    around = all(number in numbers_one for number in numbers_two)
    common = sum(word in words_two for word in words_one)
    lengths = 0.5 * (len(one) / len(two) + len(two) / len(one))
    equal = inside and around
    return [
        1.0 if equal else 0.0, 1.0 if equal and len(numbers_one) > 0 else 0.0, 1.0 if inside or around else 0.0,
        common / len(words_one), common / len(words_two), lengths,
    ]  # fmt: skip


@given(*[st.lists(st.sampled_from(WORDS), min_size=1, max_size=8)] * 2)
def test_they_are_those_of_the_released_code_by_plain_loops(one: list[str], two: list[str]):
    assert of_words(one, two) == pytest.approx(by_loops(one, two))
    assert len(of_words(one, two)) == STATISTICS


def test_numbers_are_what_python_2_reads_as_a_float():
    assert all(map(is_number, ["3", "3.5", ".5", "-2", "+1", "1e5", "nan", "inf"]))
    assert not any(map(is_number, ["", "1,000", "1_000", "3rd", "$3", "\u0663", "ships"]))


def test_words_are_the_treebanks_whatever_encoder_reads_the_texts():
    assert pair_statistics("He said, it isn't 3.", "He said it is n't 3 .")[:3] == (1, 1, 1)
    assert pair_statistics("They came home.", "They came home !")[3] == 3 / 4


def pairs(*texts: tuple[str, str]) -> list[Example]:
    return [Example(str(number), texts=pair, label=number % 2) for number, pair in enumerate(texts)]


PAIRS = pairs(("3 ships came home.", "ships came home"), ("the film", "a quiet film of 3"), ("London", "Paris"))


def test_rows_carry_them_where_the_setting_asks_and_the_encoder_reads_the_same_pieces(
    load_tiny: Callable[..., Encoder],
):
    kind, tokenizer = "pair_classification", load_tiny("bert").tokenizer
    plain = encode_split(kind, PAIRS, tokenizer, 32, InputFormat(pairing="separate"))
    asked = encode_split(kind, PAIRS, tokenizer, 32, input_format_of(ON, joint_pairs=False))
    assert [row.statistics for row in plain.rows] == [()] * 3
    assert [row.statistics for row in asked.rows] == [pair_statistics(*example.texts) for example in PAIRS]
    assert rows_digest(asked.rows) == rows_digest(plain.rows)  # cached features are shared
    for first_pieces in (False, True):
        batch = collate(inputs(asked, None, first_pieces).rows, [2, 0], 0, kind, encoded=True)
        rows = [asked.rows[2].statistics, asked.rows[0].statistics]
        torch.testing.assert_close(batch.statistics, torch.tensor(rows))
    assert collate(plain.rows, [0], 0, kind).statistics is None


@pytest.mark.parametrize("form", ["kiros", "glue"])
def test_the_head_scores_them_beside_the_vectors(form: str):
    shape, setting = HeadShape("pair_classification", DIM, 4), {"sentence_vectors.pair": form, "dropout": 0.0, **ON}
    head = heads.get("sentence_vectors")(shape, [setting], MemberRng([0])).eval()
    states, batch = make_batch("pair_classification")
    cuts = torch.stack([states[:, row, cut] for row, cut in enumerate(CUTS.tolist())], 1)
    vectors = torch.cat([compared(states[:, :, 0], cuts, form), batch.statistics[None]], -1)
    torch.testing.assert_close(head(states, batch), head.scores.linear(vectors))


def test_alone_they_reach_the_accuracy_that_the_released_code_names_on_mrpc(shared: Path):
    """`eval_msrp.py`: "These alone should give the same result from their paper (~73.2 Acc)": logistic regression."""
    spec = DataSpec("mrpc", str(shared / "data"))
    data = load_training_data(spec)
    train, test = [*data.train, *data.dev], open_test(spec).examples
    found, wanted = (numpy.array([pair_statistics(*example.texts) for example in part]) for part in (train, test))
    model = LogisticRegression().fit(found, [example.label for example in train])
    assert model.score(wanted, [example.label for example in test]) == pytest.approx(0.732, abs=0.01)
