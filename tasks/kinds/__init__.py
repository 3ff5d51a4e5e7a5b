"""Kinds of task, one file each, which exports `KIND`; the file's name is `kind:` in a task file."""

from __future__ import annotations

import sys
from functools import cache
from typing import cast

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.kind import Input, TaskKind


@cache
def names() -> tuple[str, ...]:
    """The names of the kinds, in alphabetical order."""
    return tuple(registry.names(sys.modules[__name__]))


@cache
def get(name: str) -> TaskKind:
    """The kind with a name.

    Raises:
        ValueError: the name is unknown; close matches are listed.
    """
    return cast(TaskKind, registry.load(sys.modules[__name__], name, "kind").KIND)


def reading(*inputs: Input) -> tuple[str, ...]:
    """The names of the kinds whose examples are of one of these inputs."""
    return tuple(name for name in names() if get(name).input in inputs)
