"""One trial in the training loop, and the rules that watch its scores: patience, plateaus and the gap rule.

Patience follows Prechelt 1998, "Early Stopping - But When?", section 2.1 (UP_s, here on the best score), and AllenNLP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from meltpoint.adapters import modes, tricks
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import steps_per_epoch
from meltpoint.adapters.hyperparameters import Setting, common_value
from meltpoint.adapters.model import AdaptedModel, Member
from meltpoint.adapters.multiplier_table import MultiplierTable, Plan
from meltpoint.adapters.training.epochs import EpochResult, best_epoch
from meltpoint.adapters.training.optimisers import StackedAdamW
from meltpoint.adapters.tricks import reduce_on_plateau
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.task import Example, Task

PLATEAU = 1e-4
"""The share of the best score by which a better score must exceed it: the default of torch's ReduceLROnPlateau."""


def is_over(results: Sequence[EpochResult], plan: Plan, patience: int, metric: str) -> bool:
    """True if a trial has waited `patience` epochs for a better dev score.

    Only epochs of the plan's last phase count.

    Args:
        results: the trial's epochs so far, at least one.
        patience: 0 never ends a trial.
        metric: the task's own.
    """
    best = best_epoch(results, metric, plan.phases[-1].name)
    return best is not None and 0 < patience <= results[-1].epoch - best.epoch


def plateaus(results: Sequence[EpochResult], plan: Plan, patience: int, metric: str) -> tuple[int, ...]:
    """The epochs after which `reduce_on_plateau` lowers the rate: more than `patience` in a row were not better.

    Counted as in torch's ReduceLROnPlateau, which AllenNLP's `reduce_on_plateau` uses, from 0 in each span of the
    schedule. If the best score so far is a negative correlation, torch treats a lower score as better; this does not.

    Args:
        results: the trial's epochs so far, in order.
        patience: 0 lowers the rate after each epoch that is not better.
        metric: the task's own.
    """
    found: list[int] = []
    best, waited, phase = -math.inf, 0, ""
    for result in results:
        if plan.restart_schedule and result.phase != phase:
            best, waited, phase = -math.inf, 0, result.phase
        score = gain(metric, result.dev[metric])
        if score > best * (1 + math.copysign(PLATEAU, best)):
            best, waited = score, 0
        else:
            waited += 1
        if waited > patience:
            found.append(result.epoch)
            waited = 0
    return tuple(found)


@dataclass(frozen=True)
class EncodedData:
    """A task's train and dev split, tokenised for one encoder.

    Attributes:
        train, dev: the rows.
        dev_examples, train_examples: the examples with the gold labels; only the gap rule reads train's.
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
    """The changing state of one trial of a bundle.

    Attributes:
        table: its multiplier table.
        best: (dev score, epoch) of the best epoch of its last phase so far (`epochs.best_epoch`); epoch 0 before.
        best_state: the trained weights at that epoch.
        best_moved_encoder: whether training had changed the encoder by then; if not, its weights are the pretrained
            ones.
        results: one per epoch so far.
    """

    member: Member
    table: MultiplierTable
    best: tuple[float, int] = (-math.inf, 0)
    best_state: dict[str, Tensor] = field(default_factory=dict)
    best_moved_encoder: bool = False
    results: list[EpochResult] = field(default_factory=list)

    @classmethod
    def start(cls, member: Member, mode: str, groups: int, rows: int) -> TrialState:
        """A trial before its first step.

        Args:
            groups: the number of the model's layer groups.
            rows: the number of the training split's rows.
        """
        setting = member.setting
        restart = bool(setting.get("stack_and_finetune.restart_schedule", True))
        per_epoch = steps_per_epoch(rows, int(common_value(setting, "batch_size")))
        plan = Plan(groups, per_epoch, modes.get(mode).phases(setting), restart)
        active = tuple(trick for trick in tricks.every() if trick.is_on(setting))
        return cls(member, MultiplierTable(plan, active, setting))

    def end_first_phase(self, epochs: int) -> None:
        """Shorten the first phase to this number of epochs."""
        self.table = replace(self.table, plan=self.table.plan.with_first_phase(epochs))

    def follow_dev(self, metric: str) -> None:
        """Update the plan from the dev scores: its end by `patience`, and its plateaus for `reduce_on_plateau`."""
        setting, plan = self.member.setting, self.table.plan
        if reduce_on_plateau.TRICK.is_on(setting):
            wait = int(setting[reduce_on_plateau.WAIT.name])
            plan = replace(plan, plateaus=plateaus(self.results, plan, wait, metric))
        if is_over(self.results, plan, int(setting.get("patience", 0)), metric):
            plan = plan.ended_at(self.results[-1].epoch)
        self.table = replace(self.table, plan=plan)

    def head_rates(self, first_step: int) -> list[float]:
        """The head's learning rate at each step of the epoch that begins at a step."""
        plan = self.table.plan
        return [self.table.learning_rate(plan.groups - 1, first_step + n) for n in range(plan.steps_per_epoch)]

    def is_frozen_epoch(self, first_step: int) -> bool:
        """True if the encoder is frozen at every step of the epoch that begins at a step."""
        steps = range(first_step, first_step + self.table.plan.steps_per_epoch)
        # From the end: an unfrozen encoder stays unfrozen, so the last step usually decides.
        return all(self.table.encoder_is_frozen(step) for step in reversed(steps))

    def not_finite(self, epoch: int, step: int) -> NotFiniteError:
        """The error of a trial whose loss or weights were not finite at the end of an epoch, after `step` steps."""
        phase, _ = self.table.plan.phase_at(step - 1)
        return NotFiniteError(
            f"the loss or a weight is not finite in epoch {epoch} ({phase.name}), by step {step}; "
            f"a lower learning rate than {phase.learning_rate:g} or a gradient_clip may help"
        )


class GapRule:
    """The gap rule of stack-and-finetune, which ends the first phase before train exceeds dev by too much.

    arXiv 1907.05338 trains the head not "until it reaches the highest accuracy on the training or validation data sets,
    but rather only up to a point where the prediction accuracy of the training and validation data sets do not differ
    much" (Methodology), "only for a few epochs, until it reaches a reasonable accuracy, while closely monitoring the
    discrepancy" (Discussions and Conclusions). The epoch beyond the limit is undone. The first epoch is kept, because a
    head that never trained has no reasonable accuracy; if that epoch is beyond the limit, the second phase begins.

    It watches a single trial, which trains alone.

    Attributes:
        largest_gap: the largest allowed difference between the metric on train and on dev; 0 turns the rule off.
        within: the head's weights and its optimiser's state after the first phase's last epoch within the limit; None
            before any such epoch.
    """

    def __init__(self, setting: Setting) -> None:
        self.largest_gap = float(setting.get("stack_and_finetune.largest_gap", 0.0))
        self.within: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None

    def watches(self, plan: Plan, step: int) -> bool:
        """True if the epoch that ended at `step` needs the metrics on train."""
        return self.largest_gap > 0.0 and step <= plan.phases[0].epochs * plan.steps_per_epoch

    def apply(self, trial: TrialState, model: AdaptedModel, optimiser: StackedAdamW, metric: str) -> None:
        """Check the last epoch; beyond the limit, end the first phase and restore the last state within it."""
        result = trial.results[-1]
        if gain(metric, result.train[metric] - result.dev[metric]) <= self.largest_gap:
            state = {name: tensor.clone() for name, tensor in optimiser.state().items()}
            self.within = model.own_weights(0), state
            return
        trial.end_first_phase(result.epoch)
        if self.within is not None:
            weights, state = self.within
            model.load_trained([weights])
            optimiser.load(state)
