"""A user's task: one YAML file (docs/tasks.md), which is validated before any data is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from meltpoint.tasks.core import mistakes, registry
from meltpoint.tasks.core.bounded import MOST_YAML_BYTES, parse_yaml
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.metrics import DEFAULT, METRICS
from meltpoint.tasks.core.paths import expanded
from meltpoint.tasks.core.readers import read_text
from meltpoint.tasks.core.task import KINDS, Kind, Split, Task
from meltpoint.tasks.core.user_formats import COLUMNS, UserFileLayout, read_user_file

Format = Literal["tsv", "csv", "jsonl", "parquet", "conll"]


COLUMNS_REMEDY = "write a column's name, or its position, as in columns: {text: sentence, label: label}"
WANTED = {
    "name": "write a word, as in name: reviews",
    "kind": f"write one of {', '.join(KINDS)}",
    "metric": "write a metric's name, as in metric: accuracy",
    "files": "write a mapping, as in files: {train: train.tsv, dev: dev.tsv}",
    "files.train": "write a file's name, as in files: {train: train.tsv, dev: dev.tsv}",
    "files.dev": "write a file's name, as in files: {train: train.tsv, dev: dev.tsv}",
    "files.test": "write a file's name, as in files: {train: train.tsv, dev: dev.tsv, test: test.tsv}",
    "format": f"write one of {', '.join(get_args(Format))}",
    "columns": "write a mapping, as in columns: {text: sentence, label: label}",
    **{f"columns.{name}": COLUMNS_REMEDY for name in ("text", "text_a", "text_b", "words", "tags", "label")},
    "header": "write true or false",
    "quoting": "write true or false",
    "labels": "write a list of words, as in labels: [bad, good]",
    "range": "write the lowest and the highest score, as in range: [0, 5]",
    "tag_scheme": f"write one of {', '.join(get_args(TagScheme))}",
    "tokenised": "write true or false",
    "description": "write one line of text",
}
"""The remedy for each key of a task file."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Files(_Strict):
    """The files of the splits, relative to the task file; test is optional (see `--test-from`)."""

    train: str
    dev: str
    test: str | None = None


class Columns(_Strict):
    """The columns by name, or by index from 0 if there is no header."""

    text: str | None = None
    text_a: str | None = None
    text_b: str | None = None
    words: str | None = None
    tags: str | None = None
    label: str | None = None


