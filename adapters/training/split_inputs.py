"""A split as the model reads it: cached hidden states while the encoder is frozen as it was pretrained, else tokens."""

from __future__ import annotations

from typing import Protocol

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import CachedStates, Inputs, inputs
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.task import Task


class FrozenStates(Protocol):
    """A cache of frozen encoders' hidden states (`features`)."""

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> CachedStates | None:
        """A split's hidden states; None where the cache has no room and the encoder has to run."""


class SplitInputs:
    """A model's inputs from each split, opened once and kept.

    Args:
        frozen_states: the cache, or None to run the encoder each time.
    """

    def __init__(self, model: AdaptedModel, task: Task, frozen_states: FrozenStates | None) -> None:
        self.model, self.task, self.frozen_states = model, task, frozen_states
        self._opened: dict[tuple[int, bool], Inputs] = {}

    def open(self, split: EncodedSplit, frozen: bool) -> Inputs:
        """A split's inputs; hidden states that the cache lacks are computed now, together with other workers.

        Args:
            frozen: whether the encoder is frozen and has not been trained, so that the cache stands for it.
        """
        frozen = frozen and self.frozen_states is not None
        key = id(split), frozen
        if key not in self._opened:
            self._opened[key] = self._open_cached(split) if frozen else inputs(split)
        return self._opened[key]

    def _open_cached(self, split: EncodedSplit) -> Inputs:
        assert self.frozen_states is not None
        first_pieces = self.model.head.reads == "first"
        features = self.frozen_states.open(self.model, split, self.task, first_pieces)
        return inputs(split) if features is None else inputs(split, features, first_pieces)
