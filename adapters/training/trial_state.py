"""The state of one trial in the training loop: its data, its multiplier table, its epochs so far, its best weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from meltpoint.adapters import modes, tricks
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import steps_per_epoch
from meltpoint.adapters.model import Member
from meltpoint.adapters.multiplier_table import MultiplierTable, Plan
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training import patience
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.tricks import reduce_on_plateau
from meltpoint.tasks.core.task import Example, Task


@dataclass(frozen=True)
class EncodedData:
    """A task's train and dev split, tokenised for one encoder.

    Attributes:
        train, dev: the rows.
        dev_examples, train_examples: the examples with the gold labels; train's are read only by the gap rule.
    """

    task: Task
    train: EncodedSplit
    dev: EncodedSplit
    dev_examples: list[Example]
    train_examples: list[Example] = field(default_factory=list)


class NotFiniteError(ArithmeticError):
    """The loss or a weight became NaN or infinite."""


Outcome = tuple[int, EpochResult | NotFiniteError]
"""(index of the trial in its bundle, result of its epoch)."""


@dataclass
class TrialState:
    """One trial of a bundle, as training changes it.

    Attributes:
        table: its multiplier table.
        best: (dev score, epoch) of the best epoch of its last phase so far (`epoch_result.best_epoch`); epoch 0 before.
        best_state: the trained weights at that epoch.
        best_moved_encoder: whether the encoder had been trained by then; if not, its weights are the pretrained ones.
        results: one an epoch so far.
    """

    member: Member
    table: MultiplierTable
    best: tuple[float, int] = (-math.inf, 0)
    best_state: Snapshot = field(default_factory=lambda: Snapshot({}))
    best_moved_encoder: bool = False
    results: list[EpochResult] = field(default_factory=list)

    @classmethod
    def start(cls, member: Member, mode: str, groups: int, rows: int) -> TrialState:
        """A trial before its first step.

        Args:
            groups: how many layer groups the model has.
            rows: how many rows the training split has.
        """
        setting = member.setting
        restart = bool(setting.get("stack_and_finetune.restart_schedule", True))
        per_epoch = steps_per_epoch(rows, int(setting["batch_size"]))
        plan = Plan(groups, per_epoch, modes.get(mode).phases(setting), restart)
        active = tuple(trick for trick in tricks.every() if trick.is_on(setting))
        return cls(member, MultiplierTable(plan, active, setting))

    def end_first_phase(self, epochs: int) -> None:
        """Shorten the first phase to so many epochs."""
        self.table = replace(self.table, plan=self.table.plan.with_first_phase(epochs))

    def follow_dev(self, metric: str) -> None:
        """Let the plan follow the dev scores so far: end where `patience` is over, note plateaus where asked for."""
        setting, plan = self.member.setting, self.table.plan
        if reduce_on_plateau.TRICK.is_on(setting):
            wait = int(setting[reduce_on_plateau.WAIT.name])
            plan = replace(plan, plateaus=patience.plateaus(self.results, plan, wait, metric))
        if patience.is_over(self.results, plan, int(setting.get("patience", 0)), metric):
            plan = plan.ended_at(self.results[-1].epoch)
        self.table = replace(self.table, plan=plan)

    def head_rates(self, first_step: int) -> list[float]:
        """The head's learning rate at each step of the epoch that begins at a step."""
        plan = self.table.plan
        return [self.table.learning_rate(plan.groups - 1, first_step + n) for n in range(plan.steps_per_epoch)]

    def is_frozen_epoch(self, first_step: int) -> bool:
        """True where the encoder is frozen at every step of the epoch that begins at a step."""
        steps = range(first_step, first_step + self.table.plan.steps_per_epoch)
        # From the end: an encoder that has thawed stays so, and the last step usually decides.
        return all(self.table.encoder_is_frozen(step) for step in reversed(steps))

    def not_finite(self, epoch: int, step: int) -> NotFiniteError:
        """The error of a trial whose loss or weights were not finite by the end of an epoch, after so many steps."""
        phase, _ = self.table.plan.phase_at(step - 1)
        return NotFiniteError(
            f"the loss or a weight is not finite in epoch {epoch} ({phase.name}), by step {step}; "
            f"a lower learning rate than {phase.learning_rate:g} or a gradient_clip may cure it"
        )
