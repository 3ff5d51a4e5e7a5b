"""The trial worker: trains an order on what Ray gave it, and reports each epoch. It cannot open a test split."""

from __future__ import annotations

import ctypes
import errno
import gc
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.document_context import documents_fingerprint
from meltpoint.adapters.data.pairing import InputFormat, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.budget import Budget, choose, free_bytes
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.opening import open_features
from meltpoint.adapters.features.reading import Features
from meltpoint.adapters.files import replacing
from meltpoint.adapters.hardware import Hardware, Precision, claim_device, resolve_precision
from meltpoint.adapters.model import AdaptedModel, Member, build
from meltpoint.adapters.settings import bundle_key
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.training.shared_first_phase import SharedFirstPhases
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData, NotFiniteError, Outcome
from meltpoint.sweeps.ledger.ledger import features_folder, first_phases_folder
from meltpoint.sweeps.ledger.losses import ChangedInputError, is_full_disk
from meltpoint.sweeps.ledger.records import Cause, CellKey, EpochRecord, HardwareRecord
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.worker.input_notes import input_notes
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind, Task, TrainingData

Event = dict[str, Any]

WEIGHTS = "weights.safetensors"

SPARE_BYTES = 10 * 2**20
"""Left to the ledger, the tracking store and predictions beside a trial's weights: some MB of a large sweep."""


@lru_cache(maxsize=2)
def warm_encoder(word: str, kind: Kind) -> Encoder:
    """An encoder with its pretrained weights, kept in the worker process from trial to trial."""
    return encoders.load(encoders.resolve(word, kind))


@lru_cache(maxsize=8)
def warm_training_data(data: DataSpec) -> TrainingData:
    """A task's train and dev split, kept in the worker process."""
    return load_training_data(data)


@lru_cache(maxsize=8)
def warm_encoded_data(word: str, data: DataSpec, max_pieces: int, input_format: InputFormat) -> EncodedData:
    """A task's splits, tokenised once a worker process for each encoder, length and way to read them."""
    loaded = warm_training_data(data)
    tokenizer = warm_encoder(word, loaded.task.kind).tokenizer
    train, dev = (
        replace(encode_split(loaded.task.kind, split, tokenizer, max_pieces, input_format), name=name)
        for name, split in (("train", loaded.train), ("dev", loaded.dev))
    )
    return EncodedData(loaded.task, train, dev, loaded.dev, loaded.train)


def training(orders: Sequence[Order], hardware: Hardware) -> Trainer:
    """A trainer for orders that train side by side.

    Raises:
        ValueError: the metric, the data or the encoder are not those that the orders were made for.
    """
    order = orders[0]
    loaded = warm_training_data(order.data)
    _check_data(order, loaded)
    encoder = warm_encoder(order.encoder, loaded.task.kind)
    if order.encoder_fingerprint not in ("", encoder.fingerprint):
        raise ChangedInputError(
            f"the files of {order.encoder} changed since the sweep was opened; put the old ones back."
        )
    max_pieces = min(int(order.setting["max_pieces"]), encoder.max_pieces)
    input_format = input_format_of(order.setting, heads.get(order.head).joint_pairs)
    data = warm_encoded_data(order.encoder, order.data, max_pieces, input_format)
    members = [Member(one.setting, one.seed) for one in orders]
    model = build(encoder, loaded.task, order.mode, order.head, members, hardware.device)
    precision = resolve_precision(str(order.setting["precision"]), hardware.device)
    cache = FeatureCache(order, precision, torch.device(hardware.device)) if order.cache else None
    return Trainer(model, data, order.mode, members, hardware, cache)


def _check_data(order: Order, loaded: TrainingData) -> None:
    """Refuse a task or data that changed after the order was made."""
    metric = loaded.task.metric
    if order.metric not in ("", metric):
        raise ChangedInputError(
            f"the metric of {order.task} was {order.metric} and is now {metric}; put the old one back."
        )
    is_same = loaded.fingerprint == order.data_fingerprint
    if order.documents_fingerprint:
        is_same = is_same and documents_fingerprint(loaded.train, loaded.dev) == order.documents_fingerprint
    if not is_same:
        raise ChangedInputError(f"the data of {order.task} changed since the sweep was opened; put the old files back.")


