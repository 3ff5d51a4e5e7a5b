"""The frozen encoder's hidden states, as a trial's trainer asks for them: out of the storage's cache."""

from __future__ import annotations

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.features.budget import Budget, choose
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.opening import open_features
from meltpoint.adapters.features.reading import Features
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.model import AdaptedModel
from meltpoint.sweeps.storage.layout import features_folder
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.task import Task


class FeatureCache:
    """The cache for the trials of one order, within its budget (`trainer.FrozenStates`).

    Attributes:
        notes: what became of each split, a line each.
    """

    def __init__(self, order: Order, precision: Precision, device: torch.device) -> None:
        self.order, self.precision, self.device = order, precision, device
        self.folder = features_folder(order.cache)
        self.notes: list[str] = []

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> Features | None:
        """A split's states; None where they do not fit and the encoder has to run."""
        encoder, layers = model.encoder, model.layers_read
        key = feature_key(encoder, split, task.kind, self.precision, "first" if first_pieces else "all")
        budget = Budget(self.order.cache_bytes, self.order.cache_overflow)
        decision = choose(self.folder, key, encoder, split, layers, budget)
        self.notes.append(decision.words)
        if decision.key is None:
            return None
        note = {"encoder": self.order.encoder, "task": self.order.task, "split": split.name}
        return open_features(self.folder, decision.key, encoder, split, task.kind, layers, self.device, note)
