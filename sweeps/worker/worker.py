"""The trial worker: trains an order on the resources from Ray, and reports its events. It cannot open a test split."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.data.document_context import documents_fingerprint
from meltpoint.adapters.data.input_format import InputFormat, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.reading import free_bytes
from meltpoint.adapters.hardware import Hardware, claim_device, is_gpu_out_of_memory, resolve_precision
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import bundle_key, encoder_tricks
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.ledger.records import Attempt, HardwareRecord
from meltpoint.sweeps.specification.provenance import versions
from meltpoint.sweeps.storage.files import StoragePath, scratch_of, storage_path, storing
from meltpoint.sweeps.worker import resources
from meltpoint.sweeps.worker.epoch_checkpoints import EpochCheckpoints, Resumed
from meltpoint.sweeps.worker.outcome import (
    ChangedInputError,
    TrialEvent,
    TrialOutcome,
    failed,
    is_broken_device,
    is_out_of_memory,
    lost_gpu,
    outcome_of_error,
)
from meltpoint.sweeps.worker.resources import (
    FeatureCache,
    ResourceMeter,
    checkpoints,
    drop_garbage,
    input_notes,
    micro_batch_of,
    release_memory,
)
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind, TrainingData

WEIGHTS = "weights.safetensors"

SPARE_BYTES = 10 * 2**20
"""Disk space kept free besides a trial's weights, for the ledger, the tracking store and predictions."""


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
    """A task's splits, tokenised once per worker process for each encoder, length and input format."""
    loaded = warm_training_data(data)
    tokenizer = warm_encoder(word, loaded.task.kind).tokenizer
    train, dev = (
        replace(encode_split(loaded.task.kind, split, tokenizer, max_pieces, input_format, whole), name=name)
        for name, split, whole in (
            ("train", loaded.train, loaded.whole_train), ("dev", loaded.dev, loaded.whole_dev),
        )
    )  # fmt: skip
    return EncodedData(loaded.task, train, dev, loaded.dev, loaded.train)


def training(orders: Sequence[Order], hardware: Hardware) -> Trainer:
    """A trainer for orders that train side by side.

    Raises:
        ValueError: the metric, the data or the encoder changed since the orders were made.
    """
    order = orders[0]
    loaded = warm_training_data(order.data)
    _check_data(order, loaded)
    encoder = warm_encoder(order.located_encoder, loaded.task.kind)
    if order.encoder_fingerprint not in ("", encoder.fingerprint):
        raise ChangedInputError(
            f"the files of {order.encoder} changed since the sweep was opened; restore the old ones."
        )
    data = encoded_data(order)
    members = [Member(one.setting, one.seed) for one in orders]
    model = build(encoder, loaded.task, order.mode, order.head, members, hardware.device)
    precision = resolve_precision(str(order.setting["precision"]), hardware.device)
    cache = FeatureCache(order, precision, torch.device(hardware.device)) if order.cache else None
    if checkpoints(order, hardware, encoder, data.train):
        model.encoder.checkpoint()
    micro_batch = micro_batch_of(order, hardware, data.train) if len(orders) == 1 else None
    return Trainer(model, data, order.mode, members, hardware, cache, micro_batch)


def encoded_data(order: Order) -> EncodedData:
    """An order's splits, tokenised."""
    encoder = warm_encoder(order.located_encoder, warm_training_data(order.data).task.kind)
    max_pieces = min(int(order.setting["max_pieces"]), encoder.max_pieces)
    input_format = input_format_of(order.setting, heads.get(order.head).joint_pairs)
    return warm_encoded_data(order.located_encoder, order.data, max_pieces, input_format)


def _check_data(order: Order, loaded: TrainingData) -> None:
    """Refuse a task or data that changed after the order was made."""
    metric = loaded.task.metric
    if order.metric not in ("", metric):
        raise ChangedInputError(
            f"the metric of {order.task} was {order.metric} and is now {metric}; restore the old one."
        )
    is_same = loaded.fingerprint == order.data_fingerprint
    if order.documents_fingerprint:
        read = documents_fingerprint((loaded.train, loaded.whole_train), (loaded.dev, loaded.whole_dev))
        is_same = is_same and read == order.documents_fingerprint
    if not is_same:
        raise ChangedInputError(f"the data of {order.task} changed since the sweep was opened; restore the old files.")


def bundles(orders: Sequence[Order]) -> list[list[Order]]:
    """The orders in groups with an equal `bundle_key`, in the order of each group's first member.

    On a CPU the orders of a group also read the data in the same order. Trials that read different rows share no work
    there, and batches padded to one width would change the last bits of each. Trials that train their encoder train
    alone there, since they would save no time; so do those whose layers have rates of their own, or whose batches were
    too large for such a GPU.
    """
    groups: dict[object, list[Order]] = {}
    for order in orders:
        own: object = None if order.gpus else order.seed
        if modes.get(order.mode).trains_encoder:
            is_split = bool(order.ceilings or order.plain_ceilings)
            is_alone = not order.gpus or is_split or any(trick.is_on(order.setting) for trick in encoder_tricks())
            own = order.id if is_alone else order.setting["encoder_dropout"]
        groups.setdefault((bundle_key(order.setting, order.mode, order.head), own), []).append(order)
    return list(groups.values())


