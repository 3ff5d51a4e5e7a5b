"""The registry that every room uses: a plug-in's file name is its word on the command line."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from types import ModuleType

MOST_LISTED = 30
"""Words in one message: three lines of a terminal."""


def names(package: ModuleType) -> list[str]:
    """The plug-ins of a package: its modules, by file name; packages and `_private` files are not plug-ins."""
    return list(_names(tuple(package.__path__)))


@cache
def _names(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Folders are listed once a process: what a setting may hold is asked thousands of times."""
    found = pkgutil.iter_modules(folders)
    return tuple(sorted(item.name for item in found if not item.ispkg and not item.name.startswith("_")))


def is_task_file(word: str) -> bool:
    """Whether a word on the command line is meant as a task file."""
    return word.endswith((".yaml", ".yml"))


def unknown(word: str, what: str, known: Iterable[str]) -> ValueError:
    """The one message for a word that nobody knows: what it is, its near misses, and all there is.

    Of more than `MOST_LISTED` words it names the near misses alone, where there are any.

    Args:
        word: what the user wrote.
        what: what it should have been ("task", "encoder", "key of a space", …).
        known: every word that would have been right.
    """
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    listed = "" if near and len(known) > MOST_LISTED else f" There is: {', '.join(known)}."
    return ValueError(f"Unknown {what} '{word}'.{hint}{listed}")


def load(package: ModuleType, word: str, what: str) -> ModuleType:
    """Import the plug-in `word` of a package.

    Raises:
        ValueError: nobody knows the word; the message names the near misses.
    """
    if word not in names(package):
        raise unknown(word, what, names(package))
    return importlib.import_module(f"{package.__name__}.{word}")
