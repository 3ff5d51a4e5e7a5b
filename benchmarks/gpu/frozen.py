"""Trials on a frozen encoder with cached hidden states: one, and many trained together."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.opening import open_features
from meltpoint.adapters.features.reading import Features
from meltpoint.adapters.model import AdaptedModel
from meltpoint.benchmarks.gpu.fine_tuning import loop_seconds
from meltpoint.benchmarks.gpu.sizes import Size
from meltpoint.tasks.core.task import Task

HEAD = "bilstm"


class FolderCache:
    """A cache of frozen hidden states in a folder, without a size limit."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, torch.device(device)

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> Features:
        """Open the cached hidden states of a split; compute them if they are missing."""
        key = feature_key(model.encoder, split, task.kind, "bf16", "first" if first_pieces else "all")
        layers = model.layers_read
        return open_features(self.folder, key, model.encoder, split, task.kind, layers, self.device, {})


def epoch_seconds(size: Size, encoder: str, device: str, together: int) -> float:
    """Training seconds of an epoch of `together` trials with the `bilstm` head: the median without the first epoch.

    The first epoch encodes the texts; the later ones read the cache.
    """
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        cache = FolderCache(Path(folder), device)
        seconds = loop_seconds(size, encoder, device, "feature_extraction", HEAD, together, cache)
    return statistics.median(seconds[1:])
