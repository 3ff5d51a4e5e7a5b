"""The layout of the data of a user's task: the fields of the task file that say how its files are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from meltpoint.tasks import kinds
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.kind import LABEL, TaskKind
from meltpoint.tasks.core.task import Kind

Format = Literal["tsv", "csv", "jsonl", "parquet", "conll", "lines", "folders", "datasets"]
TABLES = ("tsv", "csv")
"""Formats of rows of cells that a delimiter separates."""
TYPED = ("jsonl", "parquet", "datasets")
"""Formats whose columns have names and whose cells may be numbers and lists."""
TEXTUAL = ("tsv", "csv", "jsonl", "conll", "lines", "folders")
"""Formats of text files, which have an encoding."""

EmptyTexts = Literal["refuse", "skip", "keep"]


@dataclass(frozen=True)
class UserFileLayout:
    """Layout of the files of a user's task; the fields are those of the task file.

    Attributes:
        kind, format: see `UserTask`.
        columns: key of `TaskKind.columns` → the columns that it is joined of.
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
        empty: what is done with a row that has an empty text.
        label_separator: the text between several labels of one example.
        skip_labels: labels whose rows are left out.
        split_column: the column that says which split a row belongs to; "" if there is none.
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
        """Its kind: what its examples hold, and what is predicted of them."""
        return kinds.get(self.kind)

    def texts(self) -> tuple[str, ...]:
        """The keys of `columns` that are texts."""
        return tuple(name for name in self.of_kind.columns if name != LABEL)


@dataclass(frozen=True)
class UserSplit:
    """The files of one split.

    Attributes:
        names: the names of its files or folders, relative to the task file; `*` stands for any characters.
        label_file: the file with one label a line, if the labels have a file of their own.
        values: the split's names in the layout's `split_column`; () if the files hold this split only.
        other_values: the names of the other splits there.
    """

    names: tuple[str, ...]
    label_file: str | None = None
    values: tuple[str, ...] = ()
    other_values: tuple[str, ...] = ()
