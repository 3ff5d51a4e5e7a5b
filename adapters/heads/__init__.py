"""The heads: one file a head, each exporting `HEAD`."""

from __future__ import annotations

import sys
from typing import cast

from meltpoint.adapters.head import Head
from meltpoint.adapters.parameters import Parameter
from meltpoint.tasks.core import words
from meltpoint.tasks.core.task import Kind


def names() -> list[str]:
    """The heads, as the command line writes them."""
    return words.names(sys.modules[__name__])


def get(word: str, kind: Kind | None = None) -> type[Head]:
    """The class of a head.

    Args:
        word: its name.
        kind: the kind of task it has to serve, or None to ask for the class only.

    Raises:
        ValueError: an unknown head, or one that cannot serve the kind; the message names those that can.
    """
    head = cast(type[Head], words.load(sys.modules[__name__], word, "head").HEAD)
    if kind is not None and kind not in head.kinds:
        able = ", ".join(name for name in names() if kind in get(name).kinds)
        raise ValueError(f"Head '{word}' cannot serve {kind.replace('_', ' ')}; these can: {able}.")
    return head


def parameters() -> tuple[Parameter, ...]:
    """Every head's own hyperparameters, each once."""
    return tuple(dict.fromkeys(parameter for name in names() for parameter in get(name).hyperparameters))
