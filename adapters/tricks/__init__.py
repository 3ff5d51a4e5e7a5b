"""The registry of tricks: one file per trick, each exporting `TRICK`."""

import sys

from meltpoint.adapters.multiplier_table import Trick
from meltpoint.tasks.core import registry


def names() -> list[str]:
    """The names of all tricks."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Trick:
    """The trick with this name.

    Raises:
        ValueError: no trick has this name; the message suggests similar names.
    """
    trick: Trick = registry.load(sys.modules[__name__], word, "trick").TRICK
    return trick


def every() -> tuple[Trick, ...]:
    """All tricks, in the order of their names."""
    return tuple(get(name) for name in names())
