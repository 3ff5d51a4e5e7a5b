"""Evaluation: neither batches, windows nor padding change what is predicted, and hidden labels are never scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.training.evaluation import EVALUATION_BATCH, Evaluation, evaluate
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import KINDS, Example, Kind
from meltpoint.tests.adapters.devices import cpu_tensors

pytestmark = cpu_tensors

Make = Callable[..., Any]
MakeExamples = Callable[[Kind, int], list[Example]]


def run(trainer: Trainer, examples: list[Example], precision: Precision = "fp32", max_pieces: int = 32) -> Evaluation:
    task, tokenizer = trainer.data.task, trainer.model.encoder.tokenizer
    split = encode_split(task.kind, examples, tokenizer, max_pieces)
    (found,) = evaluate(trainer.model, task, split, examples, torch.device("cpu"), precision)
    return found


def trained(make_trainer: Make, kind: Kind) -> Trainer:
    """A model whose predictions differ from example to example."""
    trainer = make_trainer("fine_tuning", kind, learning_rate=5e-3, epochs=6, train=24, dropout=0.0)
    list(trainer.results())
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_in_batches_are_those_one_by_one_in_the_examples_order(
    make_trainer: Make, make_examples: MakeExamples, kind: Kind
):
    trainer, examples = trained(make_trainer, kind), make_examples(kind, EVALUATION_BATCH + 6)
    together = run(trainer, examples)
    gold = [example.label for example in examples]
    assert together.metrics == score(trainer.data.task, gold, together.predictions, together.probabilities)
    alone = [run(trainer, [example]) for example in examples]
    singles = [one.predictions[0] for one in alone]
    if kinds.get(kind).is_regression:
        assert together.predictions == pytest.approx(singles, abs=1e-4)
    else:
        assert together.predictions == singles
    assert len({str(prediction) for prediction in singles}) > 1, "the order would not show"
    assert next(iter(together.metrics)) == trainer.data.task.metric
    for found, one in zip(together.probabilities, (one.probabilities for one in alone), strict=False):
        assert found == pytest.approx(one[0], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_there_for_classification_and_agree_with_the_predictions(
    make_trainer: Make, make_examples: MakeExamples, kind: Kind
):
    found = run(trained(make_trainer, kind), make_examples(kind, 8))
    if not kinds.get(kind).gives_probabilities:
        assert found.probabilities == []
        return
    assert len(found.probabilities) == 8
    if kinds.get(kind).has_labels:
        assert [[int(share >= 0.5) for share in row] for row in found.probabilities] == found.predictions
        return
    assert [sum(row) for row in found.probabilities] == pytest.approx([1.0] * 8)
    if kinds.get(kind).target == "label":
        assert [row.index(max(row)) for row in found.probabilities] == found.predictions
    else:  # the median of grades
        assert [sum(sum(row[:k]) < 0.5 for k in (1, 2)) for row in found.probabilities] == found.predictions


def test_a_sentence_in_windows_gets_one_label_a_word_each_from_its_own_window(make_trainer: Make):
    trainer = trained(make_trainer, "sequence_labelling")
    words = ("the", "old", "ships", "came", "home", "and", "London", "film", "in", "Paris", "was", "quiet") * 3
    examples = [
        Example("long", words=words, label=(0,) * len(words)),
        Example("none", words=(), label=()),
        Example("short", words=("London", "was", "old"), label=(1, 0, 0)),
    ]
    limit = 12
    split = encode_split("sequence_labelling", examples, trainer.model.encoder.tokenizer, limit)
    windows = [row for row in split.rows if row.example == 0]
    assert len(windows) > 3
    found = run(trainer, examples, max_pieces=limit)
    assert [len(labels) for labels in found.predictions] == [36, 0, 3]
    ends = [*(row.offset for row in windows[1:]), len(words)]
    pieces = [words[row.offset : end] for row, end in zip(windows, ends, strict=True)]
    alone = [run(trainer, [Example("w", words=piece)], max_pieces=limit).predictions[0] for piece in pieces]
    assert found.predictions[0] == [label for labels in alone for label in labels]


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_labels_give_predictions_and_no_metrics(make_trainer: Make, make_examples: MakeExamples, kind: Kind):
    trainer, known = make_trainer("fine_tuning", kind), make_examples(kind, 4)
    hidden = [Example(e.id, texts=e.texts, words=e.words) for e in known]
    found = run(trainer, hidden)
    assert found.metrics == {}
    assert found.predictions == run(trainer, known).predictions
    assert run(trainer, [*known[:3], hidden[3]]).metrics == {}


def test_no_examples_give_no_predictions_and_no_metrics(make_trainer: Make):
    assert run(make_trainer("fine_tuning"), []) == Evaluation([], [], {})


def test_evaluation_is_without_dropout_and_without_gradients(make_trainer: Make, make_examples: MakeExamples):
    trainer = make_trainer("fine_tuning", dropout=0.5, encoder_dropout=0.5)
    examples = make_examples("sentence_classification", 8)
    trainer.model.train()
    tracked: set[bool] = set()
    trainer.model.head.register_forward_hook(lambda *given: tracked.add(given[-1].requires_grad))
    first, second = run(trainer, examples), run(trainer, examples)
    assert first == second
    assert not trainer.model.training
    assert tracked == {False}


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_predicts_nearly_what_fp32_does(make_trainer: Make, make_examples: MakeExamples, kind: Kind):
    trainer, examples = trained(make_trainer, kind), make_examples(kind, 8)
    exact, rough = run(trainer, examples), run(trainer, examples, "bf16")
    assert len(exact.predictions) == len(rough.predictions)
    if kinds.get(kind).is_regression:
        assert rough.predictions == pytest.approx(exact.predictions, abs=0.1)
        assert rough.predictions != exact.predictions, "autocast is on"
    for one, other in zip(exact.probabilities, rough.probabilities, strict=True):
        assert other == pytest.approx(one, abs=0.05)
