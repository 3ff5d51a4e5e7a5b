"""A user's task: one YAML file (docs/tasks.md), which is validated before any data is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.files import TextLoader, expanded, parse_yaml
from meltpoint.tasks.core.kinds import DOCUMENT, GROUP, TAGS
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.readers import read_text
from meltpoint.tasks.core.rows import cell_names
from meltpoint.tasks.core.task import SPLITS, HubSource, Split, Task
from meltpoint.tasks.core.user_formats import conll_layout, hub_example, read_user_files
from meltpoint.tasks.core.user_layout import (
    TABLES,
    TEXTUAL,
    TYPED,
    WANTED,
    Columns,
    Layout,
    Names,
    Strict,
    UserSplit,
    cut_of,
)
from meltpoint.tasks.core.wording import first_mistake


class Splits(Strict):
    """The files of the splits, relative to the task file, or their names in the data; dev may be carved instead."""

    train: Names
    dev: Names | None = None
    test: Names | None = None


class HubSplits(Strict):
    """The names that the splits have on the hub."""

    train: str
    dev: str | None = None
    test: str | None = None


class Hub(Strict):
    """A dataset on the hub: its parquet files at a pinned revision; see `core.task.HubSource`."""

    id: str = Field(pattern=r"^([\w.-]+/)?[\w.-]+$")
    revision: str
    splits: HubSplits = HubSplits(train="train", dev="validation", test="test")
    config: str | None = None
    pattern: str | None = None


class UserTask(Layout):
    """The contents of a task file.

    Attributes:
        name: lower-case letters, digits and `_`; used in tables and file names.
        kind: one of the kinds.
        metric: the metric that settings are selected by; the kind's default if omitted.
        also: further metrics, which tables show in their own columns; nothing is selected by them.
        files: the files of each split, or
        file, split_column, splits: one file, the column with the split of each row, and the splits' names, or
        hub: a dataset on the hub.
        also_test: further test files by name, for example of other domains; each is scored once, as test is.
        dev_from, test_from: the part of train (of train or dev) that is carved off as dev (as test).
        format, columns: the layout of the examples.
        joiner: the text between the columns of one text.
        header: True if the first line of a tsv or csv file names the columns.
        delimiter: the character between two cells; by default a tab (tsv) or a comma (csv).
        quoting: True if cells may be in quotes; by default true for csv, false for tsv.
        encoding: the encoding of the text files.
        pattern: the regular expression of a line, with named groups, for `format: lines`.
        empty: the treatment of rows that have an empty text.
        labels: (spelling in the files, name) in id order; IOB2 names for sequence labelling.
        class_weights: label → its weight in the loss of settings with `class_weights: task`; 1 for the others.
        label_separator: the text between the labels of one example, if one column has several.
        skip_labels: labels whose rows are left out.
        range: lowest and highest score, for regression.
        tag_scheme: the tagging scheme of the files.
        tokenised: True if white space already separates the texts' words, including punctuation.
    """

    name: str
    metric: str | None = None
    also: Names = ()
    files: Splits | None = None
    file: str | None = None
    splits: Splits | None = None
    hub: Hub | None = None
    dev_from: Annotated[str, cut_of("dev_from")] | None = None
    test_from: Annotated[str, cut_of("test_from")] | None = None
    also_test: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Names] = Field(default_factory=dict)
    class_weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=dict)
    tokenised: bool = False
    description: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"name: '{self.name}' must be lower-case letters, digits and _, starting with a letter.")
        self._check_labels()
        self._check_places()
        self._check_parts()
        self._check_format()
        self._check_columns()
        self._check_metrics()
        return self

    def _check_labels(self) -> None:
        names = self.label_names()
        unknown = next((label for label in self.class_weights if label not in names), None)
        if unknown is not None or (self.class_weights and self.of_kind.target != "label"):
            named = f"'{unknown}' is not among labels" if unknown else f"not for {self.kind}"
            raise ValueError(f"class_weights: {named}. Name labels of a classification.")
        if self.of_kind.is_regression:
            if self.labels or self.range is None or not self.range[0] < self.range[1]:
                raise ValueError(f"range: a {self.kind} task takes range: [lowest, highest], and no labels.")
            return
        raw = [spelling for spelling, _ in self.spellings()]
        if self.range is not None or len(names) < 2 or len(set(raw)) < len(raw):
            raise ValueError(f"labels: a {self.kind} task takes a list of two or more different labels, and no range.")
        if self.of_kind.has_spans:
            self._check_tags(names)
        twice = next((label for label in self.skip_labels if label in raw), None)
        if twice is not None:
            raise ValueError(f"skip_labels: '{twice}' is also in labels. Name it in only one of the two.")

    def _check_tags(self, labels: tuple[str, ...]) -> None:
        for label in labels:
            if not re.fullmatch(r"O|[BI]-.+", label):
                raise ValueError(
                    f"labels: '{label}' is not an IOB2 name; write O, B-X and I-X, whatever scheme the files have "
                    "(tag_scheme). For tags of words that are not spans, use kind: word_tagging."
                )
            if label.startswith("I-") and f"B-{label[2:]}" not in labels:
                raise ValueError(f"labels: I-{label[2:]} also needs B-{label[2:]}.")
        if self.tag_scheme != "iob2" and any(raw != name for raw, name in self.labels):
            raise ValueError("labels: other names for tags need tag_scheme: iob2. Write a list of IOB2 names.")

    def _check_places(self) -> None:
        places = [key for key in ("files", "file", "hub") if getattr(self, key) is not None]
        if len(places) != 1:
            has = f"has {' and '.join(places)}" if places else "has none"
            raise ValueError(
                f"files: a task needs exactly one of files, file and hub, but this one {has}; {WANTED['files']}."
            )
        if len({self.file is None, self.split_column is None, self.splits is None}) > 1:
            raise ValueError("file: file, split_column and splits go together; see docs/tasks.md for an example.")
        if (self.hub is None) == (self.format is None):
            raise ValueError(f"format is {'not for hub' if self.format else 'missing'}; {WANTED['format']}.")
        if self.hub is not None and not re.fullmatch(r"[0-9a-f]{40}|refs/convert/parquet", self.hub.revision):
            raise ValueError(
                f"hub.revision: '{self.hub.revision}' may move. Write a commit's 40 hexadecimal digits, or "
                "refs/convert/parquet."
            )

    def _check_parts(self) -> None:
        named = self.hub.splits if self.hub else self.splits or self.files
        assert named is not None
        key = "hub.splits" if self.hub else "splits" if self.splits else "files"
        if named.dev is None and self.dev_from is None:
            raise ValueError(f"{key}.dev is missing; name it, as train, or carve it: dev_from: train[-500:].")
        for split in ("dev", "test"):
            if getattr(named, split) is not None and getattr(self, f"{split}_from") is not None:
                is_default = self.hub is not None and "splits" not in self.hub.model_fields_set
                rest = {"dev": "test: test", "test": "dev: validation"}[split]
                rest = "" if self.dev_from is not None and self.test_from is not None else f", {rest}"
                remedy = f"Write hub.splits: {{train: train{rest}}}." if is_default else "Remove one of the two."
                raise ValueError(f"{split}_from: {key} also has a {split} split. {remedy}")
        if self.also_test and self.files is None:
            raise ValueError(f"also_test needs a task that reads `files`; this one reads {key}. Remove also_test.")
        if self.also_test and (self.files is None or self.files.test is None) and self.test_from is None:
            raise ValueError("also_test: name a test split too, as files.test or test_from.")
        values = [value for names in self.splits.model_dump().values() for value in names or ()] if self.splits else []
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ValueError(f"splits: '{twice}' is named twice. Name each value of {self.split_column} once.")

    def _check_format(self) -> None:
        is_tagged = self.of_kind.labels_words
        is_other_kind = (self.format == "conll") != is_tagged and self.format not in (None, *TYPED)
        fits_folders = self.of_kind.input == "sentence" and self.of_kind.target in ("label", "grade")
        if is_other_kind or (self.format == "folders" and not fits_folders):
            raise ValueError(f"format: {self.kind} is not read from {self.format}; see docs/tasks.md for its formats.")
        given = [key for key in self.model_fields_set if getattr(self, key) != type(self).model_fields[key].default]
        for key in given:
            if self.format not in ONLY_FOR.get(key, (self.format,)):
                raise ValueError(
                    f"{key}: only for format {' and '.join(ONLY_FOR[key])}, not for {self.format or 'hub'}."
                )
        if "label_separator" in given and not self.of_kind.has_labels:
            raise ValueError("label_separator: only for multi_label_classification. Remove it.")
        if is_tagged and self.empty == "keep":
            raise ValueError("empty: a sentence without words cannot be labelled. Write skip or refuse.")
        if is_tagged and self.skip_labels:
            raise ValueError(f"skip_labels: not for {self.kind}. Remove it.")
        if not self.of_kind.has_spans and self.tag_scheme != "iob2":
            raise ValueError("tag_scheme: only spans have one, of kind: sequence_labelling. Remove it.")

    def _check_columns(self) -> None:
        needed, given = self.of_kind.columns, self.named
        for name in set(given).difference({*needed, GROUP}):
            raise ValueError(f"columns: '{name}' does not fit {self.kind}, which takes {', '.join(needed)}.")
        if self.format == "lines":
            self._check_pattern()
        elif self.format == "folders" and self.columns.model_fields_set:
            raise ValueError("columns: a folder of files has none; its label is the folder's name. Remove columns.")
        labels = self.columns.label or ()
        if len(labels) > 1 and not self.of_kind.has_labels:
            raise ValueError(
                f"columns: label of {self.kind} is one column; several are for multi_label_classification."
            )
        unlike = set(labels).symmetric_difference(raw for raw, _ in self.spellings()) if len(labels) > 1 else ()
        if unlike:
            raise ValueError(f"labels: '{min(unlike)}' is in only one of labels and columns.label. Name each in both.")
        if self.format == "conll":
            self._check_positions()
            return
        for name in needed:
            if name not in given:
                raise ValueError(f"columns: '{name}' is missing; {self.kind} needs {', '.join(needed)}.")

    def _check_positions(self) -> None:
        if self.columns.group not in (None, (DOCUMENT,)):
            raise ValueError(f"columns: group of a conll file is '{DOCUMENT}', its -DOCSTART- and # newdoc.")
        for name, columns in self.named.items():
            if name != GROUP and not re.fullmatch(r"-?\d+", columns[0]):
                raise ValueError(f"columns: {name} of a conll file is a position counted from 0, not '{columns[0]}'.")

    def _check_pattern(self) -> None:
        if self.pattern is None:
            raise ValueError(f"pattern is missing; {WANTED['pattern']}.")
        try:
            groups = re.compile(self.pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"pattern: not a regular expression ({error}). See docs/tasks.md for one.") from None
        wanted = [*(name for names in self.named.values() for name in names), *filter(None, [self.split_column])]
        lacking = next((name for name in wanted if name not in groups), None)
        if lacking is not None:
            has = ", ".join(groups) or "none"
            raise ValueError(f"pattern: the group '{lacking}' is missing (it has: {has}). Write (?P<{lacking}>.+).")

    def _check_metrics(self) -> None:
        labels = self.label_names()
        for key, names in (("metric", filter(None, [self.metric])), ("also", self.also)):
            for name in names:
                if name not in METRICS or not METRICS[name].serves(self.kind, len(labels)):
                    known = [m.name for m in METRICS.values() if m.serves(self.kind, len(labels))]
                    raise ValueError(f"{key}: {registry.unknown(name, f'metric of {self.kind}', known)}")
                part, types = name.partition(".")[2], {label[2:] for label in labels if label != "O"}
                if part and part not in types:
                    raise ValueError(f"{key}: {registry.unknown(part, f'type of span in {name}', types)}")


ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "delimiter": TABLES,
    "pattern": ("lines",),
    "split_column": (*TABLES, "lines", *TYPED),
    "encoding": TEXTUAL,
}
"""Key → the formats that it applies to; it is refused for other formats, where it has no effect."""


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
        text_columns=_text_columns(user_task),
        joiner=user_task.joiner,
        is_grouped=GROUP in user_task.named,
    )


def _text_columns(user_task: UserTask) -> tuple[tuple[str, ...], ...]:
    """The names of the columns of each text; () where the files have no names."""
    if user_task.format in ("conll", "lines", "folders") or not user_task.header:
        return ()
    return tuple(user_task.named[key] for key in user_task.texts if key != TAGS)


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
