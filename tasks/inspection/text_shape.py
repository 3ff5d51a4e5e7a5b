"""Shape of a text file: encoding, delimiter, quotes and header of a table, columns of tagged words.

A file of tagged words has one word per line with its columns, and a blank line between sentences. Column names of
public data sets tell headers from rows, and texts from labels."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import mode
from typing import TypeVar

from meltpoint.tasks.core.conll import Sentence, TagScheme, is_numbered, split_columns
from meltpoint.tasks.core.readers import data_bytes, is_in_quotes
from meltpoint.tasks.core.rows import Row
from meltpoint.tasks.core.task import Kind

LABEL_NAMES = (
    "gold_label", "label", "labels", "category", "class", "target", "sentiment", "intent", "verdict", "topic", "stars",
    "rating", "is_duplicate", "similarity", "score", "relatedness_score", "entailment_judgment", "y", "gold",
    "polarity", "emotion", "label_text", "coarse_label", "note", "answer_label",
)  # fmt: skip
"""The names of a column of labels or scores, the likeliest first."""

TEXT_NAMES = (
    "text", "sentence", "review", "comment_text", "comment", "body", "content", "tweet", "utterance", "query",
    "question", "message", "document", "description", "title", "headline", "abstract", "summary", "reviewtext", "texte",
    "premise", "hypothesis", "answer", "passage", "context",
)  # fmt: skip
"""The names of a column of texts."""

PAIR_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("question", "answer"), ("question", "sentence"), ("question", "context"), ("query", "passage"),
    ("query", "document"), ("sentence_a", "sentence_b"),
    ("text1", "text2"), ("q1", "q2"), ("s1", "s2"), ("q", "a"), ("left", "right"), ("string1", "string2"),
    ("#1 string", "#2 string"),
)  # fmt: skip
"""The names of the two columns of a pair."""

JOINED_NAMES = (
    ("title", "description"),
    ("title", "body"),
    ("title", "content"),
    ("title", "text"),
    ("title", "review"),
)
"""The names of two columns that are one text."""

WORDS_NAMES = ("tokens", "words", "sentence", "token")
TAGS_NAMES = ("ner_tags", "tags", "ner", "labels", "bio_tags", "iob", "ner_labels")
SPLIT_NAMES = ("split", "set", "partition", "subset", "fold", "dataset_split", "splitset_label")

NO_LABELS = ("-", "", "unsup", "n/a", "na", "nan", "null")
"""Spellings of a missing label; "none" is a class of stance and emotion data."""


SAMPLE_LINES = 20_000
"""The lines that the scheme is guessed from; only adjacent entities, or entities that begin with I-, reveal iob1."""
ONTONOTES = (3, 10)
"""The columns of words and names in CoNLL-2012."""
UNIVERSAL = (10, 3)
"""The number of CoNLL-U's columns, and the column of universal parts of speech."""
TAG = re.compile(r"O|[BIESLU]-.+")
MOST_CLASSES = 500
"""The largest number of different tags in a file whose name does not suggest tagged words."""