class FeatureCache:
    """The frozen encoder's states as a trainer asks for them: out of the storage's cache, within its budget.

    Attributes:
        notes: what became of each split, a line each.
    """

    def __init__(self, order: Order, precision: Precision, device: torch.device) -> None:
        self.order, self.precision, self.device = order, precision, device
        self.folder = features_folder(Path(order.cache))
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


def stacks(orders: Sequence[Order]) -> list[list[Order]]:
    """The orders in groups that agree on what shapes the computation, each in its first order's place.

    On a CPU they agree on the seed too: trials of several seeds read different rows, so they share no work there, and
    batches padded to one width would cost each of them the last bits that it has alone.
    """
    groups: dict[object, list[Order]] = {}
    for order in orders:
        key = bundle_key(order.setting, order.mode, order.head), None if order.gpus else order.seed
        groups.setdefault(key, []).append(order)
    return list(groups.values())


def run(work: WorkOrder) -> Iterator[list[Event]]:
    """Train an order's trials: for each a `ready` event, an `epoch` event each epoch, an `outcome`, whatever happens.

    NaN, out of memory and errors of a setting are outcomes, not exceptions: the worker lives on.

    Returns:
        What happened at once, a list at a time.
    """
    for orders in stacks(work.orders):
        yield from _run_stack(orders)


def _run_stack(orders: Sequence[Order]) -> Iterator[list[Event]]:
    """Train trials side by side; where memory is too small for that, half of them at a time."""
    open_orders = {order.id: order for order in orders}
    cause: Cause = "setting"
    error, begun = "", False
    try:
        for events in _train(orders):
            begun = begun or any(event["event"] == "epoch" for event in events)
            for event in events:
                if event["event"] == "outcome":
                    del open_orders[event["trial"]]
            yield events
        return
    except (torch.OutOfMemoryError, MemoryError) as failure:
        error = _out_of_memory(failure)
    except ChangedInputError as failure:
        cause, error, begun = "input", str(failure), True
    except Exception as failure:  # noqa: BLE001 - whatever broke is these trials' outcome; the sweep goes on
        begun = True
        last = traceback.extract_tb(failure.__traceback__)[-1]
        error = f"{type(failure).__name__}: {failure} ({Path(last.filename).name}:{last.lineno})"
        if is_full_disk(failure):
            cause, error = "disk", getattr(failure, "strerror", None) or "No space left on device"
    if len(orders) > 1 and not begun:
        release_memory()
        half = len(orders) // 2
        yield from _run_stack(orders[:half])
        yield from _run_stack(orders[half:])
        return
    yield [_outcome(trial, "failed", error=error, cause=cause) for trial in open_orders]


def _out_of_memory(failure: BaseException) -> str:
    if isinstance(failure, torch.OutOfMemoryError):
        advice = "a smaller batch_size or max_pieces, or more memory a trial (--gpus-per-trial)"
        return f"out of memory: {str(failure).splitlines()[0]}; {advice}"
    return "out of memory on the machine; a smaller batch_size or max_pieces"


def _train(orders: Sequence[Order]) -> Iterator[list[Event]]:
    """Train trials side by side; their events, an epoch of all of them at a time."""
    first = orders[0]
    trainer = training(orders, claim_device(int(first.cpus), first.gpus))
    check_room(trainer, Path(first.checkpoint))
    ready = _ready(trainer, first, len(orders))
    yield [{"event": "ready", "trial": order.id, "body": ready} for order in orders]
    for results in _epochs(trainer, first):
        yield [event for member, result in results for event in _events(trainer, orders[member], member, result)]


def check_room(trainer: Trainer, folder: Path) -> None:
    """Look, before anything is trained, whether the disk can hold the weights that training leaves.

    Raises:
        OSError: it cannot.
    """
    encoder = trainer.model.pretrained_weights().values() if trainer.trains_encoder else ()
    numbers = sum(weight.numel() for weight in (*trainer.model.own_parameters().values(), *encoder))
    needed, free = 4 * numbers, free_bytes(folder)
    if free < needed + SPARE_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device: {free / 1e6:.0f} MB are free where a trial's weights take {needed / 1e6:.0f} MB",
        )


