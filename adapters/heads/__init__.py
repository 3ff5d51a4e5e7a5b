"""Heads, one file each, exporting `HEAD`. A head's class imports torch; listing the names does not."""

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
    """The names of the heads, as written on the command line."""
    return registry.names(sys.modules[__name__])


def get(word: str, kind: Kind | None = None) -> type[Head]:
    """The class of a head.

    Args:
        word: its name.
        kind: the kind of task that it must support; None for any.

    Raises:
        ValueError: an unknown head, or a head that does not support the kind; the message names the heads that do.
    """
    head = cast("type[Head]", registry.load(sys.modules[__name__], word, "head").HEAD)
    if kind is not None and kind not in head.kinds:
        able = ", ".join(name for name in names() if kind in get(name).kinds)
        raise ValueError(f"Head '{word}' cannot serve {kind.replace('_', ' ')}; these can: {able}.")
    return head


def parameters() -> tuple[Parameter, ...]:
    """Every head's own hyperparameters, each once."""
    return declared_in([*__path__, str(Path(__file__).parents[1] / "layers")])


def declared_in(folders: Iterable[str]) -> tuple[Parameter, ...]:
    """Every `Parameter(…)` in the text of the folders' files, by name, without importing torch.

    Raises:
        ValueError: a `Parameter` does not consist of literals; one line with the file and the line.
    """
    found: dict[str, Parameter] = {}
    for path in sorted(path for folder in folders for path in Path(folder).glob("[!_]*.py")):
        try:
            found |= {own.name: own for own in _declared(path.read_text(encoding="utf-8"))}
        except ValueError as error:
            raise ValueError(f"{path}: write a Parameter's values as literals ({error}).") from None
    return tuple(found[name] for name in sorted(found))


@lru_cache(maxsize=256)
def _declared(text: str) -> tuple[Parameter, ...]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)] if " Parameter(" in text else []
    return tuple(
        Parameter(*map(ast.literal_eval, call.args), **{str(w.arg): ast.literal_eval(w.value) for w in call.keywords})
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == Parameter.__name__
    )


def check(word: str) -> None:
    """Check a head's name against the file names of the heads, because importing its class imports torch.

    Raises:
        ValueError: the message suggests similar names.
    """
    if word not in names():
        raise registry.unknown(word, "head", names())
