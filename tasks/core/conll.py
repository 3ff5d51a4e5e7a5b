"""CoNLL column files: one word per line with its columns, a blank line between sentences.

`read_columns` reads them for training, `new-task` and `predict`; docs/tasks.md states its rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.readers import read_text, with_line_feeds
from meltpoint.tasks.core.task import Example, ReadExamples
from meltpoint.tasks.core.wording import some

TagScheme = Literal["iob1", "iob2", "bioes", "bilou", "brackets"]

SUFFIXES = (".conll", ".conllu", ".gold_conll", ".iob", ".iob2", ".bio", ".bioes", ".bilou")
"""Suffixes of column files, for commands without a given format."""
DOCUMENT_START = "-DOCSTART-"
_BOUNDARY = re.compile(r"#(begin|end) document\b|# newdoc\b(?!\t)")
"""Lines that mark documents: in OntoNotes' files (CoNLL-2012), and in CoNLL-U."""
_COMMENT = re.compile(r"#[ \t]*[^\s=]+ = |# newpar\b(?!\t)")
"""CoNLL-U's comments: `# sent_id = 0`."""
_NOT_A_WORD = re.compile(r"\d+[-.]\d+")
"""CoNLL-U's numbers for a multi-word line (1-2) and for an empty node (1.1)."""

Row = tuple[int, tuple[str, ...]]
"""The number of a line, and its columns."""


@dataclass(frozen=True)
class ConllLayout:
    """Column layout of a CoNLL file.

    Attributes:
        word, tag: the indices of their columns, from 0; negative ones count from the end.
        width: the number of columns of every line, or None to accept any width that has both columns.
        scheme: `iob2` is kept; the others are converted to it: `iob1` (B- only between adjacent entities of one type),
            `bioes` (E- and S- at the last word), `bilou` (the same with L- and U-), and `brackets` (CoNLL-2012:
            `(ORG*`, `*`, `*)`). None if the tags label words, not spans.
        encoding: the encoding that a task file declares; see `read_text`.
        needs_tag: False if only the words are read, so that a file may lack the tags.
    """

    word: int = 0
    tag: int = -1
    width: int | None = None
    scheme: TagScheme | None = "iob2"
    encoding: str | None = None
    needs_tag: bool = True


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence with all their columns; `document` is the number of document marks before it."""

    rows: Sequence[Row]
    document: int = 0

    def column(self, index: int) -> list[str]:
        """A column, word by word."""
        return [columns[index] for _, columns in self.rows]


@dataclass(frozen=True)
class ColumnFile:
    """The sentences of a column file, and remarks on lines that are not words."""

    sentences: Sequence[Sentence]
    notes: tuple[str, ...] = ()


def to_iob2(tags: Sequence[str], scheme: TagScheme | None) -> list[str]:
    """Convert the tags of one sentence to IOB2.

    Raises:
        ValueError: a tag that the scheme does not have; the message does not name the file.
    """
    if scheme in ("iob1", "bioes", "bilou"):
        return [f"B-{tag[2:]}" if starts else _inside(tag) for tag, starts in zip(tags, _starts(tags), strict=True)]
    return _brackets_to_iob2(tags) if scheme == "brackets" else list(tags)


ENTITY = ("B-", "I-", "E-", "S-", "L-", "U-")
"""The beginnings of an entity's tags in IOB1, IOB2, BIOES and BILOU."""


def _starts(tags: Sequence[str]) -> Iterator[bool]:
    """True for each first word of an entity, as conlleval and seqeval see it in IOB1, IOB2, BIOES and BILOU."""
    previous = "O"
    for tag in tags:
        if tag == "O":
            yield False
            previous = tag
            continue
        follows = tag[:2] in ("I-", "E-", "L-") and previous[:2] in ("B-", "I-") and previous[2:] == tag[2:]
        yield tag[:2] in ENTITY and not follows
        previous = tag


def _inside(tag: str) -> str:
    return f"I-{tag[2:]}" if tag[:2] in ("E-", "L-") else tag


_BRACKETED = re.compile(r"(?:\((?P<type>[^()*]+))?\*?(?P<end>\))?")


def _brackets_to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert CoNLL-2012's brackets: `(ORG*` opens an entity, `*)` closes it, `(ORG)` is an entity of one word."""
    converted, inside = [], ""
    for tag in tags:
        match = _BRACKETED.fullmatch(tag)
        if not tag or match is None or (inside and match["type"]) or (match["end"] and not (inside or match["type"])):
            raise ValueError(f"the tag '{tag}' opens or closes no entity. Write (X*, *, *) or (X).")
        inside_before, inside = inside, match["type"] or inside
        converted.append(f"{'I' if inside_before else 'B'}-{inside}" if inside else "O")
        inside = "" if match["end"] else inside
    return converted


