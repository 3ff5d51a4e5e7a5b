"""What a trial trains on, what its epochs gave, and where it stands: the values that the loop reads and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from meltpoint.adapters import modes
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import steps_per_epoch
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import Member
from meltpoint.adapters.multiplier_table import Plan, Table
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.tasks.core.task import Example, Task


@dataclass(frozen=True)
class EncodedData:
    """A task's train and dev split, tokenised for one encoder.

    Attributes:
        train, dev: the rows.
        dev_examples, train_examples: the gold labels' owners; train's are read only by the rule on the gap between
            train and dev.
    """

    task: Task
    train: EncodedSplit
    dev: EncodedSplit
    dev_examples: list[Example]
    train_examples: list[Example] = field(default_factory=list)


class NotFiniteError(ArithmeticError):
    """The loss or a weight became NaN or infinite."""


Outcome = tuple[int, EpochResult | NotFiniteError]
"""(which member, what its epoch gave)."""


@dataclass
class TrialState:
    """One member on its way.

    Attributes:
        table: its multiplier table.
        best: (dev score, epoch) of the best epoch so far: highest dev metric, the earliest where equal.
        best_state: the trained weights at that epoch.
        results: what its epochs gave.
        within: where it stood after the last epoch of its first phase whose gap between train and dev was small
            enough; None where there is no such epoch, or no rule.
    """

    member: Member
    table: Table
    best: tuple[float, int] = (-math.inf, 0)
    best_state: Snapshot = field(default_factory=lambda: Snapshot({}))
    results: list[EpochResult] = field(default_factory=list)
    within: FirstPhaseCheckpoint | None = None

    @property
    def largest_gap(self) -> float:
        """The gap between train and dev that ends the first phase; 0 for no such rule."""
        return float(self.member.setting.get("stack_and_finetune.largest_gap", 0.0))

    def end_first_phase(self, epochs: int) -> None:
        """Let the first phase be over after so many epochs."""
        self.table = replace(self.table, plan=self.table.plan.with_first_phase(epochs))


@dataclass(frozen=True)
class FirstPhaseCheckpoint:
    """A first phase that is over, for other trials to go on from.

    Attributes:
        weights, best_state: the head's, as a bundle of one has them; at the end, and at the best epoch.
        optimiser: the optimiser's state.
    """

    results: list[EpochResult]
    best: tuple[float, int]
    best_state: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    optimiser: dict[str, Tensor]


def plan(task_rows: int, groups: int, mode: str, setting: Setting) -> Plan:
    """The trial's plan, before its first step."""
    restart = bool(setting.get("stack_and_finetune.restart_schedule", True))
    per_epoch = steps_per_epoch(task_rows, int(setting["batch_size"]))
    return Plan(groups, per_epoch, modes.get(mode).phases(setting), restart)


def without_encoder(stage: FirstPhaseCheckpoint) -> FirstPhaseCheckpoint:
    """A stage whose best weights are the head's alone: that is what is kept of it."""
    own = [name for name in stage.best_state if not name.startswith("encoder.")]
    return replace(stage, best_state={name: stage.best_state[name] for name in own})
