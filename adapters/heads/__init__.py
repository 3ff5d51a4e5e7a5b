"""The heads: one file a head, each exporting `HEAD`. A head's class imports torch; the names of heads do not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from meltpoint.adapters.heads import _declared
from meltpoint.adapters.parameters import Parameter
from meltpoint.tasks.core import words
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head


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
    head = cast("type[Head]", words.load(sys.modules[__name__], word, "head").HEAD)
    if kind is not None and kind not in head.kinds:
        able = ", ".join(name for name in names() if kind in get(name).kinds)
        raise ValueError(f"Head '{word}' cannot serve {kind.replace('_', ' ')}; these can: {able}.")
    return head


def parameters() -> tuple[Parameter, ...]:
    """Every head's own hyperparameters, each once; read from the files' text, so that torch is not imported.

    Only where a file declares one in another way than by plain values are the heads imported.
    """
    found = _declared.parameters(__path__)
    if found is None:
        return tuple(dict.fromkeys(parameter for name in names() for parameter in get(name).hyperparameters))
    return found
