"""Roles of the columns of a file: texts, a label or a score, words and tags, or the split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import LABEL
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.rows import Row, scalar_text
from meltpoint.tasks.core.task import Kind
from meltpoint.tasks.inspection.splits import split_word
from meltpoint.tasks.inspection.text_shape import (
    JOINED_NAMES,
    LABEL_NAMES,
    NO_LABELS,
    PAIR_NAMES,
    SPLIT_NAMES,
    TAG,
    TAGS_NAMES,
    TEXT_NAMES,
    WORDS_NAMES,
    is_number,
    scheme_of,
)

LIST_AS_TEXT = re.compile(r"""\[.*['",].*\]""")
"""A list that pandas or Python wrote as text; `[A]` may be a class."""
MOST_LABELS = 300
"""The largest number of different values in a column of classes."""
SHORT = 20
"""A file with at most this many rows need not repeat a label."""
SEPARATORS = (",", ";", "|")
"""Separators of several labels in one cell."""
FEWEST_INDICATORS = 3
"""The fewest columns of 0 or 1 that count as one label each."""
CLASS_NAMES = (
    "gold_label", "label", "labels", "class", "category", "intent", "topic", "target", "y", "label_id", "class_id",
    "intent_id", "category_id",
)  # fmt: skip
"""Names of columns whose whole numbers are classes, however many they are."""
SHORT_LABEL, LONG_LABEL = 4, 12
"""The largest mean number of words of a column of labels; and of one with a name in `CLASS_NAMES`."""
ALIKE = 2.5
"""The largest ratio of a pair's mean lengths; columns that differ more are one text, such as title and body."""


@dataclass(frozen=True)
class Roles:
    """The kind of task, and the columns by the keys of a task file.

    Attributes:
        columns: key of `columns` → column, or several that are one text.
        split_column: the column with each row's split, or "".
        remarks: other columns that could have been meant.
        label_separator: the text between several labels in one cell, or "".
        tag_scheme: the scheme of the tags of spans, or "".
    """

    kind: Kind
    columns: Mapping[str, int | str | list[str]]
    split_column: str = ""
    remarks: tuple[str, ...] = ()
    label_separator: str = ""
    tag_scheme: str = ""


@dataclass(frozen=True)
class Asked:
    """The columns and the kind that you named on the command line; empty ones are guessed, except the group.

    Attributes:
        texts: the column of the texts, or the two columns of pairs.
        group: the column of the examples' groups; "" if the examples have none.
    """

    texts: tuple[str, ...] = ()
    label: str = ""
    kind: Kind = ""
    group: str = ""

    def __bool__(self) -> bool:
        return bool(self.texts or self.label or self.kind)


GUESS = Asked()


@dataclass(frozen=True)
class Column:
    """A column with its first values."""

    name: str
    values: tuple[str, ...]

    @property
    def short_name(self) -> str:
        """The last part of a nested name, in lower case."""
        return self.name.rpartition(".")[2].lower()

    @property
    def words(self) -> float:
        """The mean number of words over the values that have any."""
        lengths = [length for value in self.values if (length := len(value.split()))]
        return mean(lengths) if lengths else 0.0

    @property
    def distinct(self) -> int:
        """The number of different values."""
        return len(set(self.values))

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers, or stand for a missing one."""
        given = [value for value in self.values if value.strip().lower() not in NO_LABELS]
        return bool(given) and all(map(is_number, given))


def roles_of(names: Sequence[str], rows: Sequence[Row], asked: Asked = GUESS) -> Roles:
    """Guess the roles of the columns that you did not name.

    Raises:
        ValueError: no column of texts or labels is found, or the one that you named is missing; the message omits the
            file.
    """
    for name in (*asked.texts, *filter(None, [asked.label, asked.group])):
        if name not in names:
            raise unknown(name, "column", names)
    names = [name for name in names if name != asked.group]
    if asked.texts and asked.label:
        names = [name for name in names if name in {*asked.texts, asked.label} or name.lower() in SPLIT_NAMES]
    tagged = _tagged(names, rows, asked) if not asked.kind or kinds.get(asked.kind).labels_words else None
    if tagged is not None:
        return tagged
    may_be_several = asked.kind in ("", "multi_label_classification")
    listed_labels = _listed_labels(names, rows, asked.label) if may_be_several else ""
    if listed_labels and _are_vectors([row[listed_labels] for row in rows]):
        raise ValueError(
            f"the lists of '{listed_labels}' are vectors of 0 and 1. Write each as its labels' names, or one column of "
            "0 or 1 for each label."
        )
    rows = [{**row, listed_labels: _joined(row[listed_labels])} for row in rows] if listed_labels else rows
    columns = [Column(name, tuple(_text(row.get(name)) for row in rows)) for name in names if _is_scalar(name, rows)]
    split = next((column.name for column in columns if _is_split(column)), "")
    columns = [column for column in columns if column.name != split]
    has_label = any(column.name.lower() in ("label", "gold_label") and _may_be_label(column)
                    for column in columns if not _is_indicator(column))  # fmt: skip
    indicators = _indicators(columns) if may_be_several and not asked.label and not has_label else []
    columns = [column for column in columns if column not in indicators]
    by_name = {column.name: column for column in columns}
    for name in (*asked.texts, *filter(None, [asked.label])):
        if name not in by_name:
            raise ValueError(f"the column '{name}' holds lists or split names, which this kind does not take.")
    others = [column for column in columns if column.name not in asked.texts]
    label = by_name.get(asked.label or listed_labels) or _label(others if asked.texts else columns)
    texts = [by_name[name] for name in asked.texts]
    texts = texts or _texts([column for column in columns if column is not label])
    listed = ", ".join(names)
    if not texts:
        raise ValueError(f"no column of texts among {listed}. Write the task file by hand; see docs/tasks.md.")
    text = texts[0].name if len(texts) == 1 else [column.name for column in texts]
    if indicators and not listed_labels:
        labels = [column.name for column in indicators]
        return Roles("multi_label_classification", {"text": text, LABEL: labels}, split)
    if label is None:
        raise ValueError(
            f"no column of labels among {listed}. Name it with --label, or write a task file (docs/tasks.md)."
        )
    spelled = next(filter(LIST_AS_TEXT.fullmatch, label.values), "")
    if spelled:
        raise ValueError(
            f"'{label.name}' has lists written as text, such as {spelled}. Write them as joy, anger, or as lists in "
            "JSON lines (.jsonl)."
        )
    is_pair = len(texts) == 2 and (
        asked.kind.startswith("pair") if asked.kind else bool(asked.texts) or not _is_one_text(*texts)
    )
    keys: dict[str, Any] = {"text_a": texts[0].name, "text_b": texts[1].name} if is_pair else {"text": text}
    keys[LABEL] = label.name
    unread = [column.name for column in columns if column not in texts and column is not label]
    remarks = [f"columns that are not read: {', '.join(unread)}"] if unread else []
    if len(texts) == 2 and not asked.texts and not _is_named_pair(*texts):
        first, second = texts[0].name, texts[1].name
        remarks.append(
            f"two columns of texts: one text is kind: sentence_… and columns: {{text: [{first}, {second}], …}}, "
            f"a pair is kind: pair_… and columns: {{text_a: {first}, text_b: {second}, …}}"
        )
    separator = "" if is_pair or listed_labels else _separator(label.values, asked.kind.startswith("multi_label"))
    several = not is_pair and (label.name == listed_labels or separator != "")
    is_score = label.is_numeric and (
        (label.distinct > 20 and label.short_name not in CLASS_NAMES)
        or any("." in value and not value.endswith((".0", ".")) for value in label.values)
    )
    target = "regression" if is_score else "classification"
    guessed = "multi_label_classification" if several else f"{'pair' if is_pair else 'sentence'}_{target}"
    kind = asked.kind or guessed
    if tuple(keys) != kinds.get(kind).columns:
        raise ValueError(
            f"{kind} takes {', '.join(kinds.get(kind).columns)}, but only {', '.join(keys)} were found. Name the "
            "columns with --text and --label, or take another --kind."
        )
    return Roles(kind, keys, split, tuple(remarks), separator if kind.startswith("multi_label") else "")


def _text(value: object) -> str:
    return scalar_text(value) or ("" if value is None else str(value))


def _is_scalar(name: str, rows: Sequence[Row]) -> bool:
    return all(isinstance(row.get(name), str | int | float | bool | None) for row in rows)


def _tagged(names: Sequence[str], rows: Sequence[Row], asked: Asked) -> Roles | None:
    """The roles of a column of lists of words and one of tags, of equal lengths; None without such columns."""
    lists = [name for name in names if all(isinstance(row.get(name), list) for row in rows) and rows]
    values: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in lists}
    words = [name for name in lists if all(isinstance(part, str) for sentence in values[name] for part in sentence)]
    words = [name for name in words if name in asked.texts] if asked.texts else words
    lists = [name for name in lists if name == asked.label] if asked.label else lists
    for word in sorted(words, key=lambda name: name.lower() not in WORDS_NAMES):
        lengths = list(map(len, values[word]))
        fitting = [name for name in lists if name != word and list(map(len, values[name])) == lengths]
        if not fitting:
            continue
        column = min(fitting, key=lambda name: name.lower() not in TAGS_NAMES)
        columns, tags = {"words": word, "tags": column}, values[column]
        if all(isinstance(tag, str) and not TAG.fullmatch(tag) for sentence in tags for tag in sentence):
            return Roles("word_tagging", columns)
        return Roles("sequence_labelling", columns, tag_scheme=scheme_of([list(map(str, one)) for one in tags]))
    return None


def _listed_labels(names: Sequence[str], rows: Sequence[Row], asked: str) -> str:
    """The column of lists of labels in a file that also has texts, or ""; only the one that was asked for, if any."""
    lists = [
        name
        for name in names
        if all(isinstance(row.get(name), list | None) for row in rows) and any(row.get(name) for row in rows)
    ]
    if asked:
        return asked if asked in lists else ""
    named = [name for name in lists if name.rpartition(".")[2].lower() in LABEL_NAMES]
    has_text = any(len(_text(row.get(name)).split()) > 1 for row in rows[:20] for name in names if name not in lists)
    has_label = any(name.rpartition(".")[2].lower() in LABEL_NAMES for name in names if name not in lists)
    if not has_text or (has_label and not named):
        return ""  # SNLI also has each annotator's label
    return (named or lists or [""])[0]


def _are_vectors(lists: Sequence[Any]) -> bool:
    """True if all lists have the same length, two or more, and hold only 0 and 1."""
    given = [values for values in lists if values is not None]
    return len({len(values) for values in given}) == 1 and len(given[0]) > 1 and all({*one} <= {0, 1} for one in given)


def _joined(values: object) -> str:
    return SEPARATORS[0].join(map(str, values)) if isinstance(values, list) else ""


def _indicators(columns: Sequence[Column]) -> list[Column]:
    """The columns of 0 or 1, if there are several: one for each of several labels, also for one that is rare."""
    found = list(filter(_is_indicator, columns))
    return [one for one in columns if _is_binary(one)] if len(found) >= FEWEST_INDICATORS else []


def _is_binary(column: Column) -> bool:
    return bool(column.values) and {value.lower() for value in column.values} <= {"0", "1", "true", "false"}


def _is_indicator(column: Column) -> bool:
    return _is_binary(column) and not {value.lower() for value in column.values} <= {"0", "false"}


def _separator(values: Sequence[str], is_told: bool = False) -> str:
    """The separator of several short labels in one cell, most of which also occur alone; "" if there is none.

    Args:
        is_told: True if cells are known to have several labels, so that the most common separator is taken.
    """
    if is_told:
        most = max(SEPARATORS, key=lambda separator: sum(separator in value for value in values))
        return most if any(most in value for value in values) else ""
    for separator in SEPARATORS:
        several = [value.split(separator) for value in values if separator in value]
        alone = {value for value in values if separator not in value}
        parts = {part.strip() for value in several for part in value}
        if several and parts and len(parts & alone) >= len(parts) / 2 and all(len(part.split()) <= 2 for part in parts):
            return separator
    return ""


def _is_split(column: Column) -> bool:
    values = {value for value in column.values if value}
    return column.short_name in SPLIT_NAMES and bool(values) and all(map(split_word, values))


def _label(columns: Sequence[Column]) -> Column | None:
    """The column of labels: a known name first, then the fewest different short values that repeat."""
    fitting = [column for column in columns if _may_be_label(column)] if len(columns) > 1 else []
    rank = {name: number for number, name in enumerate(LABEL_NAMES)}
    named = [column for column in fitting if column.short_name in rank]
    if named:
        return min(named, key=lambda column: rank[column.short_name])
    scores = [column for column in fitting if _is_score(column) and column.distinct > 1]
    if scores:
        return scores[0]
    repeating = [column for column in fitting if _repeats(column)]
    return min(repeating, key=lambda column: (column.distinct, column.words), default=None)


def _is_score(column: Column) -> bool:
    """True for numbers with decimals, as scores are written."""
    return column.is_numeric and sum("." in value for value in column.values) > len(column.values) / 2


def _repeats(column: Column) -> bool:
    """True if values repeat; in a short file, also if they are one-digit numbers out of order, so not row numbers."""
    values, count = column.values, len(column.values)
    is_short = count <= SHORT and all(value.isdecimal() and len(value) == 1 for value in values)
    return column.distinct <= max(2, count * 0.75) or (is_short and list(values) != sorted(values))


def _may_be_label(column: Column) -> bool:
    is_named = column.short_name in LABEL_NAMES
    most_words = LONG_LABEL if column.short_name in CLASS_NAMES else SHORT_LABEL
    return column.words <= most_words and column.distinct >= 2 and (is_named or column.distinct <= MOST_LABELS)


def _texts(columns: Sequence[Column]) -> list[Column]:
    """The columns of the text, or of the two texts of a pair."""
    by_name = {column.short_name: column for column in reversed(columns)}  # of `text` and `Text`, the first wins
    for pair in (*PAIR_NAMES, *JOINED_NAMES):
        if all(name in by_name for name in pair):
            return [by_name[name] for name in pair]
    named = [by_name[name] for name in TEXT_NAMES if name in by_name and not by_name[name].is_numeric]
    if named:
        return named[:1]
    long = [column for column in columns if column.words >= 2 and not column.is_numeric]
    long.sort(key=lambda column: -column.words)
    return sorted(long[:2], key=columns.index)


def _is_named_pair(first: Column, second: Column) -> bool:
    return (first.short_name, second.short_name) in (*PAIR_NAMES, *JOINED_NAMES)


def _is_one_text(first: Column, second: Column) -> bool:
    """True for a title and its text: by their names, or because one is much longer."""
    if _is_named_pair(first, second):
        return (first.short_name, second.short_name) in JOINED_NAMES
    shorter, longer = sorted((first.words, second.words))
    return longer > ALIKE * shorter