@dataclass(frozen=True)
class ConllShape:
    """The columns of words and tags, counted from 0 (-1: the last), and the scheme of tags that mark spans, or None."""

    word_column: int
    tag_column: int
    scheme: TagScheme | None
    width: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of task."""
        return "word_tagging" if self.scheme is None else "sequence_labelling"


def conll_shape(text: str, *, is_named: bool = False) -> ConllShape | None:
    """The shape of a file of tagged words; None for another text.

    Args:
        text: the text of the file.
        is_named: True if the file's name suggests tagged words.
    """
    sample = "\n".join(text.replace("\r\n", "\n").split("\n", SAMPLE_LINES)[:SAMPLE_LINES])
    if re.search("^#begin document", sample, re.MULTILINE):
        return ConllShape(*ONTONOTES, "brackets")
    try:
        sentences = split_columns(Path(), sample).sentences
    except ValueError:  # if the name suggests tagged words, reading the file reports the wrong line
        return ConllShape(0, -1, "iob2") if is_named else None
    rows = [columns for sentence in sentences for _, columns in sentence.rows]
    width = mode(map(len, rows))
    alike = [columns for columns in rows if len(columns) == width]
    if width < 2 or not any(len(sentence.rows) > 1 for sentence in sentences):
        return None
    word = 1 if is_numbered(sentences) else 0
    for column in (-1, 1):
        tags = [columns[column] for columns in alike]
        spans = [tag for tag in tags if TAG.fullmatch(tag)]
        if word != column and 2 * len(spans) > len(rows) and set(spans) != {"O"}:
            return ConllShape(word, column, scheme_of(_tags(sentences, column)), width)
    is_tagged = is_named or _is_tagged(sentences, alike, word)
    return ConllShape(word, UNIVERSAL[1] if word and width == UNIVERSAL[0] else -1, None, width) if is_tagged else None


def _is_tagged(sentences: Sequence[Sentence], alike: Sequence[Sequence[str]], word: int) -> bool:
    """True if lines in blocks look like words with classes that repeat, rather than like a table or a text."""
    count = sum(len(sentence.rows) for sentence in sentences)
    words, tags = [columns[word] for columns in alike], {columns[-1] for columns in alike}
    return (
        len(sentences) > 1
        and count >= 2 * len(sentences)
        and len(alike) > 0.9 * count
        and sum(" " in one for one in words) < 0.1 * count
        and len(tags) <= min(MOST_CLASSES, count / 2)
        and len(tags) < len(set(words))
    )


def _tags(sentences: Sequence[Sentence], column: int) -> list[list[str]]:
    return [[columns[column] for _, columns in one.rows if len(columns) > max(column, 1)] for one in sentences]


def scheme_of(sentences: Sequence[Sequence[str]]) -> TagScheme:
    """The scheme of the tags of sentences."""
    prefixes = {tag[:2] for tags in sentences for tag in tags}
    if prefixes & {"L-", "U-"}:
        return "bilou"
    if prefixes & {"E-", "S-"}:
        return "bioes"
    for tags in sentences:
        for before, tag in zip(["O", *tags], tags, strict=False):
            if tag.startswith("I-") and before[2:] != tag[2:]:
                return "iob1"  # in iob2 an entity begins with B-
    return "iob2"


Item = TypeVar("Item")

SAMPLE_ROWS = 500
"""The number of rows that the shape is guessed from."""
DELIMITERS = ("\t", ",", ";", "|")
LEAST_CONSISTENT = 0.95
"""The smallest share of a table's rows with the most common number of cells."""


@dataclass(frozen=True)
class TableShape:
    """The shape of a table, and its first rows without the header.

    Attributes:
        delimiter: the character between two cells.
        is_quoted: True if cells are in quotes.
        has_header: True if the first line names the columns.
        names: the columns' names; a number for a column without a unique name.
        rows: rows from the whole file.
        named_twice: the first name that several columns share, or "".
        is_even: whether the first line has as many cells as most.
    """

    delimiter: str
    is_quoted: bool
    has_header: bool
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    named_twice: str = ""
    is_even: bool = True


