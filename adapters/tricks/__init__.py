"""The tricks: one file a trick, each exporting `TRICK`."""

import sys

from meltpoint.adapters.multiplier_table import Trick
from meltpoint.tasks.core import registry


def names() -> list[str]:
    """Every trick there is."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Trick:
    """The trick of that name.

    Raises:
        ValueError: there is none; the message names near misses.
    """
    trick: Trick = registry.load(sys.modules[__name__], word, "trick").TRICK
    return trick


def every() -> tuple[Trick, ...]:
    """Every trick, by name."""
    return tuple(get(name) for name in names())
