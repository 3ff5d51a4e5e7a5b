"""Scoring finalists: the one place that opens test splits, once a finalist, after selection, and on the record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from meltpoint.adapters.evaluation import Evaluation
from meltpoint.adapters.hardware import seize
from meltpoint.adapters.loop import Trainer
from meltpoint.adapters.tokenising import encode_split
from meltpoint.sweeps.cells import cell_name
from meltpoint.sweeps.ledger import write_atomically
from meltpoint.sweeps.orders import Order
from meltpoint.sweeps.records import TrialRecord
from meltpoint.sweeps.worker import WEIGHTS, training
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.locked import TestData, open_test
from meltpoint.tasks.core.submission import write_glue_submission
from meltpoint.tasks.core.task import Example, Task


def score_finalist(order_json: dict[str, Any], record_json: str, sweep_folder: str) -> dict[str, Any]:
    """Score one finalist on dev and on test with its saved weights, and save its predictions.

    Returns:
        {"test": metrics (empty where the test labels are hidden), "error": None or one line}.
    """
    order, record = Order.model_validate(order_json), TrialRecord.model_validate_json(record_json)
    folder = Path(sweep_folder)
    try:
        trainer = restore(order)
        dev = trainer.evaluate(trainer.data.dev, trainer.data.dev_examples)
        if dev.metrics[record.metric] != record.dev:
            raise ValueError(f"its weights give dev {dev.metrics[record.metric]!r}, its record says {record.dev!r}")
        name = cell_name(*record.cell)
        save_predictions(
            folder / "predictions" / f"{name}.seed{record.seed}.dev.jsonl", trainer, dev, trainer.data.dev_examples
        )
        return {"test": _score_test(order, record, trainer, folder, name), "error": None}
    except (ValueError, OSError, RuntimeError) as error:
        return {"test": None, "error": f"{type(error).__name__}: {error}"}


def restore(order: Order) -> Trainer:
    """The finalist's model with its best weights, and its dev split."""
    trainer = training(order, seize(int(order.cpus), order.gpus))
    missing, unexpected = trainer.model.load_state_dict(load_file(Path(order.checkpoint) / WEIGHTS), strict=False)
    frozen = [name for name in missing if not name.startswith("encoder.") or trainer.trains_encoder]
    if frozen or unexpected:
        raise ValueError(f"{order.checkpoint} does not fit the model: {[*frozen, *unexpected][:3]}")
    return trainer


def _score_test(order: Order, record: TrialRecord, trainer: Trainer, folder: Path, name: str) -> dict[str, float]:
    if sources.check(order.data) == "absent":
        return {}
    _write_down(folder, record)
    test, result = _predict_test(order, trainer)
    save_predictions(folder / "predictions" / f"{name}.seed{record.seed}.test.jsonl", trainer, result, test.examples)
    if not test.labelled:
        ids = [example.id for example in test.examples]
        write_glue_submission(
            trainer.data.task, result.predictions, ids, folder / "submissions" / f"{name}.seed{record.seed}"
        )
    return result.metrics


def _predict_test(order: Order, trainer: Trainer) -> tuple[TestData, Evaluation]:
    test = open_test(order.data)
    limit = min(int(order.setting["max_pieces"]), trainer.model.encoder.max_pieces)
    split = encode_split(trainer.data.task.kind, test.examples, trainer.model.encoder.tokenizer, limit)
    return test, trainer.evaluate(split, test.examples)


def score_on_test(order: Order) -> float | None:
    """The task's metric on test of the weights in an order's checkpoint; None where test has no labels.

    Raises:
        ValueError: the task has no test split here.
    """
    trainer = restore(order)
    _, result = _predict_test(order, trainer)
    return result.metrics.get(trainer.data.task.metric)


def _write_down(folder: Path, record: TrialRecord) -> None:
    """The record of every opening, written before the split is read."""
    line = {"trial": record.id, "cell": cell_name(*record.cell), "seed": record.seed, "opened_at": time.time()}
    with (folder / "test_openings.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def save_predictions(path: Path, trainer: Trainer, result: Evaluation, examples: list[Example]) -> None:
    """One JSON line an example: id, gold, prediction, and for classification the probabilities."""
    task = trainer.data.task
    lines = []
    for index, (example, predicted) in enumerate(zip(examples, result.predictions, strict=True)):
        line: dict[str, Any] = {
            "id": example.id,
            "gold": named(task, example.label),
            "prediction": named(task, predicted),
        }
        if result.probabilities:
            shares = zip(task.labels, result.probabilities[index], strict=True)
            line["probabilities"] = {label: round(share, 6) for label, share in shares}
        lines.append(json.dumps(line, ensure_ascii=False))
    write_atomically(path, "\n".join(lines) + "\n")


def named(task: Task, label: Any) -> Any:
    """Label ids as label names; scores stay numbers."""
    if label is None or not task.labels:
        return label
    if isinstance(label, list | tuple):
        return [task.labels[one] for one in label]
    return task.labels[label]


class Scorer:
    """Sends finalists to be scored as Ray tasks, beside the training that still goes on.

    Attributes:
        troubles: trial id → why it could not be scored.
    """

    def __init__(self, folder: Path, cpus: float, gpus: float) -> None:
        self.folder, self.cpus, self.gpus = folder, cpus, gpus
        self.pending: dict[Any, TrialRecord] = {}
        self.troubles: dict[str, str] = {}
        self.submitted: set[str] = set()

    def has(self, trial: str) -> bool:
        """Whether a finalist was sent already."""
        return trial in self.submitted

    def submit(self, order: Order, record: TrialRecord) -> None:
        """Send a finalist."""
        import ray

        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=1)(score_finalist)
        self.pending[remote.remote(order.as_json(), record.model_dump_json(), str(self.folder))] = record
        self.submitted.add(record.id)

    def collect(self, timeout_seconds: float = 0.0) -> list[TrialRecord]:
        """The finalists whose scores came in, their records completed."""
        if not self.pending:
            return []
        import ray

        ready, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=timeout_seconds)
        return [done for reference in ready if (done := self._completed(reference)) is not None]

    def _completed(self, reference: Any) -> TrialRecord | None:
        import ray

        record = self.pending.pop(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            answer = {"test": None, "error": f"its worker died ({str(error).splitlines()[0]})"}
        if answer["error"] is not None:
            self.troubles[record.id] = answer["error"]
            return None
        return record.model_copy(update={"test": answer["test"]})
