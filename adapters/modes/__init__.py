"""The registry of modes: one file per mode, each exporting `MODE`."""

import sys

from meltpoint.adapters.multiplier_table import Mode
from meltpoint.tasks.core import registry


def names() -> list[str]:
    """The names of all modes."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Mode:
    """The mode with this name.

    Raises:
        ValueError: no mode has this name; the message suggests similar names.
    """
    mode: Mode = registry.load(sys.modules[__name__], word, "mode").MODE
    return mode
