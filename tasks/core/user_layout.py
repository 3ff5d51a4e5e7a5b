"""Values and layout of a task file: the fields that control how its files are read, their types, checks and remedies.

Patterns are matched with `regex`, which stops after a given time: backtracking can take time that grows exponentially
with the length of a line.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import regex
from pydantic import BeforeValidator, Field

from meltpoint.tasks.core import kinds, registry
from meltpoint.tasks.core.carving import FORMS, parse_cut
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.kinds import LABEL, TaskKind
from meltpoint.tasks.core.task import KINDS, Kind
from meltpoint.tasks.core.wording import some

LONGEST_PATTERN = 2_000
"""The largest number of characters of a pattern."""
MOST_SECONDS = 1.0
"""The longest time for one line; a pattern without nested repeats takes a few microseconds."""


def compiled(pattern: str) -> regex.Pattern[str]:
    """A compiled pattern.

    Raises:
        ValueError: it is not a regular expression, or too long; the message does not name the file.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"pattern: longer than {LONGEST_PATTERN} characters. Shorten it.")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern: not a regular expression ({error}). See docs/tasks.md for one.") from None


def check_groups(pattern: str, needed: Collection[str]) -> None:
    """Check that a pattern is valid and has all named groups that a task needs.

    Raises:
        ValueError: it is invalid, or lacks a group.
    """
    groups = compiled(pattern).groupindex
    lacking = next((name for name in needed if name not in groups), None)
    if lacking is not None:
        has = ", ".join(groups) or "none"
        raise ValueError(f"pattern: the group '{lacking}' is missing (it has: {has}). Write (?P<{lacking}>.+).")


def matched(
    pattern: regex.Pattern[str], line: str, place: str, seconds: float = MOST_SECONDS
) -> Mapping[str, str | None]:
    """The named groups of a line that the whole pattern matches.

    Raises:
        ValueError: it does not match, or takes too long; the message begins with `place`.
    """
    try:
        match = pattern.fullmatch(line, timeout=seconds)
    except TimeoutError:
        raise ValueError(
            f"{place}: the pattern takes more than {some(math.ceil(seconds), 'second')} on this line. "
            "Write it without a repeat inside a repeat, such as (a+)+."
        ) from None
    if match is None:
        raise ValueError(f"{place}: {line[:60]!r} does not match the pattern. Correct the line or the pattern.")
    groups: Mapping[str, str | None] = match.groupdict()
    return groups


Format = Literal["tsv", "csv", "jsonl", "parquet", "conll", "lines", "folders", "datasets"]
TABLES = ("tsv", "csv")
"""Formats of rows whose cells are separated by a delimiter."""
TYPED = ("jsonl", "parquet", "datasets")
"""Formats whose columns have names and whose cells may be numbers and lists."""
TEXTUAL = ("tsv", "csv", "jsonl", "conll", "lines", "folders")
"""Formats of text files, which have an encoding."""

EmptyTexts = Literal["refuse", "skip", "keep"]


@dataclass(frozen=True)
class UserFileLayout:
    """Layout of the files of a user's task, with the same fields as the task file.

    Attributes:
        kind, format: see `UserTask`.
        columns: key of `TaskKind.columns` → the columns that are joined for it.
        labels: label as spelled in the files → class id.
        label_range: lowest and highest score, for regression.
        header: True if the first line of a table names the columns.
        quoting: True if cells of a table may be in quotes.
        quotechar: the character around such a cell.
        delimiter: the character between two cells of a table.
        widths: other numbers of cells that rows without a header may have.
        encoding: the encoding of text files.
        pattern: the regular expression of a line, for `lines`.
        joiner: the text between the columns of one text.
        empty: the treatment of a row that has an empty text.
        label_separator: the text between several labels of one example.
        skip_labels: labels whose rows are left out.
        split_column: the column with the split of each row; "" if there is none.
        tag_scheme: the tagging scheme of the files.
    """

    kind: Kind
    format: str
    columns: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, int] = field(default_factory=dict)
    label_range: tuple[float, float] | None = None
    header: bool = True
    quoting: bool = False
    quotechar: str = '"'
    delimiter: str = "\t"
    widths: tuple[int, ...] = ()
    encoding: str = "utf-8"
    pattern: str = ""
    joiner: str = " "
    empty: EmptyTexts = "refuse"
    label_separator: str = ","
    skip_labels: frozenset[str] = frozenset()
    split_column: str = ""
    tag_scheme: TagScheme = "iob2"

    @property
    def of_kind(self) -> TaskKind:
        """The kind of the task: the contents of its examples, and its target."""
        return kinds.get(self.kind)

    def texts(self) -> tuple[str, ...]:
        """The keys of `columns` that are texts."""
        return tuple(name for name in self.of_kind.columns if name != LABEL)


@dataclass(frozen=True)
class UserSplit:
    """The files of one split.

    Attributes:
        names: the names of its files or folders, relative to the task file; `*` stands for any characters.
        label_file: the file with one label per line, if the labels have their own file.
        values: the split's names in the layout's `split_column`; () if the files hold this split only.
        other_values: the names of the other splits there.
    """

    names: tuple[str, ...]
    label_file: str | None = None
    values: tuple[str, ...] = ()
    other_values: tuple[str, ...] = ()