def _epochs(trainer: Trainer, order: Order) -> Iterator[list[Outcome]]:
    """A trainer's epochs; what other trials have trained of them already comes out of the cache."""
    phases = trainer.trials[0].table.plan.phases
    if not order.cache or not trainer.trains_encoder or len(phases) == 1:
        return trainer.epochs()
    facts = {"encoder": trainer.model.encoder.fingerprint, "data": order.data_fingerprint, "head": order.head}
    # The metric says which epoch of the phase is best.
    facts |= {"documents": order.documents_fingerprint, "metric": trainer.data.task.metric}
    facts |= {"mode": order.mode, "code": code_version()}
    facts |= {"processor": trainer.hardware.name, "threads": str(trainer.hardware.threads)}  # they decide the last bits
    return SharedFirstPhases(first_phases_folder(Path(order.cache))).epochs(trainer, facts)


def _events(trainer: Trainer, order: Order, member: int, result: EpochResult | NotFiniteError) -> list[Event]:
    """What a member's epoch says, and its outcome where that was the last one."""
    if isinstance(result, NotFiniteError):
        return [_outcome(order.id, "failed", error=str(result), cause="setting")]
    trial = trainer.trials[member]
    body = EpochRecord(**result.model_dump(), finished_at=time.time())
    score = result.dev[trainer.data.task.metric]
    percent = 100 * result.epoch / trial.table.plan.epochs  # of the trial's own schedule
    rung = {"epoch": result.epoch, "percent": percent, "score": score}
    epoch = {"event": "epoch", "trial": order.id, "body": body.model_dump(), **rung}
    if result.epoch < trial.table.plan.epochs:
        return [epoch]
    save_weights(trial.best_state, Path(order.checkpoint))
    trial.best_state = Snapshot({})
    return [epoch, _outcome(order.id, "finished", best_epoch=trial.best[1], notes=cache_notes(trainer))]


def _ready(trainer: Trainer, first: Order, together: int) -> dict[str, Any]:
    host = socket.gethostname()
    record = HardwareRecord(**asdict(trainer.hardware), precision=trainer.precision, host=host)
    return {
        "hardware": record.model_dump(), "trained_together": together,
        "input_notes": input_notes(trainer.data, int(first.setting["max_pieces"]), trainer.model.encoder.max_pieces),
        "task_parameters": sum(own[0].numel() for own in trainer.model.own_parameters().values()),
    }  # fmt: skip


def cache_notes(trainer: Trainer) -> list[str]:
    """What became of the frozen states, in words."""
    cache = trainer.frozen_states
    return list(cache.notes) if isinstance(cache, FeatureCache) else []


def _outcome(
    trial: str, status: str, best_epoch: int | None = None, error: str | None = None, notes: Sequence[str] = (),
    cause: Cause | None = None,
) -> Event:  # fmt: skip
    body = {"status": status, "error": error, "best_epoch": best_epoch, "notes": list(notes), "cause": cause}
    return {"event": "outcome", "trial": trial, "body": body}


def save_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """Write weights as safetensors, whole or not at all."""
    with replacing(folder / WEIGHTS) as beside:
        save_file({name: tensor.contiguous().cpu() for name, tensor in state.items()}, beside)


def train_on_ray(config: dict[str, Any]) -> None:
    """Ray Tune's function trainable: an order in, its events out."""
    from ray import tune

    work = WorkOrder.from_config(config)
    make_room(work.first.cell)
    for events in run(work):
        tune.report(report_of(events))
    drop_garbage()


def report_of(events: list[Event]) -> dict[str, Any]:
    """Events as one result of Ray Tune; a trial on its own can be stopped by its epoch's score."""
    epochs = [event for event in events if event["event"] == "epoch"]
    alone = len(epochs) == 1 and all(event["trial"] == epochs[0]["trial"] for event in events)
    rung = {key: epochs[0][key] for key in ("score", "epoch", "percent")} if alone else {}
    return {"events": events, **rung}


class _Room:
    """Whose trials left what lies in this process's memory.

    Attributes:
        cell: of the last order, or None before the first.
    """

    cell: CellKey | None = None


def make_room(cell: CellKey) -> None:
    """Give back what trials of another cell left, where memory is scarce.

    Else the next trial takes what the last one left. Given back in between, it would have to be found again page by
    page: a twentieth of a short trial's time (docs/log.md).
    """
    if _Room.cell not in (None, cell) and limits.memory().scarce:
        release_memory()
    _Room.cell = cell


def drop_garbage() -> None:
    """Let go of a trial's model, which holds reference cycles; a GPU's memory may be another trial's next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release_memory() -> None:
    """Give the memory back that trials left: neither Python nor malloc does it soon.

    Without this, workers of the 12-cell sweep grew to 10 GB each (docs/log.md).
    """
    drop_garbage()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
