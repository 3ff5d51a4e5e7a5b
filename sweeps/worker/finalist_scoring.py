"""Scoring of finalists: a sweep opens its test splits here alone, once per finalist, after selection, and logged."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from meltpoint.adapters import heads
from meltpoint.adapters.data.document_context import documents_fingerprint
from meltpoint.adapters.data.input_format import input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.hardware import bf16_is_native, claim_device
from meltpoint.adapters.training.evaluation import Evaluation
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import also_split, finalist_name, predictions_path
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath, append_line, local_copy, storage_path, storing_folder, write
from meltpoint.sweeps.storage.object_client import StoreError
from meltpoint.sweeps.worker.resources import unfit
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.worker.worker import WEIGHTS, training, warm_training_data
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.locked import TestData, open_test, write_glue_submission
from meltpoint.tasks.core.scoring import needs_probabilities
from meltpoint.tasks.core.task import Example, Task


def score_finalists(
    orders_json: list[dict[str, Any]], records_json: list[str], sweep_folder: str
) -> list[dict[str, Any]]:
    """Score a cell's finalists on dev and on test with their saved weights, and save their predictions.

    Finalists on one frozen encoder are scored together: it reads the test split once for all of them.

    Returns:
        For each finalist {"test": metrics (empty if the test labels are hidden), "found": its record's fields for all
        of dev, if its epochs were scored on a sample, "fingerprint": of the test split (None without one), "error":
        None or one line, "again": whether its weights are damaged, so that it must be retrained}. A damaged finalist
        leaves the others unscored.
    """
    orders = [Order.model_validate(order) for order in orders_json]
    records = [TrialRecord.model_validate_json(record) for record in records_json]
    folder = storage_path(sweep_folder)
    fault = unfit(orders[0])
    if fault is not None:
        return [{"test": None, "error": fault, "again": False} for _ in orders]
    try:
        damages = [damage_of(order) for order in orders]
        if any(damages):
            return [{"test": None, "error": damage, "again": damage is not None} for damage in damages]
        orders = [_as_trained(order, record) for order, record in zip(orders, records, strict=True)]
        trainer = restore(orders)
        if trainer.trains_encoder:  # cached states are rounded to bf16, the encoder's own are not; match the record
            best = [epoch for epoch in records[0].epochs if epoch.epoch == records[0].best_epoch]
            trainer.model.freeze_encoder(any(epoch.encoder_frozen for epoch in best))
        name = cell_name(*records[0].cell)
        dev = trainer.evaluate_dev()
        for found, record in zip(dev, records, strict=True):
            if not record.is_its_dev(found.metrics[record.metric]):
                why = f"its weights give dev {found.metrics[record.metric]!r}, its record has {record.dev_of_epoch!r}"
                return [
                    {"test": None, "error": why if one is record else None, "again": one is record} for one in records
                ]
        examples, whole = trainer.data.dev_examples, warm_training_data(orders[0].data).all_dev
        on_dev: list[dict[str, Any]] = [{} for _ in records]
        if len(whole) > len(examples):  # the epochs were scored on a sample
            dev, examples = predict(orders[0], trainer, whole, "dev"), whole
            on_dev = [
                {"dev": one.metrics[record.metric], "dev_metrics": one.metrics, "dev_examples": len(whole)}
                for one, record in zip(dev, records, strict=True)
            ]
        for found, record in zip(dev, records, strict=True):
            save_predictions(predictions_path(folder, name, record, "dev"), trainer, found, examples)
        scores, fingerprint = _score_test(orders[0], records, trainer, folder, name)
        return [
            {"test": score, "found": found, "fingerprint": fingerprint, "error": None, "again": False}
            for score, found in zip(scores, on_dev, strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - any error is reported for these finalists; the sweep continues
        return [{"test": None, "error": f"{type(error).__name__}: {error}", "again": False} for _ in orders]


def _as_trained(order: Order, record: TrialRecord) -> Order:
    """The order with the precision in which the finalist was trained: `auto` may be another one on this machine."""
    own = record.hardware.precision if record.hardware is not None else None
    if own is None or (own == "bf16" and order.gpus and not bf16_is_native("cuda")):
        return order
    return order.model_copy(update={"setting": {**order.setting, "precision": own}})


def damage_of(order: Order) -> str | None:
    """The fault of a finalist's saved weights, in a few words; None if they can be read."""
    path = storage_path(order.checkpoint) / WEIGHTS
    try:
        load_weights(path)
    except FileNotFoundError:
        return f"{path} is missing"
    except StoreError:
        raise  # the store is away, and the weights may be whole
    except (SafetensorError, OSError) as error:
        return f"{path} is damaged ({str(error).splitlines()[0]})"
    return None


