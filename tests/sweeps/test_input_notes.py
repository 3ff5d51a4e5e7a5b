"""Input notes: which limit cut the inputs, whose it is, how much is lost, and the option that keeps it."""

from __future__ import annotations

import pytest

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.worker.fitness import input_notes
from meltpoint.tasks import get


def data(limit: int, whole: int, task: str = "demo_sentiment", **dev: object) -> EncodedData:
    """60 training examples of `whole` pieces each, cut to `limit`, and a dev split."""
    rows = [Row(number, 0, (1,) * min(limit, whole), (), (), 0) for number in range(60)]
    cut = 60 * max(0, whole - limit)
    train = EncodedSplit(rows, 60, 60 if cut else 0, name="train", whole=[whole] * 60, pieces_cut=cut)
    return EncodedData(get(task), train, EncodedSplit([], **dev), [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_pieces", "longest", "whole", "said"),
    [
        (128, 512, 160, "max_pieces = 128 (100 %; 20 % of all pieces lost); --set max_pieces=160 would keep all"),
        (128, 512, 161, "max_pieces = 128 (100 %; 20.5 % of all pieces lost); --set max_pieces=168 would keep all"),
        (
            300,
            512,
            600,
            "max_pieces = 300 (100 %; 50 % of all pieces lost); --set max_pieces=512 would keep all but 60",
        ),
        (
            512,
            512,
            640,
            "the encoder's longest input, 512 pieces (100 %; 20 % of all pieces lost); the longest has 640",
        ),
    ],
)
def test_a_note_on_cut_inputs_names_the_limit_and_what_would_keep_them(
    max_pieces: int, longest: int, whole: int, said: str
):
    notes = input_notes(data(max_pieces, whole, examples=9, name="dev"), max_pieces, longest)
    assert notes == [f"train: 60 of 60 examples cut to {said}"]


def test_nothing_is_said_of_inputs_that_fit():
    assert input_notes(data(128, 128, examples=9, name="dev"), 128, 512) == []


def test_an_encoder_without_a_longest_input_is_offered_what_a_setting_can_be():
    (note,) = input_notes(data(128, 20_000, examples=9, name="dev"), 128, 100_000)
    assert note.endswith("--set max_pieces=8192 would keep all but 60")


def test_a_length_that_the_encoder_cannot_take_is_said_to_be_read_as_the_encoders_limit():
    first, second = input_notes(data(64, 80, examples=9, name="dev"), 128, 64)
    assert first == "max_pieces = 128 was read as the encoder's longest input, 64 pieces"
    assert second == (
        "train: 60 of 60 examples cut to the encoder's longest input, 64 pieces (100 %; 20 % of all pieces lost); "
        "the longest has 80"
    )


def test_sentences_to_label_are_said_to_lose_a_word_or_to_be_split():
    rows = [Row(0, 0, (1,) * 100, (), (), ()), Row(0, 60, (1,) * 100, (), (), ())]
    dev = {
        "rows": rows, "examples": 1, "name": "dev", "word_counts": [100], "truncated": 1, "windowed": 1, "alone": 1,
        "whole": [250], "pieces_cut": 50,
    }  # fmt: skip
    own = EncodedData(get("demo_entities"), EncodedSplit([], 0, name="train"), EncodedSplit(**dev), [])  # type: ignore[arg-type]
    assert input_notes(own, 128, 512) == [
        "dev: 1 of 1 sentence with a word cut to max_pieces = 128 (100 %; 20 % of all pieces lost); "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence split into windows of max_pieces = 128, no word lost; "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence without a neighbour in the document",
    ]


def test_sentences_that_see_a_part_of_their_document_are_counted():
    rows = [Row(number, 0, (1,) * 20, (), (), (), before=(1,) * 40, after=(1,) * 40) for number in range(4)]
    train = EncodedSplit(rows, 4, word_counts=[9] * 4, name="train", whole=[300, 300, 100, 100], narrowed=2)
    own = EncodedData(get("demo_entities"), train, EncodedSplit([], 0, name="dev"), [])
    (note,) = input_notes(own, 100, 512)
    assert note == (
        "train: 2 of 4 sentences without all of their document in max_pieces = 100 (50 %; the mean input has 100 of "
        "their document's 200 pieces); --set max_pieces=304 would keep all"
    )
