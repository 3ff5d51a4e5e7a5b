"""The rules that watch a trial's scores: patience, plateaus, and the gap rule of the first phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.multiplier_table import Phase, Plan
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trial_state import is_over, plateaus
from meltpoint.tests.adapters.devices import cpu_bits, cpu_draws
from meltpoint.tests.adapters.tiny_tasks import opposite_examples

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
    ends = (n for n in range(1, len(found) + 1) if is_over(found[:n], whole, wait, "accuracy"))
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


def test_no_patience_trains_all_a_nan_is_no_better_score_and_an_earlier_phase_does_not_count() -> None:
    assert trained([0.9, 0.1, 0.1, 0.1], plan(4), 0) == 4
    assert trained([0.5, math.nan, math.nan, 0.9], plan(4), 2) == 3
    assert trained([0.9, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1], plan(3, 4), 2) == 6, "two after the best of the last phase"
    assert trained([0.9, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1], plan(3, 4), 2) == 7, "0.2 is a better score than 0.1"


def rates_of_torch(scores: Sequence[float], mode: Literal["min", "max"], wait: int) -> list[float]:
    """The rate in each epoch by torch's own rule, which AllenNLP calls after each."""
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, mode, factor=0.5, patience=wait, eps=0.0)
    found = []
    for score in scores:
        found.append(optimiser.param_groups[0]["lr"])
        scheduler.step(score)
    return found


@given(
    st.lists(st.integers(0, 8).map(lambda n: n / 8) | st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=12),
    st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_the_rate_falls_where_torchs_reduce_lr_on_plateau_lowers_it(scores: list[float], wait: int, error: bool):
    metric = "mse" if error else "accuracy"
    results = [own.model_copy(update={"dev": {metric: own.dev["accuracy"]}}) for own in results_of(scores)]
    found = plateaus(results, plan(len(scores)), wait, metric)
    rates = [0.5 ** sum(end < epoch for end in found) for epoch in range(1, len(scores) + 1)]
    assert rates == rates_of_torch(scores, "min" if error else "max", wait)


def test_of_negative_scores_an_equal_one_is_no_better_one():
    assert plateaus(results_of([-0.5, -0.5, -0.4, -0.4]), plan(4), 0, "accuracy") == (2, 4)


@pytest.mark.parametrize(("restarts", "found"), [(True, (2, 5)), (False, (2, 3, 4, 5))])
def test_each_span_of_the_schedule_has_plateaus_of_its_own(restarts: bool, found: tuple[int, ...]):
    two = replace(plan(2, 3), restart_schedule=restarts)
    results = results_of([0.9, 0.8, 0.3, 0.4, 0.4])
    results = [own.model_copy(update={"phase": two.phase_at(n)[0].name}) for n, own in enumerate(results)]
    assert plateaus(results, two, 0, "accuracy") == found


PLATEAU = {"schedule": "reduce_on_plateau", "reduce_on_plateau.factor": 0.25}


@cpu_bits
def test_the_rates_of_members_side_by_side_follow_each_ones_own_dev(make_stack: Make) -> None:
    waits = (0, 1, 3)
    trials = [(0, {**PLATEAU, "reduce_on_plateau.patience": n, "learning_rate": 1e-2, "epochs": 8}) for n in waits]
    bundle = make_stack("sentence_classification", "linear", trials)
    list(bundle.epochs())
    counts = set()
    for index, trial in enumerate(trials):
        own = bundle.trials[index]
        ends = plateaus(own.results, own.table.plan, waits[index], "accuracy")
        counts.add(ends)
        rates = [1e-2 * 0.25 ** sum(end < one.epoch for end in ends) for one in own.results]
        assert [one.learning_rate for one in own.results] == pytest.approx(rates, rel=1e-12)
        alone = make_stack("sentence_classification", "linear", [trial])
        list(alone.epochs())
        assert [one.dev for one in alone.trials[0].results] == [one.dev for one in own.results]
        assert all(torch.equal(kept, own.best_state[name]) for name, kept in alone.trials[0].best_state.items())
    assert len(counts) > 1, "the trials of this test have plateaus in different epochs"


def worse_on_dev(make_trainer: Make, **changes: Any) -> Any:
    """A trial whose dev gets worse as it learns."""
    return make_trainer("feature_extraction", **opposite_examples(), learning_rate=0.01, **changes)


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


def overfitting(make_trainer: Make, gap: float, **changes: Any) -> Any:
    """The better this trial learns, the wider its gap."""
    return make_trainer(
        "stack_and_finetune", **opposite_examples(), epochs=2, encoder_dropout=0.0,
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


@pytest.mark.parametrize("gap", [0.05, 0.25, 0.0])
def test_the_result_is_an_epoch_of_the_second_phase_also_where_dev_was_best_in_the_first(
    make_trainer: Make, gap: float
):
    """Dev is best when the gap becomes too wide; the second phase trains everything at a rate that ruins it."""
    train, opposite = opposite_examples().values()
    dev = [*train, *(replace(example, id=f"not {example.id}") for example in opposite[:2])]
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
