"""Heads, one file each, which exports `HEAD`. A head's class imports torch; the names of heads do not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.tasks.core import registry
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head


def names() -> list[str]:
    """The heads, as the command line writes them."""
    return registry.names(sys.modules[__name__])


def get(word: str, kind: Kind | None = None) -> type[Head]:
    """The class of a head.

    Args:
        word: its name.
        kind: the kind of task it has to serve, or None to ask for the class only.

    Raises:
        ValueError: an unknown head, or one that cannot serve the kind; the message names those that can.
    """
    head = cast("type[Head]", registry.load(sys.modules[__name__], word, "head").HEAD)
    if kind is not None and kind not in head.kinds:
        able = ", ".join(name for name in names() if kind in get(name).kinds)
        raise ValueError(f"Head '{word}' cannot serve {kind.replace('_', ' ')}; these can: {able}.")
    return head


def parameters() -> tuple[Parameter, ...]:
    """Every head's own hyperparameters, each once.

    They are read from the text of the heads and of their layers, so that torch is not imported. Only where a file
    declares one in another way than by plain values are the heads imported.
    """
    found = declared_in([*__path__, str(Path(__file__).parents[1] / "layers")])
    if found is None:
        return tuple(dict.fromkeys(parameter for name in names() for parameter in get(name).hyperparameters))
    return found


def declared_in(folders: Iterable[str]) -> tuple[Parameter, ...] | None:
    """Every `Parameter(…)` in the text of the folders' files, by name; None where one is not made of plain values."""
    found: dict[str, Parameter] = {}
    for path in sorted(path for folder in folders for path in Path(folder).glob("*.py")):
        declared = () if path.name == "__init__.py" else _declared(path.read_text(encoding="utf-8"))
        if declared is None:
            return None
        found |= {parameter.name: parameter for parameter in declared}
    return tuple(found[name] for name in sorted(found))


@lru_cache(maxsize=256)
def _declared(text: str) -> tuple[Parameter, ...] | None:
    """Every `Parameter(…)` in a file's text; None where one is not made of plain values."""
    found = []
    for node in ast.walk(ast.parse(text)) if " Parameter(" in text else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Parameter.__name__:
            try:
                values = [ast.literal_eval(value) for value in node.args]
                named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
            except ValueError:
                return None
            found.append(Parameter(*values, **named))
    return tuple(found)
