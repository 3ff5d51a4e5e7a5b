"""The epochs of a cell with few training examples: the shipped ones, scaled until its first setting has enough steps.

Three epochs are BERT's recipe for thousands of examples (Devlin et al. 2018, A.3). Small data sets need more steps, not
three epochs: Mosbach et al. 2021 (section 6) train 20; Zhang et al. 2021 (section 6) find that the standard number of
steps is too small for a thousand examples. A frozen encoder's head trains until dev has not improved for some epochs:
of ten steps each, five are over before it has begun to learn.
"""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import COMMON, Value
from meltpoint.search_spaces.ranges import Choice, Fixed
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.wording import some

EPOCHS, PATIENCE, BATCH = "epochs", "patience", "batch_size"
ENOUGH_STEPS = 200
MOST_EPOCHS = 20
"""Of the first setting: those of Mosbach et al. 2021, section 6."""
SOURCE = "few training examples: scaled towards 200 steps, at most 20 epochs (Mosbach et al. 2021; Zhang et al. 2021)"
PATIENCE_SOURCE = "few training examples: scaled until dev may stay for 200 steps (as the epochs of fine-tuning)"


def with_enough_steps(space: Space, mode: str, train_examples: int) -> tuple[Space, str | None]:
    """A cell's space with epochs for its number of examples, and a note for tables; None where none is needed.

    Only those of a shipped space for a mode, or a mode and an encoder, are scaled: what a user, a specification or a
    space of one task names stays as it is. Of a frozen encoder, which trains until dev stops improving, the patience
    is, and its cap of epochs with it.
    """
    steps = -(-train_examples // int(space.first().get(BATCH, 32)))
    if not modes.get(mode).trains_encoder:
        return _with_enough_patience(space, mode, steps)
    range_of = space.parameters.get(EPOCHS)
    if not isinstance(range_of, Choice) or not _is_general(space, mode, EPOCHS):
        return space, None
    first = int(range_of.start)
    wanted = min(MOST_EPOCHS, -(-ENOUGH_STEPS // steps))
    if wanted <= first:
        return space, None
    scaled = _scaled(range_of, wanted / first)
    ranges = {**space.parameters, EPOCHS: scaled}
    note = (
        f"epochs {_listed(scaled.points())} instead of {_listed(range_of.points())}, since an epoch is "
        f"{some(steps, 'step')} (Mosbach et al. 2021)"
    )
    return replace(space, parameters=ranges, sources={**space.sources, EPOCHS: SOURCE}), note


def _with_enough_patience(space: Space, mode: str, steps: int) -> tuple[Space, str | None]:
    """A frozen encoder's space, with a patience of 200 steps at least.

    Args:
        steps: of an epoch.
    """
    patience, most = space.parameters.get(PATIENCE), space.parameters.get(EPOCHS)
    is_ours = _is_general(space, mode, EPOCHS) and _is_general(space, mode, PATIENCE)
    if not isinstance(patience, Fixed) or not isinstance(most, Fixed) or not is_ours or not patience.value:
        return space, None
    shipped, cap = int(patience.value), int(most.value)
    limits = {parameter.name: int(parameter.maximum) for parameter in COMMON if parameter.name in (EPOCHS, PATIENCE)}
    wanted = min(limits[PATIENCE], -(-ENOUGH_STEPS // steps))
    if wanted <= shipped:
        return space, None
    longest = min(limits[EPOCHS], round(cap * wanted / shipped))
    ranges = {**space.parameters, PATIENCE: _fixed(patience, wanted), EPOCHS: _fixed(most, longest)}
    note = (
        f"patience {wanted} and at most {longest} epochs instead of {shipped} and {cap}, since an epoch is "
        f"{some(steps, 'step')}"
    )
    sources = {**space.sources, PATIENCE: PATIENCE_SOURCE, EPOCHS: PATIENCE_SOURCE}
    return replace(space, parameters=ranges, sources=sources), note


def _fixed(before: Fixed, value: int) -> Fixed:
    return replace(before, value=value, source=PATIENCE_SOURCE)


def _is_general(space: Space, mode: str, name: str) -> bool:
    """True if a parameter is of a shipped space that names no task: `MODE.yaml` or `MODE.ENCODER.yaml`."""
    parts = space.sources.get(name, "").removesuffix(".yaml").split(".")
    return parts[0] == mode and len(parts) <= 2 and "demo" not in parts


def _scaled(choice: Choice, factor: float) -> Choice:
    values: tuple[Value, ...] = tuple(round(float(value) * factor) for value in choice.values)
    return Choice(values, round(float(choice.start) * factor), source=SOURCE, when=choice.when)


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, tuple) else str(values)
