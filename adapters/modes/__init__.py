"""The modes: one file a mode, each exporting `MODE`."""

import sys

from meltpoint.adapters.multiplier_table import Mode
from meltpoint.tasks.core import registry


def names() -> list[str]:
    """Every mode there is."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Mode:
    """The mode of that name.

    Raises:
        ValueError: there is none; the message names near misses.
    """
    mode: Mode = registry.load(sys.modules[__name__], word, "mode").MODE
    return mode
