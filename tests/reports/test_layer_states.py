"""Mean states against transformers run on one input at a time; and probes of them against scikit-learn."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.reports.analyses.core.states import constant, probe, split_states
from meltpoint.tasks.core.task import Example, Task

WORDS = ("fine", "lovely", "dull", "awful", "film", "meal", "hotel", "the", "was")
LABELLED = Task("tiny", "sentence_classification", "accuracy", "", {}, labels=("bad", "good"))
SCORED = Task("tiny", "pair_regression", "pearson", "", {}, label_range=(0.0, 5.0))


@pytest.fixture
def encoder(tiny_bert: Path) -> Encoder:
    return encoders.load(encoders.resolve(f"hf:{tiny_bert}", "sentence_classification"))


def sentences(count: int) -> list[Example]:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=2 + number % 7)) for number in range(count)]
    return [Example(str(number), texts=(text,), label=number % 2) for number, text in enumerate(texts)]


def alone(encoder: Encoder, *texts: str) -> np.ndarray:
    """One input's mean states, by transformers itself: (layers, dim)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder.revision)
    with torch.no_grad():
        output = encoder.model(**tokenizer(*texts, return_tensors="pt"), output_hidden_states=True)
    return np.stack([states[0].mean(dim=0).numpy() for states in output.hidden_states])


def test_a_mean_state_is_that_of_the_sentence_alone_whatever_shares_its_batch(encoder):
    examples = sentences(70)
    result = split_states(encoder, "sentence_classification", examples)
    assert result.shape == (3, 70, 32)
    assert result.dtype == np.float32
    for place in (0, 1, 6, 69):
        np.testing.assert_allclose(result[:, place], alone(encoder, *examples[place].texts), atol=2e-6)


def test_a_pair_is_read_jointly(encoder):
    pair = Example("0", texts=("the film was fine", "the meal was cold"), label=1)
    result = split_states(encoder, "pair_classification", [pair, *[Example("1", texts=("a", "b"), label=0)]])
    np.testing.assert_allclose(result[:, 0], alone(encoder, *pair.texts), atol=2e-6)


def test_reading_leaves_the_encoder_as_it_was(encoder):
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.train()
    split_states(encoder, "sentence_classification", sentences(5))
    assert encoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def noise(examples: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((examples, 24)).astype(np.float32)


def test_a_probe_finds_a_label_that_is_in_the_states_and_none_that_is_not():
    labels = list(np.random.RandomState(0).randint(0, 2, 500))
    states = noise(500, 1)
    assert probe(LABELLED, states[:300], labels[:300], states[300:], labels[300:]) == pytest.approx(0.5, abs=0.12)
    states[:, 3] += 1000.0 + 8.0 * np.array(labels)  # far from 0, so that only a scaled fit succeeds
    assert probe(LABELLED, states[:300], labels[:300], states[300:], labels[300:]) > 0.99


def test_scores_are_probed_by_least_squares():
    states = noise(400, 2)
    weights = np.linspace(-1, 1, 24)
    scores = [float(score) for score in states @ weights + 0.1 * noise(400, 3)[:, 0]]
    result = probe(SCORED, states[:200], scores[:200], states[200:], scores[200:])
    design = np.c_[states[:200], np.ones(200)]
    solved = np.linalg.lstsq(design, np.array(scores[:200]), rcond=None)[0]
    expected = np.corrcoef(np.c_[states[200:], np.ones(200)] @ solved, scores[200:])[0, 1]
    assert result == pytest.approx(expected, abs=1e-5)


def test_the_constant_is_the_most_frequent_training_label_scored_on_dev():
    assert constant(LABELLED, [1, 1, 0], [0, 0, 0, 1]) == 0.25
    assert constant(SCORED, [1.0, 2.0], [1.0, 4.0, 5.0]) == 0.0


def test_one_label_alone_cannot_be_probed():
    with pytest.raises(ValueError, match="all have one label"):
        probe(LABELLED, noise(4, 0), [1, 1, 1, 1], noise(2, 0), [0, 1])
