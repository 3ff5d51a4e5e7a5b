"""Early stopping, as a space declares it, and why some spaces may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from meltpoint.adapters.parameters import Parameter
from meltpoint.search_spaces.ranges import Range
from meltpoint.tasks.core.words import unknown

FIELDS = ("grace_epochs", "reduction_factor")


@dataclass(frozen=True)
class EarlyStopping:
    """Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

    Attributes:
        grace_epochs: no trial is stopped before it has trained this many.
        reduction_factor: one in so many goes on from each rung.
    """

    grace_epochs: int = 1
    reduction_factor: int = 3

    def entry(self) -> dict[str, object]:
        """What YAML says of it."""
        return asdict(self)


def parse(said: object) -> EarlyStopping | None:
    """Early stopping from YAML; null switches it off.

    Raises:
        ValueError: an unknown key, or a number outside its limits; the caller adds the file.
    """
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise ValueError(f"early_stopping is {said!r}; write {{grace_epochs: 1, reduction_factor: 3}}.")
    for key in said:
        if key not in FIELDS:
            raise ValueError(f"early_stopping: {unknown(key, 'key', FIELDS)}")
    limits = {"grace_epochs": Parameter("early_stopping.grace_epochs", 1, "", 1, 1000),
              "reduction_factor": Parameter("early_stopping.reduction_factor", 3, "", 2, 100)}  # fmt: skip
    return EarlyStopping(**{key: int(limits[key].check(value)) for key, value in said.items()})


def hindrance(parameters: Mapping[str, Range], allowed: Mapping[str, Parameter]) -> str | None:
    """Why the trials of a space cannot be compared before they end; None where they can.

    AllenNLP says of its slanted triangular schedule that early stopping "should typically be avoided" with it.

    Args:
        parameters: the space.
        allowed: what the cell's settings may hold, which tells a mode with two phases from the others.
    """

    def may_be(name: str, value: object) -> bool:
        return name in parameters and parameters[name].match(value) is not None

    if any(name.startswith("stack_and_finetune.") for name in allowed):
        return "the first phase of stack_and_finetune keeps the encoder frozen, so its scores foretell little"
    if may_be("schedule", "slanted_triangular"):
        return "schedule may be slanted_triangular, whose scores before the end foretell little; leave that choice out"
    if may_be("gradual_unfreezing", True):
        return "gradual_unfreezing may be on, and it makes early scores low; leave it off"
    if "epochs" in parameters and parameters["epochs"].count != 1:
        return "epochs is searched, and trials of different lengths cannot be compared half-way; fix epochs"
    return None