def encoding_of(data: bytes) -> str:
    """The encoding of a file's bytes: UTF-16 by its mark, UTF-8 if they are valid, else Windows-1252 or Latin-1.

    Raises:
        ValueError: most lines with other bytes than ASCII are UTF-8, but one is not.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if _is(data, "utf-8"):
        return "utf-8"
    lines = {number: line for number, line in enumerate(data.split(b"\n"), 1) if not line.isascii()}
    broken = [number for number, line in lines.items() if not _is(line, "utf-8")]
    if len(broken) < len(lines) / 2:
        raise ValueError(f"line {broken[0]} is not UTF-8, but most lines are. Correct that line.")
    return "cp1252" if _is(data, "cp1252") else "latin-1"


def _is(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def decodable(path: Path) -> tuple[bytes, str]:
    """A text file's bytes and encoding.

    Raises:
        ValueError: it is missing, not a text, or one of its lines has another encoding.
    """
    data = data_bytes(path)
    if data.startswith(b"PK\x03\x04"):
        raise ValueError(f"{path} is an Excel file. Save it as CSV (UTF-8).")
    try:
        return data, encoding_of(data)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def table_shape(text: str) -> TableShape | None:
    """The shape of a table; None for a text that no delimiter splits into one."""
    # The first delimiter that gives a table whose first line is as wide as the others, with quotes if all are closed.
    shapes = (_shape(text, delimiter, is_quoted) for delimiter in DELIMITERS for is_quoted in (True, False))
    found = list(filter(None, shapes))
    best = next((one for one in found if one.is_even), found[0] if found else None)
    return _whole(text, _with_header(best)) if best else None


def spread(items: Sequence[Item], count: int = SAMPLE_ROWS) -> Sequence[Item]:
    """The first items of a sequence, and a sample of the rest: a file may be sorted by class, or alternate classes."""
    half = count // 2
    return [*items[:half], *items[half :: max(1, len(items) // half) | 1]]


def _whole(text: str, shape: TableShape) -> TableShape:
    """The shape with rows from the whole file, if all of it has this shape."""
    rows = _quoted_rows(text, shape.delimiter, None) if shape.is_quoted else _plain_rows(text, shape.delimiter, None)
    kept = [tuple(row) for row in rows[int(shape.has_header) :] if len(row) == len(shape.names)]
    return replace(shape, rows=tuple(spread(kept))) if kept else shape


def _shape(text: str, delimiter: str, is_quoted: bool) -> TableShape | None:
    rows = _quoted_rows(text, delimiter) if is_quoted else _plain_rows(text, delimiter)
    if not rows:
        return None
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width < 2 or count < LEAST_CONSISTENT * len(rows):
        return None
    names = tuple(str(number) for number in range(width))
    kept = tuple(tuple(row) for row in rows if len(row) == width)
    return TableShape(delimiter, is_quoted, False, names, kept, is_even=len(rows[0]) == width)


def _quoted_rows(text: str, delimiter: str, most: int | None = SAMPLE_ROWS) -> list[list[str]]:
    """The first rows, read with quotes; none if quotes stay open, or enclose only some cells between tabs.

    A quote before a word of a tsv file belongs to the text, and two such quotes far apart would swallow rows.
    """
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [row for row in islice(reader, most) if row]
    except csv.Error:
        return []
    plain = _plain_rows(text, delimiter)
    columns = zip(*(plain[1:] or plain), strict=False)  # names may be without quotes
    if delimiter == "\t" and not any(all(map(is_in_quotes, column)) for column in columns):
        return []
    return rows


def _plain_rows(text: str, delimiter: str, most: int | None = SAMPLE_ROWS) -> list[list[str]]:
    lines = text.split("\n") if most is None else text.split("\n", most)[:most]
    return [line.removesuffix("\r").split(delimiter) for line in lines if line.strip()]


def _with_header(shape: TableShape) -> TableShape:
    first, rows = shape.rows[0], shape.rows[1:]
    if not rows or not _is_header(first, rows):
        return shape
    counts = Counter(filter(None, first))
    names = tuple(name if counts[name] == 1 else str(number) for number, name in enumerate(first))
    return replace(
        shape, has_header=True, names=names, rows=rows, named_twice=next((n for n in counts if counts[n] > 1), "")
    )


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if the first row looks like names: known ones, or words above columns of numbers."""
    names = [cell.strip("\ufeff \t").lower() for cell in first]
    if any(len(name) > 60 or is_number(name) for name in names):
        return False
    if {re.sub(r"\d+$", "", name) for name in names} & {*LABEL_NAMES, *TEXT_NAMES}:
        return True
    columns = list(zip(*rows, strict=True))
    if any(not name and not _may_lack_name(column) for name, column in zip(names, columns, strict=True)):
        return False
    if any(name and all(map(is_number, column)) for name, column in zip(names, columns, strict=True)):
        return True
    # A column of classes repeats its values, and its name is not among them.
    repeats = [set(column) for column in columns if len(set(column)) <= len(column) / 2]
    is_short = max(len(name.split()) for name in names) <= 3
    return is_short and any(
        first[number] not in set(column) for number, column in enumerate(columns) if set(column) in repeats
    )


def _may_lack_name(column: Sequence[str]) -> bool:
    """True for a column of row numbers, which pandas writes without a name, and for an empty column."""
    return not any(column) or (all(map(str.isdecimal, column)) and len(set(column)) == len(column))


def is_number(text: str) -> bool:
    """True for a decimal number."""
    return bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text.strip()))


def flattened(row: Row, prefix: str = "") -> dict[str, object]:
    """A row with its nested fields as columns: `meta.stars`, `reviews.0.body` (the first of a list of objects)."""
    flat: dict[str, object] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            flat |= flattened(value[0], f"{name}.0.")
        else:
            flat[name] = value
    return flat