def run(work: WorkOrder, began: float | None = None) -> Iterator[list[TrialEvent]]:
    """Train an order's trials: each gets an event at its start, one per epoch, and always an outcome.

    NaN, out of memory and errors of a setting are outcomes, not exceptions: the worker survives them.

    Args:
        work: the order.
        began: `time.monotonic()` when the worker picked it up; None for now.

    Returns:
        Lists of simultaneous events.

    Raises:
        torch.AcceleratorError: the GPU failed, and this process can no longer use it; the trials' outcomes come first.
    """
    meter = ResourceMeter(began)
    for orders in bundles(work):
        for events in _run_stack(orders, meter):
            seconds = meter.seconds()
            yield [event.model_copy(update={"seconds": seconds}) for event in events]
            meter.skip(seconds)


def _run_stack(
    orders: Sequence[Order], meter: ResourceMeter, notes: tuple[str, ...] = ()
) -> Iterator[list[TrialEvent]]:  # fmt: skip
    """Train trials side by side: half of them at a time if memory is too small, and LoRA's one by one if that fails."""
    open_trials = {order.id: Attempt() for order in orders}
    has_trained = False
    try:
        for events in _train(orders, meter, notes):
            for event in events:
                open_trials[event.trial] = event.attempt
                has_trained = has_trained or event.epoch is not None
                if event.outcome is not None:
                    del open_trials[event.trial]
            yield events
        return
    except Exception as error:
        if is_broken_device(error):
            # Reported first: torch's destructors may abort the process before Ray has the error.
            yield _endings(open_trials, lost_gpu(error))
            raise  # no later trial of this process could train; Tune ends it, and the trials run elsewhere
        outcome = _outcome_of(error, orders)  # any other error is these trials' outcome; the sweep continues
        lacks_memory = is_out_of_memory(error)
        is_refused = outcome.cause == "setting" and modes.get(orders[0].mode).trains_encoder
    if (lacks_memory or is_refused) and len(orders) > 1 and not has_trained:
        release_memory()
        size = -(-len(orders) // 2) if lacks_memory else 1
        why = (*notes, f"{len(orders)} trials did not train side by side: {outcome.error}")
        for start in range(0, len(orders), size):
            yield from _run_stack(orders[start : start + size], meter, why)
        return
    meter.lap([*open_trials])
    used = {trial: attempt.model_copy(update=dict(meter.of(trial))) for trial, attempt in open_trials.items()}
    yield _endings(used, outcome)


def _endings(attempts: Mapping[str, Attempt], outcome: TrialOutcome) -> list[TrialEvent]:
    """The last events of trials with one outcome."""
    return [TrialEvent(trial=trial, attempt=attempt, outcome=outcome) for trial, attempt in attempts.items()]


def _outcome_of(error: Exception, orders: Sequence[Order]) -> TrialOutcome:
    """The outcome of trials whose training raised."""
    if not is_gpu_out_of_memory(error):
        return outcome_of_error(error)
    first = orders[0]
    try:
        place, data = claim_device(int(first.cpus), first.gpus), encoded_data(first)
        encoder = warm_encoder(first.located_encoder, data.task.kind)
        return resources.outcome_of(error, orders, place, encoder, data.train)
    except Exception:  # noqa: BLE001 - the data could not be read either
        return outcome_of_error(error)


def _train(orders: Sequence[Order], meter: ResourceMeter, why: Sequence[str]) -> Iterator[list[TrialEvent]]:
    """Train trials side by side; yields their events, one epoch of all of them at a time.

    Args:
        why: notes on larger groups that did not train.
    """
    first = orders[0]
    if first.gpus:  # of a trial that Ray stopped, or of the last bundle of this order
        drop_garbage()
    hardware = claim_device(int(first.cpus), first.gpus)
    meter.begin(hardware)
    trainer = training(orders, hardware)
    if first.ends_at is not None:
        trainer.ends_at = time.monotonic() + first.ends_at - time.time()
        if isinstance(trainer.frozen_states, FeatureCache):
            trainer.frozen_states.ends_at = trainer.ends_at
    check_room(trainer, scratch_of(storage_path(first.checkpoint)))
    # Trials side by side are not saved: a resume would need the same group.
    saves = first.saving_share > 0 and len(orders) == 1
    saved = EpochCheckpoints(first, meter.seconds) if saves else None
    past = Resumed() if saved is None else saved.resume(trainer)
    notes = [*why, *([] if saved is None else saved.notes)]
    attempts = [_begun(trainer, order, member, past, notes) for member, order in enumerate(orders)]
    yield [TrialEvent(trial=order.id, attempt=begun) for order, begun in zip(orders, attempts, strict=True)]
    for count in range(1, len(past.epochs) + 1):
        attempts[0] = attempts[0].model_copy(update={"epochs": list(past.epochs[:count])})
        yield [_epoch_ended(trainer, first, 0, attempts[0])]
    for results in trainer.epochs():
        ended_at = time.time()
        for member, result in results:
            trial = trainer.trials[member]
            if isinstance(result, EpochResult) and result.epoch >= trial.table.plan.epochs:
                save_weights(trial.best_state, storage_path(orders[member].checkpoint))
                trial.best_state = {}
        meter.lap([orders[member].id for member, _ in results])
        notes = [*why, *cache_notes(trainer), *(saved.notes if saved is not None else ())]
        events = []
        for member, result in results:
            order, changes = orders[member], {"storage_notes": notes, **dict(meter.of(orders[member].id))}
            if isinstance(result, EpochResult):
                changes["epochs"] = [*attempts[member].epochs, result.model_copy(update={"finished_at": ended_at})]
            attempts[member] = attempt = attempts[member].model_copy(update=changes)
            if isinstance(result, EpochResult):
                events.append(_epoch_ended(trainer, order, member, attempt))
            else:
                events.append(TrialEvent(trial=order.id, attempt=attempt, outcome=failed("setting", str(result))))
        yield events
        if saved is not None:
            saved.after_epoch(trainer, [event.epoch for event in events if event.epoch is not None])


def check_room(trainer: Trainer, folder: Path) -> None:
    """Check before training that the disk can hold the trained weights.

    Raises:
        OSError: it cannot.
    """
    model = trainer.model
    whole = model.encoder_weights(copied=False) if model.frozen else model.pretrained_weights()
    encoder = whole.values() if trainer.trains_encoder else ()
    numbers = sum(weight.numel() for weight in (*model.own_parameters().values(), *encoder))
    needed, free = 4 * numbers, free_bytes(folder)
    if free < needed + SPARE_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device: {free / 1e6:.0f} MB are free, but a trial's weights take {needed / 1e6:.0f} MB",
        )


