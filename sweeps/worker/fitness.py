"""Checks and notes of a worker before and after training."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.lengths import cut_notes
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import Budget, Features, choose, open_features
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.storage.files import StoragePath, features_folder, storage_path
from meltpoint.sweeps.storage.object_store import StoreError
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.task import Task
from meltpoint.tasks.core.wording import some

NODE_ID = "ray.io/node-id"
"""The label with a Ray node's id."""

VISIBLE_SECONDS = 5.0
"""Time that another machine's file may take to appear on a network file system."""


def elsewhere(nodes: Iterable[str]) -> dict[str, str]:
    """Ray's label selector for all nodes except these; empty without any."""
    ids = ",".join(sorted(nodes))
    return {NODE_ID: f"!in({ids})"} if ids else {}


def unfit(order: Order, patience_seconds: float = VISIBLE_SECONDS) -> str | None:
    """One line on why this machine is unfit for an order; None if it is fit, or the order takes any machine.

    Args:
        patience_seconds: time that the sweep's storage may take to show the order.
    """
    if not order.code_version:
        return None
    host, here = socket.gethostname(), code_version()
    if here != order.code_version:
        return (
            f"its machine {host} has Meltpoint's code {here}, but the driver has {order.code_version}; install the "
            "same version on both"
        )
    folder = storage_path(order.checkpoint).parents[1]
    fault = storage_fault(folder, order.id, patience_seconds)
    remedy = "mount the sweep's storage there, at the same path"
    if not isinstance(folder, Path):
        remedy = "set the store's environment variables for Ray there"
    return fault and f"its machine {host} {fault}; {remedy}"


def storage_fault(sweep_folder: StoragePath, trial: str, patience_seconds: float) -> str | None:
    """The fault of a sweep's folder as seen from here, in a few words; None if a trial can be stored there.

    The driver notes a trial before it hands it out, and records it before it is scored; a folder with neither note nor
    record is another folder.
    """
    ledger = Ledger(sweep_folder)
    deadline = time.monotonic() + patience_seconds
    try:
        while not (has := _has(ledger, trial)) and time.monotonic() < deadline:
            time.sleep(0.1)
    except StoreError as error:
        return f"cannot reach the storage ({error})"
    if not has:
        return f"does not see {sweep_folder}" if not sweep_folder.is_dir() else f"has a different {sweep_folder}"
    probe = ledger.started / f".{uuid.uuid4().hex}.tmp"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = error if isinstance(error, StoreError) else os.strerror(error.errno or 0)
        return f"cannot write {ledger.started} ({why})"
    return None


def _has(ledger: Ledger, trial: str) -> bool:
    return any((folder / f"{trial}.json").exists() for folder in (ledger.started, ledger.trials))


def input_notes(data: EncodedData, max_pieces: int, longest: int) -> list[str]:
    """Notes on changes to the inputs of the splits, one line each.

    Args:
        data: train and dev, tokenised.
        max_pieces: from the setting; settings of earlier versions may exceed the encoder's limit.
        longest: the longest input that the encoder takes, including special tokens.
    """
    own = f"the encoder's longest input, {some(longest, 'piece')}"
    notes = [] if max_pieces <= longest else [f"max_pieces = {max_pieces} was read as {own}"]
    for split in (data.train, data.dev):
        found = cut_notes(split, min(max_pieces, longest), longest)
        if split.alone:
            found.append(f"{split.alone} of {some(split.examples, 'sentence')} without a neighbour in the document")
        notes += [f"{split.name}: {note}" for note in found]
    return notes


class FeatureCache:
    """The cache for the trials of one order, within its budget (`trainer.FrozenStates`).

    Attributes:
        notes: the decision for each split, one line each.
    """

    def __init__(self, order: Order, precision: Precision, device: torch.device) -> None:
        self.order, self.precision, self.device = order, precision, device
        self.folder = features_folder(order.cache)
        self.notes: list[str] = []

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> Features | None:
        """A split's states; None if they do not fit and the encoder has to run."""
        encoder, layers = model.encoder, model.layers_read
        key = feature_key(encoder, split, task.kind, self.precision, "first" if first_pieces else "all")
        budget = Budget(self.order.cache_bytes, self.order.cache_overflow)
        chosen, words = choose(self.folder, key, encoder, split, layers, budget)
        self.notes.append(words)
        if chosen is None:
            return None
        note = {"encoder": self.order.encoder, "task": self.order.task, "split": split.name}
        return open_features(self.folder, chosen, encoder, split, task.kind, layers, self.device, note)
