"""The tasks that models are adapted to, one module per task; `core` holds the shared code."""

from __future__ import annotations

import sys

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.task import Task

__all__ = ["get", "names"]


def names() -> list[str]:
    """The names of the built-in tasks, as written on the command line."""
    return registry.names(sys.modules[__name__])


def get(name: str) -> Task:
    """The task with a name.

    Args:
        name: a name from `names()`; a variant of one, `NAME:PART+PART`, if the task's module exports
            `variant(parts) -> Task`; or the path of a user's own task file (`*.yaml`, `*.yml`; docs/tasks.md).

    Raises:
        ValueError: the name is unknown (close matches are listed), or the task file is missing or invalid.
    """
    if registry.is_task_file(name):
        # It imports pydantic and NumPy, which a built-in task does not need.
        from meltpoint.tasks.core.user_task import read_task_file

        return read_task_file(name, taken=names())
    module_name, colon, parts = name.partition(":")
    module = registry.load(sys.modules[__name__], module_name, "task")
    if colon and not hasattr(module, "variant"):
        raise ValueError(f"Task '{module_name}' has no variants; write --task {module_name}.")
    task = module.variant(parts.split("+")) if colon else module.TASK
    assert isinstance(task, Task)
    assert task.name.partition(":")[0] == module_name, f"tasks/{module_name}.py calls its task {task.name}"
    return task
