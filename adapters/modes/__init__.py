"""The registry of modes: one file per mode, each exporting `MODE`."""

import sys
from collections.abc import Iterable

from meltpoint.adapters.multiplier_table import Mode
from meltpoint.tasks.core import registry


def names() -> list[str]:
    """The names of all modes."""
    return registry.names(sys.modules[__name__])


LADDER = "ladder"
"""The word for all modes."""


def expanded(words: Iterable[str]) -> tuple[str, ...]:
    """Names of modes, in which `ladder` is replaced by all modes, the cheapest first."""
    found: list[str] = []
    for word in words:
        found += sorted(names(), key=lambda name: get(name).rung) if word == LADDER else [word]
    return tuple(found)


def get(word: str) -> Mode:
    """The mode with this name.

    Raises:
        ValueError: no mode has this name; the message suggests similar names.
    """
    mode: Mode = registry.load(sys.modules[__name__], word, "mode").MODE
    return mode
