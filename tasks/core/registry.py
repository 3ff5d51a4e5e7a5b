"""Plug-in registry: the modules of a package, which are named on the command line by their module names."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType

LONGEST_NAME = 200
"""The number of characters of a wrong name to compare and show."""
MOST_LISTED = 30
"""The largest number of names in a message: about three lines of a terminal."""


def names(package: ModuleType) -> list[str]:
    """The names of a package's plug-ins: its modules, without sub-packages and modules with a leading underscore."""
    return list(_names(tuple(package.__path__)))


@cache
def _names(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The same for folders, cached: the names are looked up thousands of times per sweep."""
    modules = pkgutil.iter_modules(folders)
    return tuple(sorted(item.name for item in modules if not item.ispkg and not item.name.startswith("_")))


def is_task_file(name: str) -> bool:
    """True if a task is given as the path of a task file."""
    return name.endswith((".yaml", ".yml"))


def unknown(name: str, what: str, known: Iterable[str]) -> ValueError:
    """The error for an unknown name: close matches, and the known names.

    If there are close matches and more than `MOST_LISTED` known names, only the close matches are listed.

    Args:
        name: the name that the user wrote.
        what: the kind of name that was expected ("task", "encoder", "key of a space", …).
        known: every valid name.
    """
    known, name = sorted(known), name[:LONGEST_NAME]  # comparing long names would take minutes
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    listed = "" if near and len(known) > MOST_LISTED else f" Choose from: {', '.join(known)}."
    return ValueError(f"Unknown {what} '{name}'.{hint}{listed}")


def check_parts(task: str, parts: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuse an unknown part of a task's variant, such as `mnli:fiction`, and a part that is named twice.

    Raises:
        ValueError: close matches are listed.
    """
    for name in parts:
        if name not in known:
            raise unknown(name, f"{what} of {task}", known)
    if len(set(parts)) < len(parts):
        raise ValueError(f"{task}:{'+'.join(parts)} names a {what} twice; name each once.")


def load(package: ModuleType, name: str, what: str) -> ModuleType:
    """Import a plug-in of a package by its name.

    Raises:
        ValueError: the name is unknown; close matches are listed.
    """
    if name not in names(package):
        raise unknown(name, what, names(package))
    return importlib.import_module(f"{package.__name__}.{name}")
