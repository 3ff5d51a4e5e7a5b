"""epochs: which epoch of a trial is the best, and when its state is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.training.epochs import EpochResult, SavingRule, best_epoch
from meltpoint.sweeps.specification.sweep_options import LARGEST_SHARE, SHARE, largest_share
from meltpoint.tests.adapters.conftest import KeptStates

SCORES = st.lists(st.sampled_from([-0.5, 0.0, 0.25, 0.5, math.inf, -math.inf, math.nan]), max_size=8)
"""Few values, so that many are equal."""


def epochs_of(scores: list[float]) -> list[EpochResult]:
    return [
        EpochResult(
            epoch=number, phase="train", step=number, train_loss=1.0, dev={"f1": score, "accuracy": -score},
            train_seconds=0.0, dev_seconds=0.0, learning_rate=1e-3,
        )
        for number, score in enumerate(scores, 1)
    ]  # fmt: skip


@given(SCORES)
def test_no_epoch_scores_higher_and_no_earlier_one_as_high(scores):
    best = best_epoch(epochs_of(scores), "f1")
    ranks = [-math.inf if math.isnan(score) else score for score in scores]
    if not scores:
        assert best is None
        return
    assert best is not None
    own = ranks[best.epoch - 1]
    assert all(rank <= own for rank in ranks)
    assert all(rank < own for rank in ranks[: best.epoch - 1])
    assert best_epoch(epochs_of(scores)[::-1], "f1").epoch == best.epoch


def two_phases(*scores: float) -> list[EpochResult]:
    """Epochs of which the first two lie in another phase."""
    return [
        epoch.model_copy(update={"phase": "stack" if epoch.epoch <= 2 else "finetune"})
        for epoch in epochs_of([*scores])
    ]


def test_the_best_epoch_is_one_of_the_last_phase_whatever_the_first_one_reached():
    epochs = two_phases(0.9, 0.8, 0.5, 0.7)
    assert best_epoch(epochs, "f1", "finetune") is epochs[3]
    assert best_epoch(epochs[:2], "f1", "finetune") is None, "the last phase has no epoch yet"


# --- when a state is saved ---


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def rule(share: float = LARGEST_SHARE) -> tuple[SavingRule, Clock]:
    clock = Clock()
    return SavingRule(share, clock), clock


def test_the_first_save_is_judged_by_its_size_and_the_next_by_what_the_last_one_took():
    own, clock = rule()
    clock.now += 100.0  # of which 2 s may be spent
    assert own.is_due(lambda: 190_000_000)
    assert not own.is_due(lambda: 200_000_000)
    own.note_save(1.0)
    clock.now += 49.9
    assert not own.is_due(lambda: 0)
    clock.now += 0.2
    assert own.is_due(lambda: 10**12)


def test_a_state_is_not_even_measured_after_short_epochs():
    own, clock = rule()
    clock.now += 2.4
    assert not own.is_due(lambda: pytest.fail("asked for the size"))


@pytest.mark.parametrize("seconds", [0.2, 1.0, 3.0, 60.0, 3600.0])
def test_however_long_an_epoch_is_saving_takes_no_more_than_its_share(seconds: float):
    own, clock = rule()
    spent = trained = 0.0
    for _ in range(200):
        clock.now, trained = clock.now + seconds, trained + seconds
        if own.is_due(lambda: 10**8):
            clock.now, spent = clock.now + 0.7, spent + 0.7
            own.note_save(0.7)
    assert spent <= LARGEST_SHARE * trained + 0.7
    assert (spent > 0) == (200 * seconds > 0.7 / LARGEST_SHARE + 20)


@pytest.mark.parametrize("said", ["much", "-0.1", "1.5", "nan"])
def test_a_share_that_is_none_is_refused_with_the_remedy(monkeypatch, said: str):
    monkeypatch.setenv(SHARE, said)
    with pytest.raises(ValueError, match=r"MELTPOINT_SAVING_SHARE=.*: write a share from 0 to 1"):
        largest_share()


Make = Callable[..., Any]


def thawing(make_trainer: Make, folder: Path) -> Any:
    """A trial of two epochs, the first of which trains the head alone."""
    return make_trainer(
        "fine_tuning", "sentence_classification", "linear", frozen_states=KeptStates(folder, precision="bf16"),
        precision="bf16", epochs=2, learning_rate=0.05, gradual_unfreezing=True,
        gradual_unfreezing__epochs_per_group=1.0,
    )  # fmt: skip


def test_results_say_in_which_epochs_the_encoder_stood_still(make_trainer: Make, tmp_path: Path):
    found = [(one.encoder_frozen, one.frozen_groups) for one in thawing(make_trainer, tmp_path).results()]
    assert found == [(True, 3), (False, 2)], "embeddings and two layers, of which the second epoch thaws the upper one"


def test_what_the_first_phase_freezes_is_not_called_frozen_by_gradual_unfreezing(make_trainer: Make):
    trainer = make_trainer("stack_and_finetune", head="linear", stack_and_finetune__stack_epochs=1, epochs=1)
    assert [(one.encoder_frozen, one.frozen_groups) for one in trainer.results()] == [(True, 0), (False, 0)]
    frozen = make_trainer("feature_extraction", head="linear", epochs=1)
    assert [one.frozen_groups for one in frozen.results()] == [0]
    top = make_trainer("top_k", head="linear", epochs=1, top_k__k=1)
    assert [one.frozen_groups for one in top.results()] == [0], "layers below the top ones are not to thaw"


@pytest.mark.parametrize("frozen", [True, False])
def test_the_weights_of_a_frozen_epoch_score_to_the_same_bits_only_from_kept_states(
    make_trainer: Make, tmp_path: Path, frozen: bool
):
    trainer = thawing(make_trainer, tmp_path)
    next(trainer.results())
    recorded = trainer.evaluate_dev()[0].probabilities
    again = thawing(make_trainer, tmp_path)
    again.model.load_trained([trainer.model.own_weights(0) | trainer.model.encoder_weights()])
    again.model.freeze_encoder(frozen)
    assert (again.evaluate_dev()[0].probabilities == recorded) is frozen
