"""What a model is adapted to: one file a task; `core` holds what the tasks share."""

from __future__ import annotations

import sys

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.task import Task

__all__ = ["get", "names"]


def names() -> list[str]:
    """The tasks that ship with Meltpoint, by the word they have on the command line."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Task:
    """The task that a word names.

    Args:
        word: a name from `names()`; a variant of one, `NAME:WORD+WORD`, where the task's file exports
            `variant(words) -> Task`; or the path of a user's own task file (`*.yaml`, `*.yml`; docs/tasks.md).

    Raises:
        ValueError: nobody knows the word (near misses are named), or the task file is missing or wrong.
    """
    if registry.is_task_file(word):
        from meltpoint.tasks.core.user_task import read_task_file  # pydantic and NumPy, which a name does not need

        return read_task_file(word, taken=names())
    name, colon, chosen = word.partition(":")
    module = registry.load(sys.modules[__name__], name, "task")
    if colon and not hasattr(module, "variant"):
        raise ValueError(f"Task '{name}' takes no words behind a colon; write --task {name}.")
    task = module.variant(chosen.split("+")) if colon else module.TASK
    assert isinstance(task, Task)
    assert task.name.partition(":")[0] == name, f"tasks/{name}.py calls its task {task.name}"
    return task
