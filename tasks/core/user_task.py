"""A user's task: one YAML file (docs/tasks.md), which is validated before any data is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.files import TextLoader, expanded, parse_yaml
from meltpoint.tasks.core.kinds import GROUP
from meltpoint.tasks.core.readers import read_text
from meltpoint.tasks.core.rows import cell_names
from meltpoint.tasks.core.task import SPLITS, HubSource, Split, Task
from meltpoint.tasks.core.user_formats import conll_layout, hub_example, read_user_files
from meltpoint.tasks.core.user_keys import Hub, HubSplits, Splits, UserTask
from meltpoint.tasks.core.user_layout import WANTED, Columns, Layout, UserSplit
from meltpoint.tasks.core.wording import first_mistake


def read_task_file(file: str, taken: Iterable[str] = ()) -> Task:
    """Read the task that a YAML file defines.

    Args:
        file: the file's path.
        taken: names that a user's task must not have: the built-in tasks' names.

    Raises:
        ValueError: the file is missing or not YAML, has an unknown key, or its values are inconsistent.
    """
    path = expanded(file).resolve()
    document = _parse(path)
    try:
        user_task = UserTask.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {_first_line(error, document)} See docs/tasks.md.") from None
    if user_task.name in taken:
        raise ValueError(f"{path}: name: '{user_task.name}' is the name of a built-in task. Choose another name.")
    return _task(user_task, path.parent)


def _parse(path: Path) -> Mapping[str, object]:
    try:
        document = parse_yaml(read_text(path), TextLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not YAML ({reason}). Correct the file; docs/tasks.md has examples.") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a mapping of keys to values. docs/tasks.md has examples.")
    return document


def _first_line(error: ValidationError, document: Mapping[str, object]) -> str:
    errors = error.errors(include_url=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    *outer, key = map(str, first["loc"] or ("",))
    place = ".".join(outer)
    if first["type"] == "extra_forbidden":
        return str(registry.unknown(key, f"key in {place}" if place else "key", PARTS[place].model_fields))
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known = re.findall(r"'(\w+)'", first["ctx"]["expected"])
        return f"{key}: {registry.unknown(first['input'], key, known)}"
    return first_mistake(error, document, WANTED)


PARTS: Mapping[str, type[BaseModel]] = {
    "": UserTask, "files": Splits, "columns": Columns, "splits": Splits, "hub": Hub, "hub.splits": HubSplits,
}  # fmt: skip
"""Key of a task file, dotted if nested → its model; "" for the whole file."""


def _task(user_task: UserTask, folder: Path) -> Task:
    splits = _splits(user_task)
    also = {name: UserSplit(names) for name, names in user_task.also_test.items()}
    scheme, weights = user_task.tag_scheme, user_task.class_weights
    columns = conll_layout(user_task) if user_task.format == "conll" else None
    labels = user_task.label_names()
    return Task(
        name=user_task.name,
        kind=user_task.kind,
        metric=user_task.metric or user_task.of_kind.metrics[0],
        folder="" if user_task.hub else str(folder),
        readers={split: partial(read_user_files, split=files, layout=user_task) for split, files in splits.items()},
        files=_files(splits, also, user_task),
        also_test={name: partial(read_user_files, split=files, layout=user_task) for name, files in also.items()},
        labels=labels,
        label_range=user_task.range,
        hub=_hub_source(user_task.hub, user_task) if user_task.hub else None,
        tokenised=user_task.tokenised,
        description=user_task.description,
        dev_from=user_task.dev_from,
        test_from=user_task.test_from,
        beside=user_task.also,
        class_weights=tuple(weights.get(name, 1.0) for name in labels) if weights else (),
        notes=() if scheme == "iob2" else (f"tags are {scheme} in the files, converted to IOB2",),
        conll_columns=None if columns is None else (columns.word, columns.tag),
        is_grouped=GROUP in user_task.named,
    )


def _splits(user_task: UserTask) -> dict[Split, UserSplit]:
    """The files of each split; empty for a dataset on the hub."""
    named = user_task.splits or user_task.files
    values = {split: names for split in SPLITS if (names := getattr(named, split, None)) is not None}
    if user_task.file is None:
        return {split: UserSplit(names) for split, names in values.items()}
    every = tuple(value for names in values.values() for value in names)
    return {split: UserSplit((user_task.file,), names, every) for split, names in values.items()}


def _files(
    splits: Mapping[Split, UserSplit], also: Mapping[str, UserSplit], layout: Layout
) -> dict[Split, tuple[str, ...]]:  # fmt: skip
    """The names of each split's files; those of further tests are among test's."""
    names = {split: _names(files, layout) for split, files in splits.items()}
    further = tuple(name for files in also.values() for name in _names(files, layout))
    return {**names, "test": (*names.get("test", ()), *further)} if further else names


def _names(split: UserSplit, layout: Layout) -> tuple[str, ...]:
    """The names of a split's files, for the check that they exist: a folder's name ends with `/`."""
    return tuple(f"{name.rstrip('/')}/" if layout.format == "folders" else name for name in split.names)


def _hub_source(hub: Hub, layout: Layout) -> HubSource:
    default = "{config}/{split}/*.parquet" if hub.revision.startswith("refs/") else "{config}/{split}-*.parquet"
    pattern = hub.pattern or (default if hub.config or hub.revision.startswith("refs/") else "data/{split}-*.parquet")
    columns = tuple(dict.fromkeys(column.partition(".")[0] for column in cell_names(layout).values()))
    return HubSource(
        id=hub.id,
        revision=hub.revision,
        config=hub.config,
        splits={split: name for split in SPLITS if (name := getattr(hub.splits, split)) is not None},
        example=partial(hub_example, place=Path(hub.id), layout=layout),
        label_column=layout.named[layout.of_kind.label_column][0],
        pattern=pattern,
        columns=columns,
        counts_left_out=True,
    )