def read_conll(path: Path, labels: Sequence[str] | Mapping[str, int], layout: ConllLayout) -> ReadExamples:
    """Read the sentences of a column file; `group` is the document's number if the file marks documents.

    `labels` are the tags in the order of their ids, or tag → id.

    Raises:
        ValueError: a line with a wrong number of columns, an unknown tag, or a file without sentences.
    """
    ids = labels if isinstance(labels, Mapping) else {label: position for position, label in enumerate(labels)}
    read = read_columns(path, layout)
    examples: list[Example] = []
    orphans = 0
    for sentence in read.sentences:
        tags = sentence.column(layout.tag)
        label = _label(path, [line for line, _ in sentence.rows], tags, layout.scheme, ids)
        group = str(sentence.document) if sentence.document else ""
        words = tuple(sentence.column(layout.word))
        examples.append(Example(str(len(examples)), words=words, label=label, group=group))
        if layout.scheme == "iob2":
            orphans += sum(tag[0] == "I" and starts for tag, starts in zip(tags, _starts(tags), strict=True))
    seen = f"{some(orphans, 'entity')} without B- at the first word, as in IOB1; tag_scheme: iob1 converts them"
    return ReadExamples(examples, (*read.notes, seen) if orphans else read.notes)


def _label(
    path: Path, lines: Sequence[int], tags: Sequence[str], scheme: TagScheme | None, ids: Mapping[str, int]
) -> tuple[int, ...]:
    """The label ids of a sentence's words; `lines` are their line numbers."""
    # Checked before the conversion from IOB1: I-X may become B-X, and a label set with I-X has B-X too.
    if scheme == "iob1":
        _ids(path, lines, tags, ids)
    try:
        converted = to_iob2(tags, scheme)
    except ValueError as error:
        raise ValueError(f"{path}, the sentence from line {lines[0]}: {error}") from None
    return _ids(path, lines, converted, ids)


def _ids(path: Path, lines: Sequence[int], tags: Sequence[str], ids: Mapping[str, int]) -> tuple[int, ...]:
    try:
        return tuple([ids[tag] for tag in tags])
    except KeyError:
        line, tag = next((line, tag) for line, tag in zip(lines, tags, strict=True) if tag not in ids)
    unknown = registry.unknown(tag, "tag", ids)
    scheme = OTHER_SCHEMES.get(tag[:2]) if f"B-{tag[2:]}" in ids else None
    remedy = f"Set tag_scheme: {scheme}." if scheme else "Correct the file or the labels."
    raise ValueError(f"{path}, line {line}, the tag's column: {unknown} {remedy}")


OTHER_SCHEMES: Mapping[str, TagScheme] = {"E-": "bioes", "S-": "bioes", "L-": "bilou", "U-": "bilou"}
"""A prefix of tags that IOB2 does not have → its scheme."""


def read_columns(path: Path, layout: ConllLayout) -> ColumnFile:
    """Read the sentences of a column file with all columns, and check the columns of words and tags.

    Raises:
        ValueError: a line with other columns than the rest, an ambiguous line, or a file without sentences.
    """
    read = split_columns(path, read_text(path, layout.encoding))
    if layout.word != 0:
        read = _without_nodes(read)
    elif is_numbered(read.sentences):
        raise ValueError(
            f"{path}: the word column has CoNLL-U's numbers 1, 2, 3 …. Name the column of the words, usually 1."
        )
    _check_widths(path, read.sentences, layout)
    return read


def split_columns(path: Path, text: str) -> ColumnFile:
    """Split a text into sentences of words with all their columns.

    If a line with a word has a tab, tabs separate the columns of the whole file, and a word or tag may contain a space;
    otherwise spaces separate them. Tabs and spaces at the end of a line are ignored. Other white space, such as U+00A0,
    is part of a word.

    Raises:
        ValueError: a line that is neither a word nor a comment, or could be either.
    """
    lines = with_line_feeds(text).replace("\r\n", "\n").removesuffix("\n").split("\n")
    has_hash = "#" in text and any(line.startswith("#") for line in lines)
    plain = _word_lines(lines) if has_hash or "\t" in text else []
    split = _split_at_tabs if any("\t" in line.rstrip(" \t") for line in plain) else _split_at_spaces
    others = [split(line) for line in plain] if has_hash else []
    widths = set(map(len, others))
    behind = {column for columns in others for column in columns[1:]}
    sentences: list[Sentence] = []
    rows: list[Row] = []
    document, comments = 0, 0
    # The appended blank line ends the last sentence.
    for number, line in enumerate([*lines, ""], 1):
        if not line or line.isspace() or _is_boundary(line):
            sentences += [Sentence(rows, document)] if rows else []
            rows = []
            document += _is_boundary(line) and not line.startswith("#end")
        elif line[0] != "#":
            rows.append((number, split(line)))
        elif not _COMMENT.match(line):
            columns = split(line)
            if len(columns) in widths:
                rows.append((number, columns))
            # If all its columns also follow other words, the line may be a word that lacks columns.
            elif rows or not re.match(r"#[ \t]+\S", line) or set(columns[1:]) <= behind:
                raise ValueError(
                    f"{path}, line {number}: neither a word with the columns of the others nor clearly a comment. "
                    "Complete its columns, or write the comment before the sentence as '# name = text'."
                )
            else:
                comments += 1
    if not sentences:
        raise ValueError(f"{path} holds no sentence. Replace it with the complete file.")
    return ColumnFile(sentences, (f"{some(comments, 'line')} with # read as a comment",) if comments else ())


