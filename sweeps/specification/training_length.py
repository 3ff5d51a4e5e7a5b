"""The epochs of a cell with few training examples: the shipped range, scaled until its first setting has enough steps.

Three epochs are BERT's recipe for thousands of examples (Devlin et al. 2018, A.3). Small data sets need more steps, not
three epochs: Mosbach et al. 2021 (section 6) train 20; Zhang et al. 2021 (section 6) find that the standard number of
steps is too small for a thousand examples.
"""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces.ranges import Choice
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.counts import some

EPOCHS, BATCH = "epochs", "batch_size"
ENOUGH_STEPS = 200
MOST_EPOCHS = 20
"""Of the first setting: those of Mosbach et al. 2021, section 6."""
SOURCE = "few training examples: scaled towards 200 steps, at most 20 epochs (Mosbach et al. 2021; Zhang et al. 2021)"


def with_enough_steps(space: Space, mode: str, train_examples: int) -> tuple[Space, str | None]:
    """A cell's space with epochs for its number of examples, and a note for tables; None where none is needed.

    Only the range of a shipped space for a mode, or a mode and an encoder, is scaled: what a user, a specification or a
    space of one task names stays as it is, and so does a frozen encoder's, which trains until dev stops improving.
    """
    range_of = space.parameters.get(EPOCHS)
    if not isinstance(range_of, Choice) or not modes.get(mode).trains_encoder or not _is_general(space, mode):
        return space, None
    first = int(range_of.start)
    steps = -(-train_examples // int(space.first().get(BATCH, 32)))
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


def _is_general(space: Space, mode: str) -> bool:
    """True if the range of epochs is a shipped space's that names no task: `MODE.yaml` or `MODE.ENCODER.yaml`."""
    parts = space.sources.get(EPOCHS, "").removesuffix(".yaml").split(".")
    return parts[0] == mode and len(parts) <= 2 and "demo" not in parts


def _scaled(choice: Choice, factor: float) -> Choice:
    values: tuple[Value, ...] = tuple(round(float(value) * factor) for value in choice.values)
    return Choice(values, round(float(choice.start) * factor), source=SOURCE, when=choice.when)


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, tuple) else str(values)
