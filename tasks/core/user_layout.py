"""Layout of a user's files: the keys of a task file that control how its files are read; remedies for all keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from meltpoint.tasks.core import kinds, registry
from meltpoint.tasks.core.carving import FORMS, parse_cut
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.kinds import LABEL, TaskKind
from meltpoint.tasks.core.task import KINDS

Format = Literal["tsv", "csv", "jsonl", "parquet", "conll", "lines", "folders"]
TABLES = ("tsv", "csv")
"""Formats of rows whose cells are separated by a delimiter."""
TYPED = ("jsonl", "parquet")
"""Formats whose columns have names and whose cells may be numbers and lists."""
TEXTUAL = ("tsv", "csv", "jsonl", "conll", "lines", "folders")
"""Formats of text files, which have an encoding."""

EmptyTexts = Literal["refuse", "skip", "keep"]

ENCODINGS = ("utf-8", "latin-1", "cp1252", "iso-8859-15", "utf-16", "cp1251", "gb18030", "shift_jis", "euc-kr")
"""The encodings that a message names; Python's other encodings work too."""
YES_NO = "write true or false"
WANTED = {
    "name": "write a word, as in name: reviews",
    "kind": f"write one of {', '.join(KINDS)}",
    "metric": "write a metric's name, as in metric: accuracy",
    "also": "write a list of metrics, as in also: [macro_f1, matthews]",
    "files": "write a file's name for each split, as in files: {train: train.tsv, dev: dev.tsv}",
    "file": "write the name of the file that has all splits, as in file: data.csv",
    "split_column": "write the column with the split of each row, as in split_column: split",
    "splits": "write each split's name in the data, as in splits: {train: training, dev: validation}",
    "hub": "write a dataset's keys, as in hub: {id: owner/name, revision: COMMIT, splits: {train: train, dev: dev}}",
    "also_test": "write a name and a file for each further test, as in also_test: {twitter: tweets.tsv}",
    "dev_from": f"write {FORMS}",
    "test_from": f"write {FORMS}",
    "format": f"write one of {', '.join(get_args(Format))}",
    "columns": "write columns by their names, or positions, as in columns: {text: sentence, label: label}",
    "joiner": 'write the text between two columns, as in joiner: " "',
    "header": YES_NO,
    "delimiter": 'write one character, as in delimiter: ";"',
    "quoting": "write true, false or none",
    "encoding": f"write the name of an encoding, as in encoding: latin-1 ({', '.join(ENCODINGS)})",
    "pattern": r"write a regular expression with named groups, as in pattern: '(?P<label>\w+) (?P<text>.+)'",
    "empty": f"write one of {', '.join(get_args(EmptyTexts))}",
    "labels": "write a list of words, as in labels: [bad, good], or a mapping, as in labels: {1: bad, 2: good}",
    "class_weights": "write each label with its weight, as in class_weights: {rare: 5}",
    "label_separator": 'write the text between two labels, as in label_separator: ";"',
    "skip_labels": "write a list of labels whose rows are left out, as in skip_labels: ['-']",
    "range": "write the lowest and the highest score, as in range: [0, 5]",
    "tag_scheme": f"write one of {', '.join(get_args(TagScheme))}",
    "tokenised": YES_NO,
    "description": "write one line of text",
}
"""The remedy for each key of a task file."""


def _as_tuple(value: object) -> object:
    """A single text as a tuple."""
    return (value,) if isinstance(value, str) else value


def _character(value: object) -> object:
    """A tab, if it is written as a word."""
    return "\t" if value in (r"\t", "tab") else value