def restore(orders: Sequence[Order]) -> Trainer:
    """A trainer with the finalists' best weights and their dev split; several finalists only on one frozen encoder."""
    trainer = training(orders, claim_device(int(orders[0].cpus), orders[0].gpus))
    trainer.model.load_trained([load_weights(storage_path(order.checkpoint) / WEIGHTS) for order in orders])
    return trainer


def load_weights(path: StoragePath) -> dict[str, Tensor]:
    """The weights in a file.

    Raises:
        FileNotFoundError: the file is missing.
        SafetensorError: the file is damaged.
    """
    with local_copy(path) as local:
        return load_file(local)


def _score_test(
    order: Order, records: Sequence[TrialRecord], trainer: Trainer, folder: StoragePath, name: str
) -> tuple[list[dict[str, float]], str | None]:
    """Each finalist's metrics on test, and the test split's fingerprint."""
    if sources.check(order.data) in ("absent", "closed"):
        return [{} for _ in records], None
    for record in records:  # logged before it is read
        line = {"trial": record.id, "cell": name, "seed": record.seed, "opened_at": time.time()}
        append_line(Ledger(folder).openings, line)
    test = open_test(order.data)
    fingerprint = test_fingerprint(order, test)
    if order.test_fingerprint not in ("", fingerprint):
        raise ValueError(f"the test split of {order.task} is not the one that others were scored on; restore it")
    results = predict(order, trainer, test.examples, "test")
    metrics = [dict(result.metrics) for result in results]
    for also, examples in test.also.items():
        for record, own, result in zip(records, metrics, predict(order, trainer, examples, also), strict=True):
            own |= {f"{also}/{metric}": value for metric, value in result.metrics.items()}
            save_predictions(predictions_path(folder, name, record, also_split(also)), trainer, result, examples)
    for record, result in zip(records, results, strict=True):
        save_predictions(predictions_path(folder, name, record, "test"), trainer, result, test.examples)
        if not test.labelled:
            ids = [example.id for example in test.examples]
            with storing_folder(folder / "submissions" / finalist_name(name, record)) as where:
                write_glue_submission(trainer.data.task, result.predictions, ids, where)
    return metrics, fingerprint


def test_fingerprint(order: Order, test: TestData) -> str:
    """The fingerprint of a test split as a trial reads it: including documents if the trial reads them."""
    documents = f"+{documents_fingerprint((test.examples, None))}" if order.documents_fingerprint else ""
    return test.fingerprint + documents


def predict(order: Order, trainer: Trainer, examples: list[Example], name: str) -> list[Evaluation]:
    """The predictions of restored finalists on all of a split."""
    limit = min(int(order.setting["max_pieces"]), trainer.model.encoder.max_pieces)
    input_format = input_format_of(order.setting, heads.get(order.head).joint_pairs)
    tokenizer = trainer.model.encoder.tokenizer
    split = encode_split(trainer.data.task.kind, examples, tokenizer, limit, input_format)
    return trainer.evaluate(replace(split, name=name), examples)


def save_predictions(path: StoragePath, trainer: Trainer, result: Evaluation, examples: list[Example]) -> None:
    """Write one JSON line per example: id, gold, prediction, group if it has one, and label probabilities."""
    task = trainer.data.task
    lines, exact = [], needs_probabilities(task)
    for index, (example, predicted) in enumerate(zip(examples, result.predictions, strict=True)):
        line: dict[str, Any] = {
            "id": example.id,
            "gold": named(task, example.label),
            "prediction": named(task, predicted),
        }
        if task.is_grouped:
            line["group"] = example.group
        if result.probabilities:
            shares = zip(task.labels, result.probabilities[index], strict=True)
            line["probabilities"] = {label: share if exact else round(share, 6) for label, share in shares}
        lines.append(json.dumps(line, ensure_ascii=False))
    write(path, "\n".join(lines) + "\n")


def named(task: Task, label: Any) -> Any:
    """Label ids as label names; scores stay numbers."""
    if label is None or not task.labels:
        return label
    if isinstance(label, list | tuple) and task.of_kind.has_labels:
        return [name for name, has in zip(task.labels, label, strict=True) if has]
    if isinstance(label, list | tuple):
        return [task.labels[one] for one in label]
    return task.labels[label]
