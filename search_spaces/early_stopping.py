"""Early stopping as declared in a space, and the spaces that do not allow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces.ranges import Range
from meltpoint.tasks.core.registry import unknown

FIELDS = ("grace_epochs", "grace_fraction", "reduction_factor")


@dataclass(frozen=True)
class EarlyStopping:
    """Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

    Attributes:
        grace_epochs: the first rung: the number of epochs before which no trial is stopped.
        reduction_factor: one in `reduction_factor` trials continues after each rung.
        grace_fraction: if not None, the first rung as a fraction of each trial's schedule instead of epochs, so that
            trials of different lengths are compared at the same point of their learning-rate schedules.
    """

    grace_epochs: int = 1
    reduction_factor: int = 3
    grace_fraction: float | None = None

    def entry(self) -> dict[str, object]:
        """Its YAML value."""
        unused = "grace_epochs" if self.grace_fraction is not None else "grace_fraction"
        return {name: value for name, value in asdict(self).items() if name != unused}


def parse(entry: object) -> EarlyStopping | None:
    """Parse early stopping from YAML; null switches it off.

    Raises:
        ValueError: an unknown key, or a number outside its limits; the caller adds the file to the message.
    """
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise ValueError(f"early_stopping is {entry!r}; write {{grace_epochs: 1, reduction_factor: 3}}.")
    for key in entry:
        if key not in FIELDS:
            raise ValueError(f"early_stopping: {unknown(key, 'key', FIELDS)}")
    if {"grace_epochs", "grace_fraction"} <= entry.keys():
        raise ValueError("early_stopping has grace_epochs and grace_fraction; the rungs are one or the other.")
    limits = {"grace_epochs": Parameter("early_stopping.grace_epochs", 1, "", 1, 1000),
              "grace_fraction": Parameter("early_stopping.grace_fraction", 0.25, "", 0.01, 0.99),
              "reduction_factor": Parameter("early_stopping.reduction_factor", 3, "", 2, 100)}  # fmt: skip
    checked: dict[str, Any] = {key: limits[key].check(value) for key, value in entry.items()}
    return EarlyStopping(**checked)


def reason_against(
    rule: EarlyStopping, parameters: Mapping[str, Range], allowed: Mapping[str, Parameter]
) -> str | None:
    """The reason why trials of a space cannot be compared before they end, or None.

    AllenNLP documents that early stopping "should typically be avoided" with its slanted triangular schedule.

    Args:
        rule: the requested rule.
        parameters: the space.
        allowed: the parameters of the cell, by which a mode with two phases is recognised.
    """

    def may_be(name: str, value: object) -> bool:
        return name in parameters and parameters[name].match(value) is not None

    if any(name.startswith("stack_and_finetune.") for name in allowed):
        return "the first phase of stack_and_finetune keeps the encoder frozen, so its scores predict little"
    if may_be("schedule", "slanted_triangular"):
        return "schedule may be slanted_triangular, whose scores before the end predict little; leave that choice out"
    if may_be("gradual_unfreezing", True):
        return "gradual_unfreezing may be on, and it makes early scores low; leave it off"
    if rule.grace_fraction is None and "epochs" in parameters and parameters["epochs"].count != 1:
        return (
            "epochs is searched, and trials of different lengths cannot be compared at the same epoch; fix epochs, or "
            "write grace_fraction for rungs at the same fraction of each trial's schedule"
        )
    return None
