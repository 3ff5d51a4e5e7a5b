"""Scoring a split with a model: predictions in the examples' order, and the task's metrics."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from meltpoint.adapters.batch import EncodedSplit
from meltpoint.adapters.batching import evaluation_batches, stitch
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.head import Prediction
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.metrics import score
from meltpoint.tasks.core.task import Example, Task

EVALUATION_BATCH = 64  # rows; sorted by length, so little of it is padding


@dataclass(frozen=True)
class Evaluation:
    """A scored split.

    Attributes:
        predictions: one an example, in the examples' order.
        probabilities: a distribution over the labels an example, for classification; else empty.
        metrics: metric name → value; empty where the labels are hidden, or where there is no example.
    """

    predictions: list[Prediction]
    probabilities: list[list[float]]
    metrics: dict[str, float]


@torch.no_grad()
def evaluate(
    model: AdaptedModel, task: Task, split: EncodedSplit, examples: list[Example],
    device: torch.device, precision: Precision,
) -> Evaluation:  # fmt: skip
    """Predict every row of a split, put windows together again, and score what has labels.

    The model is left in evaluation mode.
    """
    model.eval()
    predictions: dict[int, Prediction] = {}
    probabilities: dict[int, list[float]] = {}
    pad = model.encoder.tokenizer.pad_piece
    for batch in evaluation_batches(split, task.kind, pad, EVALUATION_BATCH):
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            scores = model(batch)
        scores = scores.float()
        predictions.update(zip(batch.rows, model.head.decode(scores, batch), strict=True))
        distributions = model.head.probabilities(scores, batch)
        if distributions is not None:
            probabilities.update(zip(batch.rows, distributions, strict=True))
    ordered = stitch(split, [predictions[row] for row in range(len(split.rows))])
    gold = [example.label for example in examples]
    metrics = {} if not gold or any(label is None for label in gold) else score(task, gold, ordered)
    return Evaluation(ordered, [probabilities[row] for row in sorted(probabilities)], metrics)
