"""A worker's machine: whether it is fit for an order, its feature cache, its memory and time.

A pass's memory grows with rows × length, so the driver learns a ceiling of that product for each cell and kind of GPU.
A trial that does not fit is retried alone, then on a whole GPU, then with its encoder's activations recomputed
(`Encoder.checkpoint`), then with half the rows at a time, but with the gradient of the whole batch
(`Trainer.micro_batch`).
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from meltpoint.adapters import modes
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.lengths import cut_notes
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import Budget, Features, choose, needed_bytes, open_features
from meltpoint.adapters.files import NoLocksError
from meltpoint.adapters.hardware import Hardware, Precision, unsupported
from meltpoint.adapters.hyperparameters import common_value
from meltpoint.adapters.training.epochs import OutOfTimeError
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.ledger.records import NOTHING_KNOWN, CellKey, ResourceUse
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.machine.limits import GpuPeak, PeakMemory, ProcessPeak
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.storage.files import StoragePath, features_folder, storage_path
from meltpoint.sweeps.storage.object_client import StoreError
from meltpoint.sweeps.worker.outcome import OutOfMemory, TrialOutcome, failed, halved, memory_error_in_short
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.task import Task
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from meltpoint.sweeps.ledger.ledger import Ledger


class _LastOrder:
    """The last order of this process, whose trials left memory behind.

    Attributes:
        cell: of the last order; None before the first.
    """

    cell: CellKey | None = None


def make_room(cell: CellKey) -> None:
    """Release the memory that trials of another cell left, if memory is scarce.

    Otherwise the next trial reuses it. Released in between, it would have to be mapped again page by page: a twentieth
    of a short trial's time (docs/internals/log.md).
    """
    if _LastOrder.cell not in (None, cell) and limits.memory().scarce:
        release_memory()
    _LastOrder.cell = cell


def drop_garbage() -> None:
    """Free a trial's model, which holds reference cycles; another trial may use the GPU's memory next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release_memory() -> None:
    """Release the memory that trials left; neither Python nor malloc does so soon.

    Without this, workers of the 12-cell sweep grew to 10 GB each (docs/internals/log.md).
    """
    drop_garbage()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def longest_input(split: EncodedSplit) -> int:
    """The most subword tokens in one row of a split, over all its inputs."""
    return max((sum(map(len, row.inputs)) for row in split.rows), default=0)


def micro_batch_of(order: Order, hardware: Hardware, train: EncodedSplit) -> int:
    """The most rows of an order's batch that pass through the model at once on this hardware."""
    rows = int(common_value(order.setting, "batch_size"))
    if order.micro_batch_size is not None:
        return min(rows, order.micro_batch_size)
    ceiling = order.ceilings.get(hardware.name)
    if ceiling is None:
        return rows
    length = longest_input(train)
    while rows > 1 and rows * length > ceiling:
        rows = halved(rows)
    return rows


def can_checkpoint(order: Order, encoder: Encoder) -> bool:
    """True if gradient checkpointing can lower the memory of an order."""
    return encoder.supports_checkpointing and modes.get(order.mode).trains_encoder


def checkpoints(order: Order, hardware: Hardware, encoder: Encoder, train: EncodedSplit) -> bool:
    """True if an order trains with gradient checkpointing on this hardware; always before its batch is split."""
    size = int(common_value(order.setting, "batch_size")) * longest_input(train)
    most = min(known.get(hardware.name, math.inf) for known in (order.plain_ceilings, order.ceilings))
    return can_checkpoint(order, encoder) and (order.gradient_checkpointing or size > most)


def outcome_of(
    error: Exception, orders: Sequence[Order], place: Hardware, encoder: Encoder, train: EncodedSplit
) -> TrialOutcome:
    """The outcome of trials whose worker ran out of GPU memory: they are retried with less, until less is impossible.

    Args:
        error: an error for which `is_gpu_out_of_memory` holds.
    """
    order = orders[0]
    rows, length = micro_batch_of(order, place, train), longest_input(train)
    said = memory_error_in_short(error)
    is_shared = 0 < order.gpus < 1
    is_plain = can_checkpoint(order, encoder) and not checkpoints(order, place, encoder, train)
    if rows == 1 and len(orders) == 1 and not is_shared and not is_plain:
        return failed(
            "setting",
            f"out of memory: {place.name} is too small for one row of {length} subword tokens at a time ({said}); "
            "use a smaller max_pieces, a smaller encoder, or a GPU with more memory",
        )
    lack = OutOfMemory(
        gpu=place.name, rows=rows, length=length, is_shared=is_shared, together=len(orders), can_checkpoint=is_plain
    )
    return TrialOutcome(status="failed", cause="memory", error=f"out of memory: {said}", out_of_memory=lack)