FORMATS = get_args(Format)
ENCODINGS = ("utf-8", "latin-1", "cp1252", "iso-8859-15", "utf-16", "cp1251", "gb18030", "shift_jis", "euc-kr")
"""The encodings that a message names; Python's other encodings work too."""
FILE_REMEDY = "write a file's name, as in files: {train: train.tsv, dev: dev.tsv}"
COLUMNS_REMEDY = "write a column's name, or its position, as in columns: {text: sentence, label: label}"
SPLITS_REMEDY = "write each split's name in the data, as in splits: {train: training, dev: validation}"
HUB_REMEDY = "write a dataset's keys, as in hub: {id: owner/name, revision: COMMIT, splits: {train: train, dev: dev}}"
HUB_REMEDIES = {
    "id": "write the dataset's name on the hub, as in hub: {id: owner/name, revision: COMMIT}",
    "revision": "write a commit's 40 hexadecimal digits, or revision: refs/convert/parquet",
    "splits": "write each split's name on the hub, as in splits: {train: train, dev: validation}",
    "config": "write the configuration's name, as in config: default",
    "pattern": "write the path of a split's parquet files, as in pattern: data/{split}-*.parquet",
}
YES_NO = "write true or false"
WANTED = {
    "name": "write a word, as in name: reviews",
    "kind": f"write one of {', '.join(KINDS)}",
    "metric": "write a metric's name, as in metric: accuracy",
    "also": "write a list of metrics, as in also: [macro_f1, matthews]",
    "files": "write a mapping, as in files: {train: train.tsv, dev: dev.tsv}",
    "files.train": FILE_REMEDY,
    "files.dev": f"{FILE_REMEDY}, or carve it: dev_from: train[-500:]",
    "files.test": "write a file's name, as in files: {train: train.tsv, dev: dev.tsv, test: test.tsv}",
    "file": "write the name of the file that has all splits, as in file: data.csv",
    "split_column": "write the column with the split of each row, as in split_column: split",
    "splits": SPLITS_REMEDY,
    **{f"splits.{name}": SPLITS_REMEDY for name in ("train", "dev", "test")},
    "hub": HUB_REMEDY,
    **{f"hub.{name}": remedy for name, remedy in HUB_REMEDIES.items()},
    **{f"hub.splits.{name}": HUB_REMEDIES["splits"] for name in ("train", "dev", "test")},
    "dev_from": f"write {FORMS}",
    "test_from": f"write {FORMS}",
    "format": f"write one of {', '.join(FORMATS)}",
    "columns": "write a mapping, as in columns: {text: sentence, label: label}",
    **{f"columns.{name}": COLUMNS_REMEDY for name in ("text", "text_a", "text_b", "words", "tags", "label", "group")},
    "joiner": 'write the text between two columns, as in joiner: " "',
    "label_files": "write files with one label per line, as in label_files: {train: train.gold.txt, dev: dev.gold.txt}",
    **{f"label_files.{name}": FILE_REMEDY.replace("files", "label_files") for name in ("train", "dev", "test")},
    "header": YES_NO,
    "delimiter": 'write one character, as in delimiter: ";"',
    "quoting": "write true, false or none",
    "quotechar": """write one character, as in quotechar: "'\"""",
    "widths": "write the other numbers of cells that rows have, as in widths: [9]",
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


NO_ENCODINGS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
"""Python's encodings of text that no file uses; some take quadratic time."""


def as_tuple(value: object) -> object:
    """A single text as a tuple."""
    return (value,) if isinstance(value, str) else value


def label_pairs(value: object) -> object:
    """A list of names, or a mapping of raw value → name, as pairs (raw value, name)."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple((name, name) for name in value) if isinstance(value, list | tuple) else value


def character(value: object) -> object:
    """A tab, if it is written as a word."""
    return {r"\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value


def quoting_of(value: object) -> object:
    """`none` as false."""
    return "false" if value == "none" else value


def kind_of(value: object) -> object:
    """A known kind."""
    if isinstance(value, str) and value not in kinds.names():
        raise ValueError(f"kind: {registry.unknown(value, 'kind', kinds.names())}")
    return value


def encoding_of(value: object) -> object:
    """An encoding of files that Python knows."""
    if not isinstance(value, str):
        return value
    try:
        name = codecs.lookup(value).name if "\0" not in value else ""
        "".encode(value)  # refuses codecs that are not text encodings, such as rot13; `b"".decode` does not
    except (LookupError, UnicodeError):
        name = ""
    if not name or name.replace("-", "_") in NO_ENCODINGS:
        raise ValueError(f"encoding: {registry.unknown(value, 'encoding', ENCODINGS)}")
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


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
Character = Annotated[str, BeforeValidator(character), Field(min_length=1, max_length=1, pattern=r"[^\n\r]")]
Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)]
