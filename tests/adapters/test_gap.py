"""The rule on the gap between train and dev: it ends the first phase of stack-and-finetune, at weights within it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meltpoint.adapters.training.shared_first_phase import SharedFirstPhases
from meltpoint.tasks.core.task import Example
from meltpoint.tests.adapters.devices import cpu_draws

Make = Callable[..., Any]
FACTS = {"encoder": "e", "data": "d", "head": "bilstm", "mode": "stack_and_finetune", "code": "c"}


def overfitting(make_trainer: Make, gap: float, **changes: Any) -> Any:
    """A trial whose dev labels are the opposite of train's: the better it learns, the wider the gap."""
    texts = ["the old harbour", "a quiet film", "ships came home", "prices rose"]
    train = [Example(str(n), texts=(text,), label=n % 2) for n, text in enumerate(texts)]
    dev = [Example(str(n), texts=(text,), label=1 - n % 2) for n, text in enumerate(texts)]
    return make_trainer(
        "stack_and_finetune", "sentence_classification", train=train, dev=dev, epochs=2, encoder_dropout=0.0,
        stack_and_finetune__stack_epochs=40, stack_and_finetune__stack_learning_rate=0.01,
        stack_and_finetune__largest_gap=gap, learning_rate=1e-6, **changes,
    )  # fmt: skip


def phases(results: list[Any]) -> dict[str, int]:
    names = [result.phase for result in results]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def gaps(results: list[Any]) -> list[float]:
    return [result.train["accuracy"] - result.dev["accuracy"] for result in results if result.phase == "stack"]


def test_without_the_rule_the_first_phase_is_as_long_as_planned_and_train_is_not_scored(make_trainer: Make):
    results = list(overfitting(make_trainer, 0.0).results())
    assert phases(results) == {"stack": 40, "finetune": 2}
    assert all(result.train == {} for result in results)


@cpu_draws
def test_the_first_phase_ends_with_the_first_epoch_beyond_the_gap(make_trainer: Make):
    results = list(overfitting(make_trainer, 0.6).results())
    found = gaps(results)
    assert 1 < len(found) < 40
    assert all(gap <= 0.6 for gap in found[:-1])
    assert found[-1] > 0.6
    assert phases(results)["finetune"] == 2
    assert all(result.train == {} for result in results if result.phase == "finetune")
    assert [result.epoch for result in results] == list(range(1, len(results) + 1))


@cpu_draws
def test_the_second_phase_starts_from_the_weights_and_moments_of_the_last_epoch_within_the_gap(make_trainer: Make):
    trainer = overfitting(make_trainer, 0.6)
    before: list[dict[str, torch.Tensor]] = []
    for result in trainer.results():
        if result.phase == "finetune":
            break
        moments = {name: tensor.clone() for name, tensor in trainer.head_optimiser.state().items()}
        before.append({**trainer.model.own_weights(0), **moments})
    assert trainer.gap_rule.within is not None
    weights, state = trainer.gap_rule.within
    for name, tensor in {**weights, **state}.items():
        assert torch.equal(before[-1][name], tensor), f"the second phase began with other {name}"
        assert torch.equal(before[-2][name], tensor), f"{name}: not of the last epoch within the gap"
    assert state["steps"].tolist() == [(len(before) - 1) * trainer.steps_per_epoch], "without the epoch beyond the gap"


@cpu_draws
def test_a_gap_that_is_too_wide_from_the_start_leaves_the_head_with_its_first_epoch(make_trainer: Make):
    trainer = overfitting(make_trainer, 1e-9, seed=next(own for own in range(20) if wide(make_trainer, own)))
    results = iter(trainer.results())
    first = next(results)
    assert first.train["accuracy"] - first.dev["accuracy"] > 1e-9
    steps = trainer.head_optimiser.state()["steps"].tolist()
    assert steps == [trainer.steps_per_epoch], "an epoch is not taken back where there is none before it"
    assert phases([first, *results]) == {"stack": 1, "finetune": 2}


def wide(make_trainer: Make, seed: int) -> bool:
    """True if a seed's first epoch is beyond any gap."""
    first = next(overfitting(make_trainer, 1e-9, seed=seed).results())
    return bool(first.train["accuracy"] > first.dev["accuracy"])


def test_a_trial_that_shares_the_shortened_phase_goes_on_as_if_it_had_trained_it(make_trainer: Make, tmp_path):
    first_phases = SharedFirstPhases(tmp_path)
    alone = [result.dev for result in overfitting(make_trainer, 0.6, dropout=0.0).results()]
    for _ in range(2):
        trainer = overfitting(make_trainer, 0.6, dropout=0.0)
        found = [result.dev for ((_, result),) in first_phases.epochs(trainer, FACTS)]
        assert found == alone
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("gap", [0.2, 0.6])
def test_a_trial_ends_after_its_second_phase_whenever_the_first_ended(make_trainer: Make, gap: float):
    trainer = overfitting(make_trainer, gap)
    results = list(trainer.results())
    assert trainer.trial.table.plan.epochs == len(results)
    assert results[-1].step == trainer.step


@pytest.mark.parametrize("gap", [0.05, 0.25, 0.0])
def test_the_result_is_an_epoch_of_the_second_phase_also_where_dev_was_best_in_the_first(
    make_trainer: Make, gap: float
):
    """Dev is best when the gap becomes too wide; the second phase trains everything at a rate that ruins it."""
    texts = ["the old harbour", "a quiet film", "ships came home", "prices rose"]
    train = [Example(str(n), texts=(text,), label=n % 2) for n, text in enumerate(texts)]
    dev = [*train, *(Example(f"not {n}", texts=(texts[n],), label=1 - n % 2) for n in range(2))]
    trainer = make_trainer(
        "stack_and_finetune", "sentence_classification", train=train, dev=dev, epochs=2, encoder_dropout=0.0, seed=3,
        dropout=0.0, stack_and_finetune__stack_epochs=40, stack_and_finetune__stack_learning_rate=0.01,
        stack_and_finetune__largest_gap=gap, learning_rate=0.5,
    )  # fmt: skip
    results = list(trainer.results())
    stacked = max(result.dev["accuracy"] for result in results if result.phase == "stack")
    assert stacked > max(result.dev["accuracy"] for result in results if result.phase == "finetune")
    dev_score, epoch = trainer.trial.best
    assert results[epoch - 1].phase == "finetune"
    assert trainer.trial.best_moved_encoder
    trainer.model.load_trained([trainer.trial.best_state])
    found = trainer.score(trainer.data.dev, trainer.data.dev_examples)
    assert found.metrics["accuracy"] == dev_score == results[epoch - 1].dev["accuracy"]