def _label_pairs(value: object) -> object:
    """A list of names, or a mapping of raw value → name, as pairs (raw value, name)."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple((name, name) for name in value) if isinstance(value, list | tuple) else value


def _kind_of(value: object) -> object:
    """A known kind."""
    if isinstance(value, str) and value not in kinds.names():
        raise ValueError(f"kind: {registry.unknown(value, 'kind', kinds.names())}")
    return value


def _encoding_of(value: object) -> object:
    """An encoding of text that Python knows."""
    try:
        "".encode(value) if isinstance(value, str) else None
    except (LookupError, ValueError):
        raise ValueError(f"encoding: {registry.unknown(str(value), 'encoding', ENCODINGS)}") from None
    return value


def cut_of(key: str) -> BeforeValidator:
    """Check a part of train or dev, and keep it as text."""

    def check(value: object) -> str:
        cut = parse_cut(value, key)
        if key == "dev_from" and cut.split != "train":
            raise ValueError(f"dev_from: dev is carved off train, not off {cut.split}. Write dev_from: train[-500:].")
        # JSON of strings is YAML in braces, which `parse_cut` reads.
        return value if isinstance(value, str) else str(dict(value))  # type: ignore[call-overload]

    return BeforeValidator(check)


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Character = Annotated[str, BeforeValidator(_character), Field(min_length=1, max_length=1, pattern=r"[^\n\r]")]


class Strict(BaseModel):
    """An immutable part of a YAML file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Columns(Strict):
    """The columns by name, or by number from 0; a text may join several, and each of several labels may have a column.

    `group` holds the document, author or conversation that an example belongs to.
    """

    text: Names | None = None
    text_a: Names | None = None
    text_b: Names | None = None
    words: Annotated[Names, Field(max_length=1)] | None = None
    tags: Annotated[Names, Field(max_length=1)] | None = None
    label: Names | None = None
    group: Annotated[Names, Field(max_length=1)] | None = None


class Layout(Strict):
    """The keys of a task file that reading its files needs; see `UserTask`."""

    kind: Annotated[str, BeforeValidator(_kind_of)]
    format: Format | None = None
    columns: Columns = Columns()
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_label_pairs)] = ()
    range: tuple[float, float] | None = None
    header: bool = True
    delimiter: Character | None = None
    quoting: Annotated[bool, BeforeValidator(lambda value: "false" if value == "none" else value)] | None = None
    encoding: Annotated[str, BeforeValidator(_encoding_of)] = "utf-8"
    pattern: str | None = None
    joiner: str = " "
    empty: EmptyTexts = "refuse"
    label_separator: Annotated[str, Field(min_length=1)] = ","
    skip_labels: Names = ()
    split_column: str | None = None
    tag_scheme: TagScheme = "iob2"

    @property
    def of_kind(self) -> TaskKind:
        """The kind of the task: the contents of its examples, and its target."""
        return kinds.get(self.kind)

    @property
    def texts(self) -> tuple[str, ...]:
        """The keys of `columns` that are texts."""
        return tuple(name for name in self.of_kind.columns if name != LABEL)

    @cached_property
    def named(self) -> dict[str, tuple[str, ...]]:
        """Key of `columns` → its columns; the groups of a pattern and the parts of a folder are named by the keys."""
        own = {name: (name,) for name in self.of_kind.columns} if self.format in ("lines", "folders") else {}
        return own | {key: value for key, value in self.columns.model_dump().items() if value is not None}

    def spellings(self) -> tuple[tuple[str, str], ...]:
        """(spelling in the files, name) of each label; the columns, if each label has one and no label is named."""
        columns = self.columns.label or ()
        return self.labels or (tuple((column, column) for column in columns) if len(columns) > 1 else ())

    def label_names(self) -> tuple[str, ...]:
        """The names of the classes, in id order; two spellings may have one name."""
        return tuple(dict.fromkeys(name for _, name in self.spellings()))

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """Label as spelled in the files → class id."""
        names = self.label_names()
        return {raw: names.index(name) for raw, name in self.spellings()}


@dataclass(frozen=True)
class UserSplit:
    """The files of one split.

    Attributes:
        names: the names of its files or folders, relative to the task file; `*` stands for any characters.
        values: the split's names in the layout's `split_column`; () if the files hold this split only.
        other_values: the names of the other splits there.
    """

    names: tuple[str, ...]
    values: tuple[str, ...] = ()
    other_values: tuple[str, ...] = ()
