"""Names and colours of MLflow's runs: `🔥 sst2`, `🔥 sst2 · trial 7`, `❄ mrpc · final, seed 2`; a hue a mode."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Iterable

from meltpoint.adapters import modes
from meltpoint.search_spaces.ranges import Fixed, Range, Real
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.cells import OpenCell

HUES = {"feature_extraction": 0.58, "fine_tuning": 0.05, "stack_and_finetune": 0.78}
"""Mode → hue: blue, orange, violet."""
OTHER_HUE = 0.36
GOLDEN = 0.618034
"""Steps of the golden ratio spread any number of trials evenly over the range of lightness."""
LOG = "log10 "
"""Before the name of a parameter whose range is logarithmic: MLflow's charts have linear axes for parameters."""


def mode_symbol(mode: str) -> str:
    """A mode's symbol (❄, 🔥, ❄🔥), or its name where it has none."""
    return modes.get(mode).symbol if mode in modes.names() else mode


def cell_labels(cells: Iterable[OpenCell]) -> dict[str, str]:
    """Cell's name → `🔥 sst2`; with the encoder where the sweep has several, and the variant where there is one."""
    opened = list(cells)
    has_several = len({cell.encoder for cell in opened}) > 1
    return {cell.name: _label(cell, has_several) for cell in opened}


def _label(cell: OpenCell, with_encoder: bool) -> str:
    words = [f"{mode_symbol(cell.mode)} {cell.task_name}", cell.variant]
    words += [short_encoder(cell.encoder)] if with_encoder else []
    return " · ".join(word for word in words if word)


def short_encoder(encoder: str) -> str:
    """An encoder's name without what is before it: `roberta-large` of `hf:FacebookAI/roberta-large`."""
    return re.split(r"[:/\\]", encoder.rstrip("/\\"))[-1] or encoder


def setting_label(label: str, role: str) -> str:
    """The name of the row into which a setting's seeds fold."""
    return f"{label} · {'best' if role == 'final' else 'published'} setting"


def former_label(label: str) -> str:
    """That of the seeds of a setting that was the best one before more trials were run."""
    return f"{label} · former best setting"


def colour(mode: str, number: int | None = None) -> str:
    """A run's colour as `#rrggbb`: the mode's hue, and of a trial a lightness of its own.

    Args:
        number: the trial's; None of a cell's run, which has the middle one.
    """
    lightness = 0.48 if number is None else 0.32 + 0.36 * (number * GOLDEN % 1.0)
    parts = colorsys.hls_to_rgb(HUES.get(mode, OTHER_HUE), lightness, 0.72)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def searched(space: Space) -> dict[str, Range]:
    """The searched parameters of a space, in its order."""
    return {name: range_ for name, range_ in space.parameters.items() if not _is_one_value(range_)}


def _is_one_value(range_: Range) -> bool:
    return isinstance(range_, Fixed) or range_.count == 1


def axis(name: str, range_: Range) -> str:
    """The parameter of a run that a chart shows of a searched one: its logarithm, where the range is logarithmic."""
    return f"{LOG}{name}" if is_logarithmic(range_) else name


def is_logarithmic(range_: Range) -> bool:
    """True if the range is searched in the logarithm, and has one at each value."""
    return isinstance(range_, Real) and range_.log