def _word_lines(lines: Iterable[str]) -> list[str]:
    """The lines that are certainly words; lines with a # only if there are no others."""
    maybe = [line for line in lines if line.strip() and not _is_boundary(line) and not _COMMENT.match(line)]
    return [line for line in maybe if line[0] != "#"] or maybe


def _split_at_tabs(line: str) -> tuple[str, ...]:
    return tuple([column.strip(" ") for column in line.rstrip(" \t").split("\t")])


def _split_at_spaces(line: str) -> tuple[str, ...]:
    columns = line.rstrip(" \t").split(" ")
    return tuple([column for column in columns if column] if "" in columns else columns)


def _is_boundary(line: str) -> bool:
    if line[:1] == "#":
        return _BOUNDARY.match(line) is not None
    return DOCUMENT_START in line and DOCUMENT_START in line.split()


def _check_widths(path: Path, sentences: Sequence[Sentence], layout: ConllLayout) -> None:
    """Refuse lines whose number of columns differs from the file's, and lines without a word or a tag.

    If both columns are counted from the start, each sentence may have its own number of columns, as in CoNLL-2012.
    """
    own = [layout.word, layout.tag] if layout.needs_tag else [layout.word]
    need = max(len(own), *(position + 1 if position >= 0 else -position for position in own))
    varies = layout.word >= 0 and layout.tag >= 0
    first = sentences[0].rows[0]
    for sentence in sentences:
        line, columns = sentence.rows[0] if varies else first
        width = layout.width or len(columns)
        if width < need:
            raise _wrong_width(path, line, columns, f"at least {need}")
        if len({position % width for position in own}) < len(own):
            column = layout.word % width
            raise ValueError(f"{path}, line {line}: words and tags are both column {column}. Correct columns.")
        for number, columns in sentence.rows:
            if len(columns) != width:
                raise _wrong_width(path, number, columns, f"{width}" if layout.width else f"{width} as in line {line}")
            if "" in columns and not all(columns[position] for position in own):
                name = "tag" if columns[layout.word] else "word"
                raise ValueError(f"{path}, line {number}: the {name} is empty. Fill it in, or remove the line.")


def _wrong_width(path: Path, number: int, columns: Sequence[str], expected: str) -> ValueError:
    has_no_tab = len(columns) == 1 and " " in columns[0]
    hint = "Tabs separate the columns of this file, and the line has none. " if has_no_tab else ""
    return ValueError(
        f"{path}, line {number}: {some(len(columns), 'column')}, not {expected}. {hint}"
        "Write one word per line with its columns, and a blank line between sentences."
    )


def is_numbered(sentences: Sequence[Sentence]) -> bool:
    """True if the first column numbers the words of each sentence, as CoNLL-U's does, with words and tags after it."""
    return any(len(sentence.rows) > 1 for sentence in sentences) and all(
        len(sentence.rows[0][1]) > 2 and _numbers(sentence) is not None for sentence in sentences
    )


def _numbers(sentence: Sentence) -> list[Row] | None:
    """The words that the first column numbers 1, 2, 3 …; None if it does not number them."""
    words = [row for row in sentence.rows if not _NOT_A_WORD.fullmatch(row[1][0])]
    counted = all(columns[0] == str(number) for number, (_, columns) in enumerate(words, 1))
    return words if words and counted else None


def _without_nodes(read: ColumnFile) -> ColumnFile:
    """The sentences without CoNLL-U's multi-word lines and empty nodes; a multi-word token's words follow it."""
    sentences = [replace(one, rows=words) if (words := _numbers(one)) else one for one in read.sentences]
    left = sum(len(one.rows) for one in read.sentences) - sum(len(one.rows) for one in sentences)
    notes = (f"{some(left, 'line')} of multi-word tokens and empty nodes (1-2, 1.1) left out",)
    return ColumnFile(sentences, (*read.notes, *notes) if left else read.notes)
