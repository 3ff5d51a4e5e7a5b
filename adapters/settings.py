"""Which hyperparameters a cell's settings may hold, and how a setting is completed."""

from __future__ import annotations

from collections.abc import Mapping

from meltpoint.adapters import heads, modes, tricks
from meltpoint.adapters.data.pairing import CONTEXT, PAIRING
from meltpoint.adapters.hyperparameters import COMMON, Parameter, Setting, Value
from meltpoint.adapters.multiplier_table import Trick
from meltpoint.tasks.core.task import Kind

ENCODER_DROPOUT = "encoder_dropout"
SCHEDULE, CONSTANT = "schedule", "constant"


def schedule_parameter() -> Parameter:
    """The key that picks one of the schedules among the tricks."""
    choices = (CONSTANT, *(trick.name for trick in tricks.every() if trick.is_schedule))
    return Parameter(SCHEDULE, CONSTANT, "how the learning rate moves over the steps", choices=choices)


def switch(trick: Trick) -> Parameter:
    """The key that switches a trick on."""
    return Parameter(trick.name, False, trick.summary)


def encoder_tricks() -> tuple[Trick, ...]:
    """The tricks that treat layer groups differently, hence need an encoder that trains."""
    return tuple(trick for trick in tricks.every() if not trick.is_schedule)


def parameters(mode: str, head: str, kind: Kind | None = None) -> tuple[Parameter, ...]:
    """Every hyperparameter that a setting of this mode and head may hold.

    Args:
        mode: its word.
        head: its word.
        kind: the task's kind, or None for every kind that the head serves.

    Raises:
        ValueError: an unknown mode or head.
    """
    found = [*COMMON, *reading_parameters(head, kind), schedule_parameter()]
    found += [own for trick in tricks.every() if trick.is_schedule for own in trick.hyperparameters]
    if modes.get(mode).trains_encoder:
        for trick in encoder_tricks():
            found += [switch(trick), *trick.hyperparameters]
    else:
        found = [parameter for parameter in found if parameter.name != ENCODER_DROPOUT]
    return (*found, *modes.get(mode).hyperparameters, *heads.get(head).hyperparameters)


def reading_parameters(head: str, kind: Kind | None = None) -> tuple[Parameter, ...]:
    """How the encoder may be given a task's examples, as far as a head can serve it.

    Args:
        head: its word.
        kind: the task's kind, or None for every kind that the head serves.
    """
    serves = heads.get(head)
    kinds = serves.kinds if kind is None else (kind,)
    either = serves.separate_pairs and serves.joint_pairs
    pairs = either and any(own.startswith("pair") for own in kinds)
    return (*((PAIRING,) if pairs else ()), *((CONTEXT,) if "sequence_labelling" in kinds else ()))


def first_phase_parameters(mode: str, head: str) -> tuple[Parameter, ...]:
    """What a phase with a frozen encoder depends on, beside its rates: whatever is not a matter of rates or lengths."""
    elsewhere = {"learning_rate", "epochs", ENCODER_DROPOUT}
    common = [own for own in COMMON if own.name not in elsewhere]
    own = modes.get(mode).first_phase_parameters
    return (*common, *reading_parameters(head), *own, *heads.get(head).hyperparameters)


def all_parameters() -> tuple[Parameter, ...]:
    """Every hyperparameter of every mode and head, each once; imports no torch (`heads.parameters`)."""
    found = [*COMMON, PAIRING, CONTEXT, schedule_parameter(), *(switch(trick) for trick in encoder_tricks())]
    found += [own for trick in tricks.every() for own in trick.hyperparameters]
    found += [own for mode in modes.names() for own in modes.get(mode).hyperparameters]
    return tuple({own.name: own for own in (*found, *heads.parameters())}.values())


def complete(setting: Setting, mode: str, head: str) -> dict[str, Value]:
    """A setting with every default filled in, and without the parameters that change nothing in it.

    Two settings that train the same way complete to the same mapping, so that one identity stands for both. How the
    encoder is given the examples is named only where it is not the default: most tasks have no use for it.

    Raises:
        ValueError: a key that this mode and head do not have, or a value outside its limits.
    """
    allowed: Mapping[str, Parameter] = {own.name: own for own in parameters(mode, head)}
    for name in setting:
        if name not in allowed:
            raise ValueError(f"{name} has no place in a setting of {mode} with head {head}.")
    full = {name: own.check(setting.get(name, own.default)) for name, own in allowed.items()}
    idle = {own.name for trick in tricks.every() if not trick.is_on(full) for own in trick.hyperparameters}
    if full[SCHEDULE] == CONSTANT:
        idle |= {own.name for own in modes.get(mode).idle_when_constant}
    idle |= {own.name for own in reading_parameters(head) if full[own.name] == own.default}
    return {name: value for name, value in sorted(full.items()) if name not in idle}


def bundle_key(setting: Setting, mode: str, head: str) -> tuple[Value, ...]:
    """What trials of a cell must agree on to train as one bundle: the values that shape the computation.

    Args:
        setting: a complete setting, or one whose missing values are the defaults.
    """
    return tuple(own.check(setting.get(own.name, own.default)) for own in parameters(mode, head) if own.shapes)