def _epoch_ended(trainer: Trainer, order: Order, member: int, attempt: Attempt) -> TrialEvent:
    """The event of a member's latest epoch; includes the outcome if its plan ends there."""
    planned, metric, epoch = trainer.trials[member].table.plan.epochs, trainer.data.task.metric, attempt.epochs[-1]
    return TrialEvent(
        trial=order.id, attempt=attempt, score=gain(metric, epoch.dev[metric]), percent=100 * epoch.epoch / planned,
        outcome=TrialOutcome(status="finished") if epoch.epoch >= planned else None,
    )  # fmt: skip


def _begun(trainer: Trainer, order: Order, member: int, past: Resumed, notes: Sequence[str]) -> Attempt:
    """The start of one of the trials that train side by side.

    Args:
        past: the epochs that it resumes from.
        notes: faults of the saved epochs.
    """
    limit, model = int(order.setting["max_pieces"]), trainer.model
    own = sum(one[0].numel() for name, one in model.own_parameters().items() if name not in model.beside)
    return Attempt(
        hardware=hardware_record(trainer), trained_together=len(trainer.trials),
        input_notes=input_notes(trainer.data, limit, model.encoder.max_pieces), storage_notes=list(notes),
        task_parameters=own, trained_parameters=own + trained_of_encoder(trainer, member),
        model_parameters=own + model.encoder_size,
        resumed_after_epochs=len(past.epochs), seconds_before=past.seconds, micro_batch_size=trainer.micro_batch,
        gradient_checkpointing=trainer.model.encoder.checkpoints, versions=versions(),
    )  # fmt: skip


def trained_of_encoder(trainer: Trainer, member: int) -> int:
    """The number of encoder weights that a trial's plan trains: those of layer groups that are open in any epoch."""
    if not trainer.trains_encoder:
        return 0
    table = trainer.trials[member].table
    return sum(size for group, size in enumerate(trainer.model.encoder_sizes(member)) if table.ever_trains(group))


def hardware_record(trainer: Trainer) -> HardwareRecord:
    """The hardware of a trainer, for the ledger."""
    return HardwareRecord(**asdict(trainer.hardware), precision=trainer.precision, host=socket.gethostname())


def cache_notes(trainer: Trainer) -> tuple[str, ...]:
    """Notes on the use of the cached frozen states and of CUDA graphs, one line each."""
    cache = trainer.frozen_states
    refusals = [trainer.recorded.refusal] if trainer.recorded.refusal is not None else []
    return *(cache.notes if isinstance(cache, FeatureCache) else ()), *refusals


def save_weights(state: Mapping[str, Tensor], folder: StoragePath) -> None:
    """Write weights as safetensors, atomically."""
    with storing(folder / WEIGHTS) as temporary:
        save_file({name: tensor.contiguous().cpu() for name, tensor in state.items()}, temporary)
