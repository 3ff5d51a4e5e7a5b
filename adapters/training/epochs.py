"""An epoch's result, a trial's best epoch, and the rule for saving its state. Imports no torch, for readers' sake."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.tasks.core.metrics import gain

Number = Annotated[float, Field(strict=True)]
"""A number, also a whole number, but not a text that could be read as one."""
Seconds = Annotated[Number, Field(ge=-1e11, le=1e11, allow_inf_nan=False)]
"""A duration, or a time since 1970, of at most three thousand years; larger values are damage."""


class OutOfTimeError(TimeoutError):
    """The trainer reached `ends_at` before its last epoch."""


class EpochResult(BaseModel):
    """Losses, metrics and times of one epoch of one trial.

    Attributes:
        epoch: 1 for the first.
        phase: the mode's name for the epoch's phase.
        step: optimiser steps so far.
        train_loss: mean over the epoch's steps.
        dev: metric name → value, the task's own metric among them.
        train: the same on the training examples, in epochs for which a rule needs it; otherwise empty.
        encoder_frozen: True if the encoder was frozen at the end of the epoch; dev was then scored from cached hidden
            states, if there are any.
        frozen_groups: the number of the encoder's layer groups frozen by gradual unfreezing at the end of an epoch in a
            phase that trains the encoder; 0 in older records, which lack it.
        train_seconds, dev_seconds: wall time; a trial's equal share of its bundle's time.
        learning_rate: the head's rate at the epoch's last step.
        finished_at: seconds since 1970, by the worker's clock; 0 until the worker reports it.
    """

    model_config = ConfigDict(frozen=True)

    epoch: int
    phase: str
    step: int
    train_loss: Number
    dev: dict[str, Number]
    train: dict[str, Number] = Field(default_factory=dict)
    encoder_frozen: bool = False
    frozen_groups: int = 0
    train_seconds: Seconds
    dev_seconds: Seconds
    learning_rate: Number
    finished_at: Seconds = 0.0

    def in_words(self) -> str:
        """`epoch 2 (fine_tuning): train loss 0.4031, dev accuracy 0.8610`."""
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self.dev.items())
        return f"epoch {self.epoch} ({self.phase}): train loss {self.train_loss:.4f}, dev {shown}"


def best_epoch(epochs: Iterable[EpochResult], metric: str, phase: str | None = None) -> EpochResult | None:
    """The epoch whose weights are a trial's result: the best dev score, the earliest of equals; None without epochs.

    The best score is the highest, or the lowest for an error. A NaN is worse than every number.

    Args:
        epochs: one trial's epochs, in any order.
        metric: the task's own metric, a key of each epoch's `dev`.
        phase: the only phase whose epochs count; None counts all. A trial's result comes from the last phase of its
            plan. Stack-and-finetune ends after its second phase (arXiv 1907.05338, Methodology); an epoch of its first
            phase is feature extraction.
    """

    def rank(result: EpochResult) -> tuple[float, int]:
        score = gain(metric, result.dev[metric])
        return (-math.inf if math.isnan(score) else score, -result.epoch)

    return max((one for one in epochs if phase in (None, one.phase)), key=rank, default=None)


# The rule for saving a trial's state after an epoch.

FIRST_SECONDS, FIRST_BYTES_PER_SECOND = 0.05, 100e6
"""The assumed cost of a trial's first save, on a slow network file system; a later save costs as much as the last."""


class SavingRule:
    """The measured times of one trial's epochs and saves.

    A long epoch is saved at once; several short epochs share one save, or get none.

    Args:
        share: the largest share of the training time since the last save that a save may take.

    Attributes:
        cost: seconds that the last save took; None before the first.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock, self._since = share, clock, clock()
        self.cost: float | None = None

    def is_due(self, state_bytes: Callable[[], int]) -> bool:
        """True if the state should be saved after the epoch that just ended.

        Args:
            state_bytes: computes its size; called only if the size decides.
        """
        allowed = self.share * (self.clock() - self._since)
        if self.cost is not None:
            return self.cost <= allowed
        return allowed >= FIRST_SECONDS and FIRST_SECONDS + state_bytes() / FIRST_BYTES_PER_SECOND <= allowed

    def note_save(self, seconds: float) -> None:
        """Note the duration of a save, successful or not; the next save covers the time from now."""
        self.cost, self._since = seconds, self.clock()
