"""Keys of a task file: their types, and the checks of keys that must fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from meltpoint.tasks.core import kinds, registry
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.kinds import DOCUMENT, GROUP, LABEL, TaskKind
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.user_layout import (
    TABLES,
    TEXTUAL,
    TYPED,
    WANTED,
    Character,
    EmptyTexts,
    Format,
    Names,
    Widths,
    check_groups,
    cut_of,
    encoding_of,
    kind_of,
    label_pairs,
    quoting_of,
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Files(_Strict):
    """The files of the splits, relative to the task file; dev is one of them, or carved (`dev_from`)."""

    train: Names
    dev: Names | None = None
    test: Names | None = None


class LabelFiles(_Strict):
    """Files with one label per line, for splits whose texts have no labels."""

    train: str
    dev: str | None = None
    test: str | None = None


class SplitNames(_Strict):
    """The names that the splits have in the data."""

    train: Names
    dev: Names | None = None
    test: Names | None = None


class HubSplits(_Strict):
    """The names that the splits have on the hub."""

    train: str
    dev: str | None = None
    test: str | None = None


class Hub(_Strict):
    """A dataset on the hub: its parquet files at a pinned revision; see `core.task.HubSource`."""

    id: str = Field(pattern=r"^([\w.-]+/)?[\w.-]+$")
    revision: str
    splits: HubSplits = HubSplits(train="train", dev="validation", test="test")
    config: str | None = None
    pattern: str | None = None


class Columns(_Strict):
    """The columns by name, or by number from 0; a text may join several, and each of several labels may have a column.

    `group` holds the document, author or conversation that an example belongs to.
    """

    text: Names | None = None
    text_a: Names | None = None
    text_b: Names | None = None
    words: str | None = None
    tags: str | None = None
    label: Names | None = None
    group: str | None = None

    def given(self) -> dict[str, tuple[str, ...]]:
        """The named columns."""
        dumped = self.model_dump()
        return {key: _given(value) for key, value in dumped.items() if value is not None}


def _given(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


class UserTask(_Strict):
    """The contents of a task file.

    Attributes:
        name: lower-case letters, digits and `_`; used in tables and file names.
        kind: one of the kinds.
        metric: the metric that settings are selected by; the kind's default if omitted.
        also: further metrics, which tables show in their own columns; nothing is selected by them.
        files: the files of each split, or
        file, split_column, splits: one file, the column with the split of each row, and the splits' names, or
        hub: a dataset on the hub.
        dev_from, test_from: the part of train (of train or dev) that is carved off as dev (as test).
        format, columns: the layout of the examples.
        joiner: the text between the columns of one text.
        label_files: files with one label per line, if the texts have no labels.
        header: True if the first line of a tsv or csv file names the columns.
        delimiter: the character between two cells; by default a tab (tsv) or a comma (csv).
        quoting: True if cells may be in quotes; by default true for csv, false for tsv.
        quotechar: the character around such cells.
        widths: other numbers of cells that a row of a table without a header may have (STS-B has some).
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
    kind: Annotated[str, BeforeValidator(kind_of)]
    metric: str | None = None
    also: Names = ()
    files: Files | None = None
    file: str | None = None
    split_column: str | None = None
    splits: SplitNames | None = None
    hub: Hub | None = None
    dev_from: Annotated[str, cut_of("dev_from")] | None = None
    test_from: Annotated[str, cut_of("test_from")] | None = None
    format: Format | None = None
    columns: Columns = Columns()
    joiner: str = " "
    label_files: LabelFiles | None = None
    header: bool = True
    delimiter: Character | None = None
    quoting: Annotated[bool, BeforeValidator(quoting_of)] | None = None
    quotechar: Character = '"'
    widths: Widths = ()
    encoding: Annotated[str, BeforeValidator(encoding_of)] = "utf-8"
    pattern: str | None = None
    empty: EmptyTexts = "refuse"
    labels: Annotated[tuple[tuple[str, str], ...], BeforeValidator(label_pairs)] = ()
    class_weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=dict)
    label_separator: Annotated[str, Field(min_length=1)] = ","
    skip_labels: Names = ()
    range: tuple[float, float] | None = None
    tag_scheme: TagScheme = "iob2"
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

    @property
    def of_kind(self) -> TaskKind:
        """The kind of the task: the contents of its examples, and its target."""
        return kinds.get(self.kind)

    def label_names(self) -> tuple[str, ...]:
        """The names of the classes, in id order; two spellings may have one name."""
        return tuple(dict.fromkeys(name for _, name in self.spellings()))

    def spellings(self) -> tuple[tuple[str, str], ...]:
        """(spelling in the files, name) of each label; the columns, if each label has one and no label is named."""
        columns = self.columns.label or ()
        return self.labels or (tuple((column, column) for column in columns) if len(columns) > 1 else ())

    def label_ids(self) -> dict[str, int]:
        """Label as spelled in the files → class id."""
        names = self.label_names()
        return {raw: names.index(name) for raw, name in self.spellings()}

    def _check_weights(self) -> None:
        unknown = next((label for label in self.class_weights if label not in self.label_names()), None)
        if unknown is not None or (self.class_weights and self.of_kind.target != "label"):
            named = f"'{unknown}' is not among labels" if unknown else f"not for {self.kind}"
            raise ValueError(f"class_weights: {named}. Name labels of a classification.")

    def _check_labels(self) -> None:
        self._check_weights()
        if self.of_kind.is_regression:
            if self.labels or self.range is None or not self.range[0] < self.range[1]:
                raise ValueError(f"range: a {self.kind} task takes range: [lowest, highest], and no labels.")
            return
        raw = [spelling for spelling, _ in self.spellings()]
        if self.range is not None or len(self.label_names()) < 2 or len(set(raw)) < len(raw):
            raise ValueError(f"labels: a {self.kind} task takes a list of two or more different labels, and no range.")
        if self.of_kind.has_spans:
            self._check_tags(self.label_names())
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
        if (self.file is not None) != (self.split_column is not None) or (self.file is None) != (self.splits is None):
            raise ValueError("file: file, split_column and splits go together; see docs/tasks.md for an example.")
        values = [
            value for names in (self.splits.model_dump() if self.splits else {}).values() for value in names or ()
        ]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ValueError(f"splits: '{twice}' is named twice. Name each value of {self.split_column} once.")
        if (self.hub is None) == (self.format is None):
            raise ValueError(f"format is {'not for hub' if self.format else 'missing'}; {WANTED['format']}.")
        if self.hub is not None:
            _check_revision(self.hub)

    def _check_parts(self) -> None:
        named = self.hub.splits if self.hub else self.splits or self.files
        assert named is not None
        key = "hub.splits" if self.hub else "splits" if self.splits else "files"
        if (named.dev is None) == (self.dev_from is None):
            if self.dev_from is None:
                raise ValueError(f"{key}.dev is missing; {WANTED['files.dev']}.")
            raise ValueError(f"dev_from: {key} also has a dev split. Remove one of the two.")
        if self.label_files is not None and self.files is not None:
            lacking = [
                split for split in Files.model_fields if _has(self.files, split) != _has(self.label_files, split)
            ]
            if lacking:
                raise ValueError(
                    f"label_files.{lacking[0]}: files and label_files name different splits. Name the same ones."
                )
        if named.test is not None and self.test_from is not None:
            raise ValueError(f"test_from: {key} also has a test split. Remove one of the two.")

    def _check_format(self) -> None:
        tabular = ("conll", *TABLES, "lines", "folders")
        is_tagged = self.of_kind.labels_words
        is_other_kind = (self.format == "conll") != is_tagged and self.format in tabular
        is_folder_of_pairs = self.format == "folders" and not self.of_kind.fits_folders
        if is_other_kind or is_folder_of_pairs:
            raise ValueError(f"format: {self.kind} is not read from {self.format}; see docs/tasks.md for its formats.")
        for key, formats in ONLY_FOR.items():
            if self.format not in formats and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: only for format {' and '.join(formats)}, not for {self.format or 'hub'}.")
        if self.widths and self.header:
            raise ValueError("widths: with a header, all rows have its number of cells. Set header: false.")
        separator = type(self).model_fields["label_separator"].default
        if self.label_separator != separator and not self.of_kind.has_labels:
            raise ValueError("label_separator: only for multi_label_classification. Remove it.")
        if is_tagged and self.empty == "keep":
            raise ValueError("empty: a sentence without words cannot be labelled. Write skip or refuse.")
        if is_tagged and (self.label_files or self.skip_labels):
            raise ValueError(f"label_files, skip_labels: not for {self.kind}. Remove them.")
        if not self.of_kind.has_spans and self.tag_scheme != "iob2":
            raise ValueError("tag_scheme: only spans have one, of kind: sequence_labelling. Remove it.")

    def _check_columns(self) -> None:
        needed = tuple(name for name in self.of_kind.columns if name != LABEL or self.label_files is None)
        given = self.columns.given()
        if self.label_files is not None and LABEL in given:
            raise ValueError("columns: label is in label_files already. Remove one of the two.")
        for name in set(given).difference({*needed, GROUP}):
            raise ValueError(f"columns: '{name}' does not fit {self.kind}, which takes {', '.join(needed)}.")
        if self.format == "lines":
            self._check_pattern(needed, given)
        elif self.format == "folders" and given:
            raise ValueError("columns: a folder of files has none; its label is the folder's name. Remove columns.")
        self._check_label_columns()
        for name in needed:
            if name not in given and self.format not in {"conll", "lines", "folders"}:
                raise ValueError(f"columns: '{name}' is missing; {self.kind} needs {', '.join(needed)}.")
        self._check_group()
        for name, columns in given.items():
            if self.format == "conll" and name != GROUP and not re.fullmatch(r"-?\d+", columns[0]):
                raise ValueError(f"columns: {name} of a conll file is a position counted from 0, not '{columns[0]}'.")

    def _check_group(self) -> None:
        if self.format == "conll" and self.columns.group not in (None, DOCUMENT):
            raise ValueError(
                f"columns: group of a conll file is '{DOCUMENT}', its -DOCSTART- and # newdoc, "
                f"not '{self.columns.group}'."
            )

    def _check_label_columns(self) -> None:
        columns = self.columns.label or ()
        if len(columns) < 2:
            return
        if not self.of_kind.has_labels:
            raise ValueError(
                f"columns: label of {self.kind} is one column; several are for multi_label_classification."
            )
        unlike = set(columns).symmetric_difference(raw for raw, _ in self.spellings())
        if unlike:
            raise ValueError(f"labels: '{min(unlike)}' is in only one of labels and columns.label. Name each in both.")

    def _check_pattern(self, needed: tuple[str, ...], given: Mapping[str, tuple[str, ...]]) -> None:
        if self.pattern is None:
            raise ValueError(f"pattern is missing; {WANTED['pattern']}.")
        groups = [group for name in (*needed, *given.keys() & {GROUP}) for group in given.get(name, (name,))]
        check_groups(self.pattern, [*groups, self.split_column] if self.split_column else groups)

    def _check_metrics(self) -> None:
        own = () if self.metric is None else (self.metric,)
        for key, names in (("metric", own), ("also", self.also)):
            for name in names:
                if name not in METRICS or not METRICS[name].serves(self.kind, len(self.label_names())):
                    known = [m.name for m in METRICS.values() if m.serves(self.kind, len(self.label_names()))]
                    raise ValueError(f"{key}: {registry.unknown(name, f'metric of {self.kind}', known)}")
                part = name.partition(".")[2]
                types = {label[2:] for label in self.label_names() if label != "O"}
                if part and part not in types:
                    raise ValueError(f"{key}: {registry.unknown(part, f'type of span in {name}', types)}")


def _has(splits: BaseModel, split: str) -> bool:
    return getattr(splits, split) is not None


def _check_revision(hub: Hub) -> None:
    if not re.fullmatch(r"[0-9a-f]{40}|refs/convert/parquet", hub.revision):
        raise ValueError(
            f"hub.revision: '{hub.revision}' may move. Write a commit's 40 hexadecimal digits, or refs/convert/parquet."
        )
    known = {"{config}", "{split}"}
    if hub.pattern is not None and set(re.findall(r"\{[^}]*\}?|\}", hub.pattern)) - known:
        raise ValueError("hub.pattern: it may have {config} and {split}, as in pattern: data/{split}-*.parquet.")


ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "delimiter": TABLES,
    "quotechar": TABLES,
    "widths": TABLES,
    "pattern": ("lines",),
    "label_files": (*TABLES, "lines", "jsonl"),
    "split_column": (*TABLES, "lines", *TYPED),
    "encoding": TEXTUAL,
}
"""Key → the formats that it applies to; it is refused for other formats, where it has no effect."""
