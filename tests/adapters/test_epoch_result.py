"""epoch_result: which epoch of a trial is the best."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.training.epoch_result import EpochResult, best_epoch

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


@given(SCORES)
def test_remembering_each_epoch_that_is_the_best_so_far_ends_at_the_best_of_all(scores):
    """As the trainer keeps weights, while the driver looks at all epochs at the end."""
    epochs, kept = epochs_of(scores), None
    for count, epoch in enumerate(epochs, 1):
        if best_epoch(epochs[:count], "f1") is epoch:
            kept = epoch
    assert kept is best_epoch(epochs, "f1")


@given(st.permutations(epochs_of([0.5, 0.25, 0.5, 0.0])))
def test_the_order_in_which_epochs_are_given_does_not_matter(epochs):
    best = best_epoch(epochs, "f1")
    assert best is not None
    assert best.epoch == 1


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
