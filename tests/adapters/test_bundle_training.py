"""Trials that train side by side, on cached states, or on another's first phase: the numbers are those of one alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from meltpoint.adapters import heads
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import NotFiniteError
from meltpoint.tasks.core.task import KINDS, Kind
from meltpoint.tests.adapters.devices import cpu_bits

Make = Callable[..., Any]
Trial = tuple[int, Mapping[str, Value]]

TRIALS: list[Trial] = [
    (0, {"learning_rate": 1e-3, "dropout": 0.5, "weight_decay": 0.1}),
    (0, {"learning_rate": 1e-2, "dropout": 0.0, "epochs": 4}),
    (0, {"learning_rate": 3e-2, "dropout": 0.2, "schedule": "linear_warmup_decay", "epochs": 3}),
    (0, {"learning_rate": 1e-2, "dropout": 0.3, "gradient_clip": 0.0}),
]
CELLS = [(word, kind) for word in heads.names() for kind in KINDS if kind in heads.get(word).kinds]


def timeless(result: EpochResult | NotFiniteError) -> object:
    if isinstance(result, NotFiniteError):
        return str(result)
    return result.model_copy(update={"train_seconds": 0.0, "dev_seconds": 0.0})


def told(trainer: Trainer, epochs: Any = None) -> dict[int, list[object]]:
    """What each member's epochs gave, without their times."""
    found: dict[int, list[object]] = {}
    for results in epochs or trainer.epochs():
        for member, result in results:
            found.setdefault(member, []).append(timeless(result))
    return found


def same_weights(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# --- side by side ---


@cpu_bits
@pytest.mark.parametrize(("head", "kind"), CELLS)
@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_a_trial_in_a_stack_is_the_trial_alone_to_the_last_bit(make_stack: Make, head: str, kind: Kind, precision: str):
    trials = [(seed, {**setting, "precision": precision}) for seed, setting in TRIALS]
    bundle = make_stack(kind, head, trials)
    together = told(bundle)
    assert [len(results) for results in together.values()] == [2, 4, 3, 2]
    for index, trial in enumerate(trials):
        alone = make_stack(kind, head, [trial])
        assert told(alone) == {0: together[index]}
        assert alone.trials[0].best == bundle.trials[index].best
        assert same_weights(alone.trials[0].best_state, bundle.trials[index].best_state)


@cpu_bits
@pytest.mark.parametrize("family", ["roberta", "electra"])
def test_a_native_head_that_calls_one_dropout_twice_has_its_own_mask_at_each_place(make_stack: Make, family: str):
    trials = [(0, {"dropout": 0.5, "epochs": 2})] * 3
    bundle = make_stack("sentence_classification", "native", trials, family=family)
    alone = make_stack("sentence_classification", "native", trials[:1], family=family)
    assert list(told(bundle).values()) == [*told(alone).values()] * 3
    assert all(same_weights(alone.trials[0].best_state, trial.best_state) for trial in bundle.trials)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "kind"), CELLS)
def test_trials_of_several_seeds_in_a_stack_are_the_trials_alone_within_rounding(
    make_stack: Make, head: str, kind: Kind
):
    """Their batches are padded to one width, and a dropout mask depends on the width: so without dropout."""
    trials = [(seed, {**setting, "dropout": 0.0, "learning_rate": 1e-3}) for seed, (_, setting) in enumerate(TRIALS)]
    together = told(make_stack(kind, head, trials))
    for index, trial in enumerate(trials):
        (alone,) = told(make_stack(kind, head, [trial])).values()
        losses = [[result.train_loss for result in results] for results in (together[index], alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@cpu_bits
def test_a_member_that_diverges_leaves_and_the_others_never_notice(make_stack: Make, monkeypatch: pytest.MonkeyPatch):
    bundle = make_stack("sentence_classification", "linear", TRIALS)
    loss = bundle.model.head.loss
    third = [True, True, False, True]

    def explode(scores: torch.Tensor, batch: object) -> torch.Tensor:
        losses = loss(scores, batch)
        broken = bundle.step >= 4 and len(losses) == 4
        return (
            losses * losses.new_tensor([1.0 if fine or not broken else math.nan for fine in third])
            if broken
            else losses
        )

    monkeypatch.setattr(bundle.model.head, "loss", explode)
    found = told(bundle)
    assert "not finite in epoch 2" in str(found[2][-1])
    assert [len(results) for results in found.values()] == [2, 4, 2, 2]
    for index in (0, 1, 3):
        assert told(make_stack("sentence_classification", "linear", [TRIALS[index]])) == {0: found[index]}


# --- on cached states ---


@pytest.mark.parametrize(("head", "kind"), CELLS)
def test_cached_states_give_the_epochs_that_the_running_encoder_gives(
    make_stack: Make, kept_states: Any, head: str, kind: Kind
):
    cached, plain = make_stack(kind, head, TRIALS, frozen_states=kept_states), make_stack(kind, head, TRIALS)
    one, two = told(cached), told(plain)
    assert kept_states.opened == 2, "train and dev, each once"
    for index in range(4):
        losses = [[result.train_loss for result in found[index]] for found in (one, two)]
        assert losses[0] == pytest.approx(losses[1], rel=2e-4)
        # Of BERT's pooler on a small random encoder the six scores lie 2e-5 apart, so that a unit in the last place
        # of a score moves their correlation by 3e-3 and more; the scores themselves are compared below.
        if head != "native" or not kind.endswith("regression"):
            assert one[index][-1].dev == pytest.approx(two[index][-1].dev, abs=2e-3)


def test_the_encoder_never_runs_where_its_states_are_cached(make_stack: Make, kept_states: Any):
    told(make_stack("sentence_classification", "bilstm", TRIALS, frozen_states=kept_states))
    again = make_stack("sentence_classification", "bilstm", TRIALS, frozen_states=kept_states)
    runs: list[int] = []
    again.model.encoder.register_forward_hook(lambda *_: runs.append(1))
    told(again)
    assert runs == []


def test_an_encoder_that_has_moved_is_never_read_from_the_cache(make_trainer: Make, kept_states: Any):
    trial = {"epochs": 2, "stack_and_finetune__stack_epochs": 2, "precision": "fp32", "dropout": 0.0}
    cached = make_trainer("stack_and_finetune", frozen_states=kept_states, **trial)
    plain = make_trainer("stack_and_finetune", **trial)
    pairs = zip(cached.results(), plain.results(), strict=True)
    assert [one.train_loss for one, _ in pairs] == pytest.approx(
        [result.train_loss for result in plain.trial.results], rel=1e-3
    )
    assert kept_states.opened == 2
    assert cached.encoder_moved
