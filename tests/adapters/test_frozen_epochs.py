"""An epoch in which the encoder stood still is scored from kept states: whoever scores its weights again must too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import Features, open_features
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.task import Task

Make = Callable[..., Any]


class RoundedStates:
    """A cache that keeps bf16, as one does where trials train in bf16."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> Features:
        key = feature_key(model.encoder, split, task.kind, "bf16", "first" if first_pieces else "all")
        return open_features(
            self.folder, key, model.encoder, split, task.kind, model.layers_read, torch.device("cpu"), {}
        )  # fmt: skip


def thawing(make_trainer: Make, folder: Path) -> Any:
    """A trial of two epochs, the first of which trains the head alone."""
    return make_trainer(
        "fine_tuning", "sentence_classification", "linear", frozen_states=RoundedStates(folder), precision="bf16",
        gradual_unfreezing=True, gradual_unfreezing__epochs_per_group=1.0, epochs=2, learning_rate=0.05,
    )  # fmt: skip


def test_results_say_in_which_epochs_the_encoder_stood_still(make_trainer: Make, tmp_path: Path):
    found = [(one.encoder_frozen, one.frozen_groups) for one in thawing(make_trainer, tmp_path).results()]
    assert found == [(True, 3), (False, 2)], "embeddings and two layers, of which the second epoch thaws the upper one"


def test_what_the_first_phase_freezes_is_not_called_frozen_by_gradual_unfreezing(make_trainer: Make):
    trainer = make_trainer("stack_and_finetune", head="linear", stack_and_finetune__stack_epochs=1, epochs=1)
    assert [(one.encoder_frozen, one.frozen_groups) for one in trainer.results()] == [(True, 0), (False, 0)]
    frozen = make_trainer("feature_extraction", head="linear", epochs=1)
    assert [one.frozen_groups for one in frozen.results()] == [0]


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