class UserTask(_Strict):
    """The contents of a task file.

    Attributes:
        name: lower-case letters, digits and `_`; used in tables and file names.
        kind: one of the four kinds.
        metric: the metric that settings are selected by; the kind's default if omitted.
        files, format, columns: the location and layout of the examples.
        header: True if the first line of a tsv or csv file names the columns.
        quoting: True if cells may be in double quotes; by default true for csv, false for tsv.
        labels: the label names as spelled in the files, in id order; IOB2 names for sequence labelling.
        range: lowest and highest score, for regression.
        tag_scheme: the tagging scheme of the files, `iob1` or `iob2`.
        tokenised: True if white space separates the words of the texts, punctuation among them, already.
    """

    name: str
    kind: Kind
    metric: str | None = None
    files: Files
    format: Format
    columns: Columns = Columns()
    header: bool = True
    quoting: bool | None = None
    labels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    tag_scheme: TagScheme = "iob2"
    tokenised: bool = False
    description: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"name: '{self.name}' has to be lower-case letters, digits and _, letter first.")
        self._check_labels()
        self._check_columns()
        self._check_metric()
        return self

    def _check_labels(self) -> None:
        if self.kind == "pair_regression":
            if self.labels or self.range is None or not self.range[0] < self.range[1]:
                raise ValueError("range: a pair_regression task takes range: [lowest, highest], and no labels.")
            return
        if self.range is not None or len(set(self.labels)) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels: a {self.kind} task takes a list of two or more different labels, and no range.")
        if self.kind == "sequence_labelling":
            for label in self.labels:
                if not re.fullmatch(r"O|[BI]-.+", label):
                    raise ValueError(f"labels: '{label}' is no IOB2 name; write O, B-X and I-X.")
                if label.startswith("I-") and f"B-{label[2:]}" not in self.labels:
                    raise ValueError(f"labels: I-{label[2:]} needs B-{label[2:]} too.")

    def _check_columns(self) -> None:
        if (self.format == "conll") != (self.kind == "sequence_labelling") and self.format in {"conll", "tsv", "csv"}:
            raise ValueError(f"format: {self.kind} is not read from {self.format}; see docs/tasks.md for what is.")
        needed = COLUMNS[self.kind]
        given = {name for name, column in self.columns.model_dump().items() if column is not None}
        for name in needed:
            if name not in given and self.format != "conll":
                raise ValueError(f"columns: '{name}' is missing; {self.kind} needs {', '.join(needed)}.")
        for name in given.difference(needed):
            raise ValueError(f"columns: '{name}' does not fit {self.kind}, which takes {', '.join(needed)}.")
        for name in given:
            column = self.columns.model_dump()[name]
            if self.format == "conll" and not re.fullmatch(r"-?\d+", column):
                raise ValueError(f"columns: {name} of a conll file is a position counted from 0, not '{column}'.")

    def _check_metric(self) -> None:
        if self.metric is None:
            return
        known = [
            m.name for m in METRICS.values() if self.kind in m.kinds and (not m.two_classes or len(self.labels) == 2)
        ]
        if self.metric not in known:
            raise ValueError(f"metric: {registry.unknown(self.metric, f'metric of {self.kind}', known)}")


def read_task_file(file: str, taken: Iterable[str] = ()) -> Task:
    """Read the task that a YAML file defines.

    Args:
        file: the file's path.
        taken: names that a user's task must not have: those of the built-in tasks.

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
        # BaseLoader keeps every scalar as text: `labels: [no, yes]` are names, not booleans.
        document = parse_yaml(read_text(path, most_bytes=MOST_YAML_BYTES), yaml.BaseLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not YAML ({reason}). Correct the file; docs/tasks.md has examples.") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a mapping of keys to values. docs/tasks.md has examples.")
    return document


def _refuse_unknown(path: Path, document: Mapping[str, object]) -> None:
    for place, model in (("", UserTask), ("files", Files), ("columns", Columns)):
        part = document.get(place) if place else document
        for key in part if isinstance(part, dict) else ():
            if key not in model.model_fields:
                what = f"key in {place}" if place else "key"
                raise ValueError(f"{path}: {registry.unknown(str(key), what, model.model_fields)}")


def _first_line(error: ValidationError, document: Mapping[str, object]) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        key = ".".join(map(str, first["loc"]))
        return f"{key}: {registry.unknown(first['input'], key, get_args(UserTask.model_fields[key].annotation))}"
    return mistakes.first_mistake(error, document, WANTED)


def _task(user_task: UserTask, folder: Path) -> Task:
    quoting = user_task.format == "csv" if user_task.quoting is None else user_task.quoting
    columns = {name: column for name, column in user_task.columns.model_dump().items() if column is not None}
    layout = UserFileLayout(
        user_task.kind, user_task.format, columns, user_task.header, quoting, user_task.labels, user_task.range,
        user_task.tag_scheme,
    )  # fmt: skip
    files: dict[Split, str] = {"train": user_task.files.train, "dev": user_task.files.dev}
    if user_task.files.test is not None:
        files["test"] = user_task.files.test
    return Task(
        name=user_task.name,
        kind=user_task.kind,
        metric=user_task.metric or DEFAULT[user_task.kind],
        folder=str(folder),
        readers={split: partial(read_user_file, name=name, layout=layout) for split, name in files.items()},
        files={split: (name,) for split, name in files.items()},
        labels=user_task.labels,
        label_range=user_task.range,
        tokenised=user_task.tokenised,
        description=user_task.description,
    )
