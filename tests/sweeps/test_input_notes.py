"""Input notes: which limit cut the inputs, whose it is, and the option that raises it."""

from __future__ import annotations

import pytest

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.worker.input_notes import input_notes
from meltpoint.tasks import get


def data(task: str = "demo_sentiment", **dev: object) -> EncodedData:
    return EncodedData(get(task), EncodedSplit([], 60, truncated=60, name="train"), EncodedSplit([], **dev), [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_pieces", "longest", "said"),
    [
        (128, 512, "60 of 60 examples cut to max_pieces = 128; --set max_pieces=256 reads more"),
        (300, 512, "60 of 60 examples cut to max_pieces = 300; --set max_pieces=512 reads more"),
        (512, 512, "60 of 60 examples cut to the encoder's longest input, 512 pieces"),
    ],
)
def test_a_note_on_cut_inputs_names_the_limit_and_what_raises_it(max_pieces: int, longest: int, said: str):
    assert input_notes(data(examples=9, name="dev"), max_pieces, longest) == [f"train: {said}"]


def test_a_default_that_the_encoder_cannot_take_is_said_to_be_read_as_the_encoders_limit():
    first, second = input_notes(data(examples=9, name="dev"), 128, 64)
    assert first == "max_pieces = 128 was read as the encoder's longest input, 64 pieces"
    assert second == "train: 60 of 60 examples cut to the encoder's longest input, 64 pieces"


def test_sentences_to_label_are_said_to_lose_a_word_or_to_be_split():
    dev = {"examples": 1, "name": "dev", "word_counts": [300], "truncated": 1, "windowed": 1, "alone": 1}
    notes = input_notes(data("demo_entities", **dev), 128, 512)
    assert notes[1:] == [
        "dev: 1 of 1 sentence with a word cut to max_pieces = 128; --set max_pieces=256 reads more",
        "dev: 1 of 1 sentence split into windows of max_pieces = 128, no word lost",
        "dev: 1 of 1 sentence without a neighbour in the document",
    ]
