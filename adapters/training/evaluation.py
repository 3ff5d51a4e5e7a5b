"""The model's inputs from a split, and the scores of a model on a split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import CachedStates, Inputs, evaluation_batches, inputs, stitch
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.training.graphs import Recorded
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import Example, Task


class FrozenStates(Protocol):
    """A cache of frozen encoders' hidden states (`features`)."""

    def open(self, model: AdaptedModel, split: EncodedSplit, task: Task, first_pieces: bool) -> CachedStates | None:
        """A split's hidden states; None if the cache has no room and the encoder must run."""


class SplitInputs:
    """A model's inputs from each split, opened once and kept.

    They are cached hidden states while the encoder is frozen and still as pretrained, otherwise subword tokens.

    Args:
        frozen_states: the cache, or None to run the encoder each time.
        static: whether batches are padded to a few widths.
    """

    def __init__(
        self, model: AdaptedModel, task: Task, frozen_states: FrozenStates | None, static: bool = False
    ) -> None:  # fmt: skip
        self.model, self.task, self.frozen_states, self.static = model, task, frozen_states, static
        self._opened: dict[tuple[int, bool], Inputs] = {}

    def open(self, split: EncodedSplit, frozen: bool) -> Inputs:
        """A split's inputs; hidden states missing from the cache are computed now, together with other workers.

        Args:
            frozen: whether the encoder is frozen and still as pretrained, so that the cache is valid for it. Layers
                that never train (`AdaptedModel.starts_at`) are always so, for rows that the encoder reads as they are.
        """
        is_part = self.model.starts_at is not None
        is_valid = all(row.is_its_input for row in split.rows) if is_part else frozen
        cache = self.frozen_states if is_valid else None
        key = id(split), cache is not None
        if key not in self._opened:
            first_pieces = self.model.head.reads == "first" and not is_part
            features = None if cache is None else cache.open(self.model, split, self.task, first_pieces)
            read = inputs(split) if features is None else inputs(split, features, first_pieces)
            self._opened[key] = replace(read, static=self.static)
        return self._opened[key]


EVALUATION_BATCH = 64  # rows; sorted by length, so little of it is padding


@dataclass(frozen=True)
class Evaluation:
    """A scored split.

    Attributes:
        predictions: one per example, in the examples' order.
        probabilities: a distribution over the labels per example, for classification; otherwise empty.
        metrics: metric name → value; empty if the labels are hidden, or without examples.
    """

    predictions: list[Prediction]
    probabilities: list[list[float]]
    metrics: dict[str, float]


@torch.no_grad()
def evaluate(
    model: AdaptedModel, task: Task, split: EncodedSplit, examples: list[Example],
    device: torch.device, precision: Precision, read: Inputs | None = None, batch_rows: int = EVALUATION_BATCH,
    forward: Recorded[Tensor] | None = None,
) -> list[Evaluation]:  # fmt: skip
    """Predict every row of a split with each member of a bundle, rejoin windows, and score the labelled rows.

    The model is left in evaluation mode.

    Args:
        read: the split with its cached hidden states, or None to run the encoder.
        batch_rows: the maximum number of rows at a time.
        forward: the model, recorded; None calls it.

    Returns:
        One evaluation per member.
    """
    model.eval()
    found = [_Found() for _ in range(model.members)]
    pad = model.encoder.tokenizer.pad_piece
    # A graph must not read a weight that autocast has cached outside of it: the cache ends with this block.
    is_cached, is_lowered = forward is None or not forward.records, precision == "bf16"
    with torch.autocast(device.type, torch.bfloat16, enabled=is_lowered, cache_enabled=is_cached):
        for batch in evaluation_batches(read or inputs(split), task.kind, pad, batch_rows):
            batch = batch.to(device)
            scores = model(batch) if forward is None else forward(batch, 0, model.encoder_is_frozen)
            for member, own in enumerate(scores.float()):
                found[member].take(model, own, batch, member)
    return [one.evaluation(task, split, examples) for one in found]


class _Found:
    """One member's predictions so far, by row."""

    def __init__(self) -> None:
        self.predictions: dict[int, Prediction] = {}
        self.probabilities: dict[int, list[float]] = {}

    def take(self, model: AdaptedModel, scores: Tensor, batch: Batch, member: int) -> None:
        self.predictions.update(zip(batch.rows, model.head.decode(scores, batch, member), strict=True))
        distributions = model.head.probabilities(scores, batch)
        if distributions is not None:
            self.probabilities.update(zip(batch.rows, distributions, strict=True))

    def evaluation(self, task: Task, split: EncodedSplit, examples: list[Example]) -> Evaluation:
        ordered = stitch(split, [self.predictions[row] for row in range(len(split.rows))])
        gold = [example.label for example in examples]
        shares = [self.probabilities[row] for row in sorted(self.probabilities)]
        metrics = {} if not gold or any(label is None for label in gold) else score(task, gold, ordered, shares)
        return Evaluation(ordered, shares, metrics)
