"""LoRA trials side by side on one frozen encoder: each has the numbers that it has alone, within rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters.test_graphs import a_recorder

Make = Callable[..., Any]

SAME: dict[str, Any] = {"dropout": 0.0, "encoder_dropout": 0.0}
TRIALS: list[tuple[int, dict[str, Any]]] = [
    (0, {**SAME, "lora.rank": 4, "learning_rate": 3e-3, "weight_decay": 0.1, "epochs": 3}),
    (0, {**SAME, "lora.rank": 2, "learning_rate": 1e-2, "gradient_clip": 0.0}),
    (0, {**SAME, "lora.rank": 8, "lora.alpha": 4, "learning_rate": 3e-2, "schedule": "linear_warmup_decay"}),
]


def told(trainer: Trainer) -> list[list[tuple[float, dict[str, float]]]]:
    """Each member's losses and dev scores."""
    list(trainer.epochs())
    return [[(result.train_loss, result.dev) for result in trial.results] for trial in trainer.trials]


def check(make_stack: Make, trials: list[tuple[int, dict[str, Any]]], *cell: Any, **more: Any) -> None:
    together = make_stack(*cell, trials, mode="lora", **more)
    found = told(together)
    for index, trial in enumerate(trials):
        alone = make_stack(*cell, [trial], mode="lora", family=more.get("family", "bert"))
        (expected,) = told(alone)
        assert [loss for loss, _ in found[index]] == pytest.approx([loss for loss, _ in expected], rel=1e-3)
        one, two = together.trials[index].best_state, alone.trials[0].best_state
        assert one.keys() == two.keys()
        for name, own in two.items():
            torch.testing.assert_close(one[name], own, atol=2e-3, rtol=2e-3, msg=name)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "modernbert", "mpnet"])
def test_a_trial_beside_others_of_other_ranks_is_the_trial_alone(make_stack: Make, family: str):
    check(make_stack, TRIALS, "sentence_classification", "linear", family=family)


@pytest.mark.parametrize(
    ("kind", "head"),
    [("sequence_labelling", "linear"), ("pair_regression", "linear"), ("pair_classification", "sentence_vectors")],
)
def test_words_and_pairs_train_beside_others_too(make_stack: Make, kind: Kind, head: str):
    check(make_stack, TRIALS, kind, head)


def test_steps_side_by_side_are_recorded_as_graphs(make_stack: Make):
    recorder = a_recorder()
    check(make_stack, TRIALS, "sentence_classification", "linear", recorder=recorder)
    assert recorder.runs > recorder.recorded > 0


def test_relative_positions_that_no_trial_has_for_itself_keep_trials_apart(make_stack: Make):
    with pytest.raises(ValueError, match="cannot train side by side"):
        make_stack("sentence_classification", "linear", TRIALS, mode="lora", family="deberta-v2")


def test_the_pretrained_encoder_is_not_changed(make_stack: Make, load_tiny: Callable[[str], Encoder]):
    trainer = make_stack("sentence_classification", "linear", TRIALS, mode="lora")
    told(trainer)
    fresh = load_tiny("bert").state_dict()
    assert all(torch.equal(own, fresh[name]) for name, own in trainer.model.pretrained.state_dict().items())
    assert all(own.requires_grad for own in trainer.model.pretrained.parameters())