class ResourceMeter:
    """Time and memory of the trials of one order.

    Args:
        began: time at which the worker picked the order up, by the clock; None for now.
        clock: monotonic seconds.
    """

    def __init__(self, began: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began = clock, clock() if began is None else began
        self.memory: PeakMemory | None = None
        self.peaks: dict[str, int | None] = {}

    def begin(self, hardware: Hardware) -> None:
        """Reset the memory peak: trials begin that train side by side."""
        if self.memory is None:
            self.memory = ProcessPeak() if hardware.device == "cpu" else GpuPeak()
        self.memory.begin()

    def seconds(self) -> float:
        """The seconds that the worker has had the order, without its waits for the driver."""
        return self.clock() - self.began

    def skip(self, since: float) -> None:
        """Exclude the time since `since`, by `seconds`: the worker waited for a suspended or busy driver."""
        self.began += self.seconds() - since

    def lap(self, trials: Sequence[str]) -> None:
        """Assign the use since the last lap to these trials, which trained side by side."""
        if self.memory is None or not trials:
            return
        self.peaks |= dict.fromkeys(trials, self.memory.read())

    def of(self, trial: str) -> ResourceUse:
        """The resources that a trial has used so far; unknown before its first lap."""
        if self.memory is None or trial not in self.peaks:
            return NOTHING_KNOWN
        peak = self.peaks[trial]
        return ResourceUse(peak_memory_bytes=peak, peak_memory_kind=None if peak is None else self.memory.kind)


# Whether the machine is fit, and what is noted of its work.

VISIBLE_SECONDS = 5.0
"""Time that another machine's file may take to appear on a network file system."""


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
    if order.gpus and (lacking := _unusable_gpu()):
        return f"its machine {host} {lacking}; run `meltpoint doctor` there"
    folder = storage_path(order.checkpoint).parents[1]
    fault = storage_fault(folder, order.id, patience_seconds)
    remedy = "mount the sweep's storage there, at the same path"
    if not isinstance(folder, Path):
        remedy = "set the store's environment variables for Ray there"
    return fault and f"its machine {host} {fault}; {remedy}"


def _unusable_gpu() -> str:
    """The reason why torch cannot use the first GPU here; "" if it can."""
    if not torch.cuda.is_available():
        return "gave it a GPU that torch does not see"
    lacking = unsupported(0)
    return f"has a GPU ({lacking}) that torch {torch.__version__} has no code for" if lacking else ""


def storage_fault(sweep_folder: StoragePath, trial: str, patience_seconds: float) -> str | None:
    """The fault of a sweep's folder as seen from here, in a few words; None if a trial can be stored there.

    The driver notes a trial before it hands it out, and records it before it is scored; a folder with neither note nor
    record is another folder.
    """
    from meltpoint.sweeps.ledger.ledger import Ledger  # `train` needs no ledger

    ledger = Ledger(sweep_folder)
    deadline = time.monotonic() + patience_seconds
    try:
        while not (has := _has(ledger, trial)) and time.monotonic() < deadline:
            time.sleep(0.1)
    except OSError as error:  # also a stale mount, for which `Path.exists` raises
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
        ends_at: `time.monotonic()` at which encoding raises `OutOfTimeError`.
    """

    def __init__(self, order: Order, precision: Precision, device: torch.device) -> None:
        self.order, self.precision, self.device = order, precision, device
        self.folder = features_folder(order.cache)
        self.notes: list[str] = []
        self.ends_at = math.inf

    def open(
        self, pretrained: Encoder, layers: tuple[int, ...], split: EncodedSplit, task: Task, first_pieces: bool
    ) -> Features | None:
        """A split's states; None if they do not fit, or nothing can be locked there: the encoder then has to run."""
        key = feature_key(pretrained, split, task.kind, self.precision, "first" if first_pieces else "all")
        budget = Budget(self.order.cache_bytes, self.order.cache_overflow)
        note = {"encoder": self.order.encoder, "task": self.order.task, "split": split.name}
        try:
            kept = layers
            if self.order.caches_all_layers and needed_bytes(self.folder, key, pretrained, split, layers):
                kept = tuple(range(pretrained.layers))
            chosen, words = choose(self.folder, key, pretrained, split, kept, budget)
            if chosen != key and kept != layers:
                kept = layers
                chosen, words = choose(self.folder, key, pretrained, split, kept, budget)
            self.notes.append(words)
            if chosen is None:
                return None
            return open_features(
                self.folder, chosen, pretrained, split, task.kind, layers, self.device, note, self._check_time, kept
            )
        except NoLocksError as error:
            self.notes.append(f"features: {error} The encoder runs in each batch.")
            return None

    def _check_time(self) -> None:
        if time.monotonic() > self.ends_at:
            raise OutOfTimeError
