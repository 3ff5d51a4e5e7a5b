"""The one training loop: every mode and every trick is a row of the multiplier table that it reads."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meltpoint.adapters import modes, tricks
from meltpoint.adapters.batch import Batch, EncodedSplit
from meltpoint.adapters.batching import steps_per_epoch, training_batches
from meltpoint.adapters.encoder import LayerGroup
from meltpoint.adapters.evaluation import Evaluation, evaluate
from meltpoint.adapters.hardware import Hardware, resolve_precision
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.parameters import Setting
from meltpoint.adapters.table import Plan, Table
from meltpoint.tasks.core.task import Example, Task

FINITE_CHECK_STEPS = 64  # a loss is looked at this often: each look makes a GPU wait


@dataclass(frozen=True)
class EncodedData:
    """A task's train and dev split, tokenised for one encoder.

    Attributes:
        train, dev: the rows.
        dev_examples: the gold labels' owners.
    """

    task: Task
    train: EncodedSplit
    dev: EncodedSplit
    dev_examples: list[Example]


@dataclass(frozen=True)
class EpochResult:
    """What one epoch gave.

    Attributes:
        epoch: 1 for the first.
        phase: the mode's name for the phase that the epoch lies in.
        step: optimiser steps so far.
        train_loss: mean over the epoch's steps.
        dev: metric name → value, the task's own metric among them.
        train_seconds, dev_seconds: wall time.
        learning_rate: the head's, at the epoch's last step.
    """

    epoch: int
    phase: str
    step: int
    train_loss: float
    dev: dict[str, float]
    train_seconds: float
    dev_seconds: float
    learning_rate: float


class NotFiniteError(ArithmeticError):
    """The loss or a weight became NaN or infinite."""


def plan(task_rows: int, model: AdaptedModel, mode: str, setting: Setting) -> Plan:
    """The trial's course, before its first step."""
    restart = bool(setting.get("stack_and_finetune.restart_schedule", True))
    per_epoch = steps_per_epoch(task_rows, int(setting["batch_size"]))
    return Plan(len(model.layer_groups()), per_epoch, modes.get(mode).phases(setting), restart)


def optimiser(groups: list[LayerGroup], weight_decay: float) -> torch.optim.AdamW:
    """AdamW with two parameter groups a layer group: biases and layer norms are vectors, and do not decay.

    Made once a trial: a new optimiser at each thaw would lose Adam's moments.
    """
    parameter_groups = []
    for index, group in enumerate(groups):
        matrices = [p for p in group.parameters if p.ndim > 1]
        vectors = [p for p in group.parameters if p.ndim <= 1]
        for parameters, decay in ((matrices, weight_decay), (vectors, 0.0)):
            if parameters:
                parameter_groups.append({"params": parameters, "weight_decay": decay, "layer_group": index})
    return torch.optim.AdamW(parameter_groups, lr=0.0, fused=True)


class Trainer:
    """One trial: a model, its data and its table; iterate `epochs()` and read the best state.

    Attributes:
        best: (dev score, epoch) of the best epoch so far: highest dev metric, the earliest where equal.
        best_state: the trained weights at that epoch.
    """

    def __init__(
        self, model: AdaptedModel, data: EncodedData, mode: str, setting: Setting, seed: int, hardware: Hardware
    ) -> None:
        self.model, self.data, self.setting, self.seed = model, data, setting, seed
        self.device = torch.device(hardware.device)
        self.precision = resolve_precision(str(setting["precision"]), hardware.device)
        self.trains_encoder = modes.get(mode).trains_encoder
        self.groups = model.layer_groups()
        active = tuple(trick for trick in tricks.every() if trick.is_on(setting))
        self.table = Table(plan(len(data.train.rows), model, mode, setting), active, setting)
        self.optimiser = optimiser(self.groups, float(setting["weight_decay"]))
        self.best: tuple[float, int] = (-math.inf, 0)
        self.best_state: dict[str, Tensor] = {}
        self.step = 0

    def epochs(self) -> Iterator[EpochResult]:
        """Train, one result an epoch.

        Raises:
            NotFiniteError: the loss or a weight became NaN or infinite.
        """
        for epoch in range(1, self.table.plan.epochs + 1):
            started = time.perf_counter()
            phase, _ = self.table.plan.phase_at(self.step)
            loss = self._train_epoch(epoch)
            trained = time.perf_counter()
            dev = self.evaluate(self.data.dev, self.data.dev_examples)
            self._remember(dev.metrics[self.data.task.metric], epoch)
            yield EpochResult(
                epoch=epoch, phase=phase.name, step=self.step, train_loss=loss, dev=dev.metrics,
                train_seconds=trained - started, dev_seconds=time.perf_counter() - trained,
                learning_rate=self.table.learning_rate(len(self.groups) - 1, self.step - 1),
            )  # fmt: skip

    def evaluate(self, split: EncodedSplit, examples: list[Example]) -> Evaluation:
        """Score a split with the model as it is."""
        return evaluate(self.model, self.data.task, split, examples, self.device, self.precision)

    def _remember(self, score: float, epoch: int) -> None:
        if score > self.best[0]:
            self.best = (score, epoch)
            self.best_state = self.model.trained_state(self.trains_encoder)

    def _train_epoch(self, epoch: int) -> float:
        self.model.train()
        total = torch.zeros((), device=self.device)
        size, pad = int(self.setting["batch_size"]), self.model.encoder.tokenizer.pad_piece
        steps = 0
        for batch in training_batches(self.data.train, self.data.task.kind, pad, size, self.seed, epoch):
            total += self._train_step(batch.to(self.device))
            steps += 1
            if steps % FINITE_CHECK_STEPS == 0:
                self._check_finite(total, epoch)
        # The last step's weights have given no loss yet, and a class id is finite whatever the scores were.
        weights = [parameter.detach() for parameter in self.model.parameters()]
        self._check_finite(total + nn.utils.get_total_norm(weights), epoch)
        return float(total) / steps

    def _check_finite(self, total: Tensor, epoch: int) -> None:
        if not math.isfinite(float(total)):
            phase, _ = self.table.plan.phase_at(self.step - 1)
            raise NotFiniteError(
                f"the loss or a weight is not finite in epoch {epoch} ({phase.name}), by step {self.step}; "
                f"a lower learning rate than {phase.learning_rate:g} or a gradient_clip may cure it"
            )

    def _train_step(self, batch: Batch) -> Tensor:
        self._read_table()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            scores = self.model(batch)
        loss = self.model.head.loss(scores.float(), batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip = float(self.setting["gradient_clip"])
        if clip > 0:
            nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.grad is not None], clip)
        self.optimiser.step()
        self.step += 1
        return loss.detach()

    def _read_table(self) -> None:
        """Set each group's rate and freeze the rows that are 0: without a gradient, AdamW skips a parameter."""
        rates = [self.table.learning_rate(group, self.step) for group in range(len(self.groups))]
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = rates[parameters["layer_group"]]
        for index, group in enumerate(self.groups):
            open_row = self.table.multiplier(index, self.step) != 0.0
            if group.parameters and group.parameters[0].requires_grad != open_row:
                for parameter in group.parameters:
                    parameter.requires_grad_(open_row)
                    parameter.grad = None
        self.model.freeze_encoder(self.table.encoder_is_frozen(self.step))
