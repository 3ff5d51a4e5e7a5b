"""A user's task: one YAML file (docs/tasks.md), which is validated before any data is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import get_args

import yaml
from pydantic import ValidationError

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.files import MOST_YAML_BYTES, TextLoader, expanded, parse_yaml
from meltpoint.tasks.core.kinds import GROUP, LABEL
from meltpoint.tasks.core.readers import read_text
from meltpoint.tasks.core.rows import cell_names
from meltpoint.tasks.core.scoring import default
from meltpoint.tasks.core.task import SPLITS, HubSource, Split, Task
from meltpoint.tasks.core.user_formats import conll_layout, hub_example, read_user_files
from meltpoint.tasks.core.user_keys import Columns, Files, Hub, LabelFiles, SplitNames, UserTask
from meltpoint.tasks.core.user_layout import WANTED, EmptyTexts, Format, UserFileLayout, UserSplit
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
    _refuse_unknown(path, document)
    try:
        user_task = UserTask.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {_first_line(error, document)} See docs/tasks.md.") from None
    if user_task.name in taken:
        raise ValueError(f"{path}: name: '{user_task.name}' is the name of a built-in task. Choose another name.")
    return _task(user_task, path.parent)


def _parse(path: Path) -> Mapping[str, object]:
    try:
        document = parse_yaml(read_text(path, most_bytes=MOST_YAML_BYTES), TextLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not YAML ({reason}). Correct the file; docs/tasks.md has examples.") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a mapping of keys to values. docs/tasks.md has examples.")
    return document


def _refuse_unknown(path: Path, document: Mapping[str, object]) -> None:
    places = (
        ("", UserTask), ("files", Files), ("columns", Columns), ("label_files", LabelFiles), ("splits", SplitNames),
        ("hub", Hub),
    )  # fmt: skip
    for place, model in places:
        part = document.get(place) if place else document
        for key in part if isinstance(part, dict) else ():
            if key not in model.model_fields:
                what = f"key in {place}" if place else "key"
                raise ValueError(f"{path}: {registry.unknown(str(key), what, model.model_fields)}")


def _first_line(error: ValidationError, document: Mapping[str, object]) -> str:
    first = error.errors(include_url=False, include_context=True)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known = get_args(CHOICES[key])
        return f"{key}: {registry.unknown(first['input'], key, known)}"
    return first_mistake(error, document, WANTED)


CHOICES = {"format": Format, "empty": EmptyTexts, "tag_scheme": TagScheme}
"""Key → the type that lists its choices."""


def _task(user_task: UserTask, folder: Path) -> Task:
    layout = _layout(user_task)
    splits = _splits(user_task)
    hub = _hub_source(user_task.hub, layout) if user_task.hub else None
    scheme = user_task.tag_scheme
    columns = conll_layout(layout) if user_task.format == "conll" else None
    return Task(
        name=user_task.name,
        kind=user_task.kind,
        metric=user_task.metric or default(user_task.kind),
        folder="" if hub else str(folder),
        readers={split: partial(read_user_files, split=files, layout=layout) for split, files in splits.items()},
        files={split: _names(files, layout) for split, files in splits.items()},
        labels=user_task.label_names(),
        label_range=user_task.range,
        hub=hub,
        tokenised=user_task.tokenised,
        description=user_task.description,
        dev_from=user_task.dev_from,
        test_from=user_task.test_from,
        beside=user_task.also,
        class_weights=_weights(user_task),
        notes=() if scheme == "iob2" else (f"tags are {scheme} in the files, converted to IOB2",),
        conll_columns=None if columns is None else (columns.word, columns.tag),
        is_grouped=GROUP in layout.columns,
    )


def _weights(user_task: UserTask) -> tuple[float, ...]:
    """A weight per label, if the task file has weights."""
    given = user_task.class_weights
    return tuple(given.get(name, 1.0) for name in user_task.label_names()) if given else ()


def _layout(user_task: UserTask) -> UserFileLayout:
    quoting = user_task.format == "csv" if user_task.quoting is None else user_task.quoting
    columns = user_task.columns.given()
    if user_task.format in {"lines", "folders"}:
        columns = {name: (name,) for name in _needed(user_task)} | columns
    return UserFileLayout(
        kind=user_task.kind,
        format=user_task.format or "parquet",
        columns=columns,
        labels=user_task.label_ids(),
        label_range=user_task.range,
        header=user_task.header,
        quoting=quoting,
        quotechar=user_task.quotechar,
        delimiter=user_task.delimiter or ("," if user_task.format == "csv" else "\t"),
        widths=user_task.widths,
        encoding=user_task.encoding,
        pattern=user_task.pattern or "",
        joiner=user_task.joiner,
        empty=user_task.empty,
        label_separator=user_task.label_separator,
        skip_labels=frozenset(user_task.skip_labels),
        split_column=user_task.split_column or "",
        tag_scheme=user_task.tag_scheme,
    )


def _needed(user_task: UserTask) -> tuple[str, ...]:
    return tuple(name for name in user_task.of_kind.columns if name != LABEL or user_task.label_files is None)


def _splits(user_task: UserTask) -> dict[Split, UserSplit]:
    """The files of each split; empty for a dataset on the hub."""
    found: dict[Split, UserSplit] = {}
    labels = user_task.label_files
    if user_task.files is not None:
        for split in SPLITS:
            names = getattr(user_task.files, split)
            if names is not None:
                found[split] = UserSplit(names, getattr(labels, split) if labels else None)
    elif user_task.file is not None and user_task.splits is not None:
        values = {split: names for split in SPLITS if (names := getattr(user_task.splits, split)) is not None}
        every = tuple(value for names in values.values() for value in names)
        label_file = labels.train if labels else None
        for split, names in values.items():
            found[split] = UserSplit((user_task.file,), label_file, names, every)
    return found


def _names(split: UserSplit, layout: UserFileLayout) -> tuple[str, ...]:
    """The names of a split's files, for the check that they exist: a folder's name ends with `/`."""
    is_folder = layout.format in {"folders", "datasets"}
    names = tuple(f"{name.rstrip('/')}/" if is_folder else name for name in split.names)
    return names if split.label_file is None else (*names, split.label_file)


def _hub_source(hub: Hub, layout: UserFileLayout) -> HubSource:
    default = "{config}/{split}/*.parquet" if hub.revision.startswith("refs/") else "{config}/{split}-*.parquet"
    pattern = hub.pattern or (default if hub.config or hub.revision.startswith("refs/") else "data/{split}-*.parquet")
    columns = tuple(dict.fromkeys(column.partition(".")[0] for column in cell_names(layout).values()))
    return HubSource(
        id=hub.id,
        revision=hub.revision,
        config=hub.config,
        splits={split: name for split in SPLITS if (name := getattr(hub.splits, split)) is not None},
        example=partial(hub_example, place=Path(hub.id), layout=layout),
        label_column=layout.columns[layout.of_kind.label_column][0],
        pattern=pattern,
        columns=columns,
        counts_left_out=True,
    )
