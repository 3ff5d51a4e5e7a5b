"""The trial worker: trains one order on what Ray gave it, and reports each epoch. It cannot open a test split."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.hardware import Hardware, seize
from meltpoint.adapters.loop import EncodedData, NotFiniteError, Trainer
from meltpoint.adapters.model import build
from meltpoint.adapters.tokenising import encode_split
from meltpoint.sweeps.orders import Order
from meltpoint.sweeps.records import EpochRecord, HardwareRecord
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind, TrainingData

Event = dict[str, Any]

WEIGHTS = "weights.safetensors"


@lru_cache(maxsize=2)
def warm_encoder(word: str, kind: Kind) -> Encoder:
    """An encoder with its pretrained weights, kept in the worker process from trial to trial."""
    return encoders.load(encoders.resolve(word, kind))


@lru_cache(maxsize=8)
def warm_training_data(data: DataSpec) -> TrainingData:
    """A task's train and dev split, kept in the worker process."""
    return load_training_data(data)


@lru_cache(maxsize=8)
def warm_encoded_data(word: str, data: DataSpec, max_pieces: int) -> EncodedData:
    """A task's splits, tokenised once a worker process for each encoder and length."""
    loaded = warm_training_data(data)
    tokenizer = warm_encoder(word, loaded.task.kind).tokenizer
    train = encode_split(loaded.task.kind, loaded.train, tokenizer, max_pieces)
    dev = encode_split(loaded.task.kind, loaded.dev, tokenizer, max_pieces)
    return EncodedData(loaded.task, train, dev, loaded.dev)


def training(order: Order, hardware: Hardware) -> Trainer:
    """A trainer for an order, its random numbers seeded.

    Raises:
        ValueError: the data or the encoder's weights are not those that the sweep was opened on.
    """
    loaded = warm_training_data(order.data)
    if loaded.fingerprint != order.data_fingerprint:
        raise ValueError(f"the data of {order.task} changed since the sweep was opened; put the old files back.")
    encoder = warm_encoder(order.encoder, loaded.task.kind)
    if order.encoder_fingerprint not in ("", encoder.fingerprint):
        raise ValueError(f"the weights of {order.encoder} are not those that the sweep was opened on; put them back.")
    max_pieces = min(int(order.setting["max_pieces"]), encoder.max_pieces)
    data = warm_encoded_data(order.encoder, order.data, max_pieces)
    torch.manual_seed(order.seed)
    model = build(encoder, loaded.task, order.mode, order.head, order.setting, hardware.device)
    return Trainer(model, data, order.mode, order.setting, order.seed, hardware)


def input_notes(data: EncodedData) -> list[str]:
    """What the length limit did to the inputs, in words."""
    notes = []
    for name, split in (("train", data.train), ("dev", data.dev)):
        if split.truncated:
            notes.append(f"{name}: {split.truncated} of {split.examples} examples cut to the longest input")
        if split.windowed:
            notes.append(f"{name}: {split.windowed} of {split.examples} sentences split into windows, no word lost")
    return notes


def run(order: Order) -> Iterator[Event]:
    """Train an order: a `ready` event, one `epoch` event an epoch, and one `outcome` event, whatever happens.

    NaN, out of memory and errors of a setting are outcomes, not exceptions: the worker lives on.
    """
    started = time.time()
    try:
        hardware = seize(int(order.cpus), order.gpus)
        trainer = training(order, hardware)
        yield {"event": "ready", "body": _ready(trainer, hardware)}
        for result in trainer.epochs():
            body = EpochRecord(**asdict(result), finished_at=time.time())
            yield {"event": "epoch", "score": result.dev[trainer.data.task.metric], "body": body.model_dump()}
        save_weights(trainer.best_state, Path(order.checkpoint))
        yield _outcome(started, "finished", best_epoch=trainer.best[1])
    except NotFiniteError as error:
        yield _outcome(started, "failed", error=str(error))
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        advice = "a smaller batch_size or max_pieces, or more memory a trial (--gpus-per-trial)"
        yield _outcome(started, "failed", error=f"out of memory: {str(error).splitlines()[0]}; {advice}")
    except MemoryError:
        yield _outcome(started, "failed", error="out of memory on the machine; a smaller batch_size or max_pieces")
    except Exception as error:  # noqa: BLE001 - whatever broke is this trial's outcome; the sweep goes on
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        yield _outcome(started, "failed", error=f"{type(error).__name__}: {error} ({where})")


def _ready(trainer: Trainer, hardware: Hardware) -> dict[str, Any]:
    host = socket.gethostname()
    record = HardwareRecord(**asdict(hardware), precision=trainer.precision, host=host)
    return {"hardware": record.model_dump(), "input_notes": input_notes(trainer.data)}


def _outcome(started: float, status: str, best_epoch: int | None = None, error: str | None = None) -> Event:
    seconds = time.time() - started
    return {
        "event": "outcome",
        "body": {"status": status, "error": error, "best_epoch": best_epoch, "seconds": seconds},
    }


def save_weights(state: dict[str, Tensor], folder: Path) -> None:
    """Write weights as safetensors, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{WEIGHTS}.{os.getpid()}.tmp"
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in state.items()}, beside)
        beside.replace(folder / WEIGHTS)
    finally:
        beside.unlink(missing_ok=True)


def train_on_ray(config: dict[str, Any]) -> None:
    """Ray Tune's function trainable: an order in, its events out."""
    from ray import tune

    for event in run(Order.model_validate(config["order"])):
        tune.report(event)
    release_memory()


def release_memory() -> None:
    """Give the trial's memory back: a warm worker lives for many trials, and neither Python nor malloc does it soon.

    Models hold reference cycles, and glibc keeps what each trial's thread freed: without this, workers of the 12-cell
    sweep grew to 10 GB each (docs/log.md).
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
