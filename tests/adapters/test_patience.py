"""The patience rule: a trial ends once dev has not improved for so many epochs; the others in its bundle go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.multiplier_table import Phase, Plan
from meltpoint.adapters.settings import complete, first_phase_parameters
from meltpoint.adapters.training import patience
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.tasks.core.task import Example
from meltpoint.tests.adapters.devices import cpu_bits

Make = Callable[..., Any]


def results_of(scores: Sequence[float]) -> list[EpochResult]:
    """Epochs with these dev scores."""
    return [
        EpochResult(
            epoch=epoch, phase="train", step=epoch, train_loss=0.0, dev={"accuracy": score}, train_seconds=0.0,
            dev_seconds=0.0, learning_rate=0.1,
        ) for epoch, score in enumerate(scores, 1)
    ]  # fmt: skip


def plan(*epochs: int) -> Plan:
    """A plan of phases with so many epochs each."""
    names = [f"phase {number}" for number in range(len(epochs) - 1)] + ["train"]
    return Plan(3, 1, tuple(Phase(name, n, 0.1, encoder_trains=False) for name, n in zip(names, epochs, strict=True)))


def trained(scores: Sequence[float], whole: Plan, wait: int) -> int:
    """How many epochs a trial with these scores trains."""
    names = [phase.name for phase in whole.phases for _ in range(phase.epochs)]
    found = [own.model_copy(update={"phase": name}) for own, name in zip(results_of(scores), names, strict=True)]
    ends = (n for n in range(1, len(found) + 1) if patience.is_over(found[:n], whole, wait, "accuracy"))
    return next(ends, len(found))


def by_counting(scores: Sequence[float], wait: int) -> int:
    """The same by AllenNLP's words: stop after so many epochs without a score above the best one."""
    best, waited = float("-inf"), 0
    for epoch, score in enumerate(scores, 1):
        best, waited = (score, 0) if score > best else (best, waited + 1)
        if waited == wait:
            return epoch
    return len(scores)


@given(st.lists(st.integers(0, 5).map(lambda n: n / 5), min_size=1, max_size=12), st.integers(1, 6))
def test_a_trial_ends_where_counting_epochs_without_a_better_score_says(scores: list[float], wait: int) -> None:
    assert trained(scores, plan(len(scores)), wait) == by_counting(scores, wait)


def test_an_equal_score_is_no_better_one_and_no_patience_trains_all() -> None:
    assert trained([0.5, 0.5, 0.5, 0.9], plan(4), 2) == 3
    assert trained([0.9, 0.1, 0.1, 0.1], plan(4), 0) == 4


def test_epochs_of_an_earlier_phase_are_not_counted() -> None:
    assert trained([0.9, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1], plan(3, 4), 2) == 6, "two after the best of the last phase"
    assert trained([0.9, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1], plan(3, 4), 2) == 7, "0.2 is a better score than 0.1"


def test_a_nan_is_no_better_score() -> None:
    assert trained([0.5, float("nan"), float("nan"), 0.9], plan(4), 2) == 3


def worse_on_dev(make_trainer: Make, **changes: Any) -> Any:
    """A trial whose dev labels are the opposite of train's, so that learning lowers dev."""
    texts = ["the old harbour", "a quiet film", "ships came home", "prices rose"]
    train = [Example(str(n), texts=(text,), label=n % 2) for n, text in enumerate(texts)]
    dev = [Example(str(n), texts=(text,), label=1 - n % 2) for n, text in enumerate(texts)]
    return make_trainer(
        "feature_extraction", "sentence_classification", train=train, dev=dev, learning_rate=0.01, **changes
    )


def test_a_trial_trains_so_many_epochs_past_its_best_and_its_weights_are_the_bests(make_trainer: Make) -> None:
    trainer = worse_on_dev(make_trainer, epochs=60, patience=3)
    found = list(trainer.results())
    (trial,) = trainer.trials
    assert len(found) == trial.best[1] + 3 < 60
    assert trial.table.plan.epochs == len(found)
    capped = worse_on_dev(make_trainer, epochs=len(found))
    list(capped.results())
    assert capped.trials[0].best == trial.best
    for name, weights in trial.best_state.items():
        assert torch.equal(weights, capped.trials[0].best_state[name]), name


@cpu_bits
def test_members_leave_a_bundle_by_themselves(make_stack: Make) -> None:
    rates = (1e-4, 1e-2, 0.03)
    trials = [(0, {"learning_rate": rate, "epochs": 30, "patience": wait}) for rate in rates for wait in (1, 3, 6)]
    bundle = make_stack("sentence_classification", "linear", trials)
    lengths = dict.fromkeys(range(len(trials)), 0)
    for outcomes in bundle.epochs():
        for member, _ in outcomes:
            lengths[member] += 1
    assert len(set(lengths.values())) > 2, "the trials of this test end at different epochs"
    for index, trial in enumerate(trials):
        alone = make_stack("sentence_classification", "linear", [trial])
        assert sum(1 for _ in alone.epochs()) == lengths[index]
        assert alone.trials[0].best == bundle.trials[index].best
        best = bundle.trials[index].best_state
        assert all(torch.equal(own, best[name]) for name, own in alone.trials[0].best_state.items())


def test_no_patience_is_no_part_of_a_setting() -> None:
    assert "patience" not in complete({"patience": 0}, "feature_extraction", "linear")
    assert complete({"patience": 4}, "feature_extraction", "linear")["patience"] == 4


def test_trials_of_any_patience_share_a_first_phase() -> None:
    names = {parameter.name for parameter in first_phase_parameters("stack_and_finetune", "linear")}
    assert "patience" not in names
