"""CoNLL column files: one tagged word per line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.readers import read_lines
from meltpoint.tasks.core.task import Example

TagScheme = Literal["iob1", "iob2", "bioes", "brackets"]

DOCUMENT_START = "-DOCSTART-"
COMMENTS = (["#begin", "document"], ["#end", "document"])
"""The first words of the lines around a document in OntoNotes' files (CoNLL-2012)."""


@dataclass(frozen=True)
class ConllLayout:
    """Column layout of a CoNLL file.

    Attributes:
        word, tag: the indices of their columns, from 0; negative ones count from the end.
        width: the number of columns of every line, or None to accept any width that has both columns.
        scheme: `iob2` is kept; the others become it: `iob1` (B- only between adjacent entities of one type), `bioes`
            (E- and S- at the last word), and `brackets` (CoNLL-2012: `(ORG*`, `*`, `*)`).
        encoding: the encoding that a task file declares; see `read_text`.
    """

    word: int = 0
    tag: int = -1
    width: int | None = None
    scheme: TagScheme = "iob2"
    encoding: str | None = None


def to_iob2(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Convert the tags of one sentence to IOB2.

    Raises:
        ValueError: a tag that the scheme does not have; without the file.
    """
    if scheme == "iob1":
        return iob1_to_iob2(tags)
    if scheme == "bioes":
        return [{"S": "B", "E": "I"}.get(tag[0], tag[0]) + tag[1:] if tag[1:2] == "-" else tag for tag in tags]
    return _brackets_to_iob2(tags) if scheme == "brackets" else list(tags)


_BRACKETED = re.compile(r"(?:\((?P<type>[^()*]+))?\*?(?P<end>\))?")


def _brackets_to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert CoNLL-2012's brackets: `(ORG*` opens an entity, `*)` closes it, `(ORG)` is one of one word."""
    converted, inside = [], ""
    for tag in tags:
        match = _BRACKETED.fullmatch(tag)
        if not tag or match is None or (inside and match["type"]) or (match["end"] and not (inside or match["type"])):
            raise ValueError(f"the tag '{tag}' opens or closes no entity. Write (X*, *, *) or (X).")
        inside_before, inside = inside, match["type"] or inside
        converted.append(f"{'I' if inside_before else 'B'}-{inside}" if inside else "O")
        inside = "" if match["end"] else inside
    return converted


def iob1_to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags to IOB2: the first word of every entity is tagged B-.

    Args:
        tags: IOB1 or IOB2 tags of one sentence, such as `I-PER`, `B-PER`, `O`.
    """
    converted: list[str] = []
    previous = "O"
    for tag in tags:
        starts = tag.startswith("I-") and (previous == "O" or previous[2:] != tag[2:])
        converted.append(f"B-{tag[2:]}" if starts else tag)
        previous = tag
    return converted


def read_conll(path: Path, labels: Sequence[str] | Mapping[str, int], layout: ConllLayout) -> list[Example]:
    """Read the sentences of a column file; `group` is the document's number if the file marks documents.

    `labels` are the tags in the order of their ids, or tag → id.
    Columns are separated by spaces or tabs only, since a word may contain U+00A0. `-DOCSTART-` lines are skipped.

    Raises:
        ValueError: a line with a wrong number of columns, an unknown tag, or a file without sentences.
    """
    ids = labels if isinstance(labels, Mapping) else {label: position for position, label in enumerate(labels)}
    examples: list[Example] = []
    document = 0
    tokens: list[str] = []
    tags: list[str] = []
    # The appended blank line ends the last sentence.
    for number, line in enumerate([*read_lines(path, encoding=layout.encoding), ""], 1):
        columns = _columns(line)
        if columns and columns[0] == DOCUMENT_START:
            document += 1
        elif columns[:2] in COMMENTS:
            document += columns[0] == "#begin"
        elif columns:
            _check(path, number, columns, layout)
            tokens.append(columns[layout.word])
            is_checked_later = layout.scheme in {"bioes", "brackets"}
            tags.append(
                columns[layout.tag] if is_checked_later else _checked_tag(path, number, columns[layout.tag], ids)
            )
        elif tokens:
            label = _label(path, number - len(tokens), tags, layout.scheme, ids)
            group = str(document) if document else ""
            examples.append(Example(str(len(examples)), words=tuple(tokens), label=label, group=group))
            tokens, tags = [], []
    if not examples:
        raise ValueError(f"{path} holds no sentence. Replace it with the complete file.")
    return examples


def _label(path: Path, line: int, tags: Sequence[str], scheme: TagScheme, ids: Mapping[str, int]) -> tuple[int, ...]:
    """The label ids of a sentence that begins on a line."""
    try:
        converted = to_iob2(tags, scheme)
    except ValueError as error:
        raise ValueError(f"{path}, the sentence from line {line}: {error}") from None
    return tuple(ids[_checked_tag(path, line + offset, tag, ids)] for offset, tag in enumerate(converted))


def _columns(line: str) -> list[str]:
    return [column for column in re.split("[ \t]", line) if column]


def _check(path: Path, number: int, columns: Sequence[str], layout: ConllLayout) -> None:
    need = max(position + 1 if position >= 0 else -position for position in (layout.word, layout.tag))
    is_wrong = len(columns) != layout.width if layout.width else len(columns) < need
    if is_wrong:
        expected = str(layout.width) if layout.width else f"at least {need}"
        raise ValueError(
            f"{path}, line {number}: {some(len(columns), 'column')}, not {expected}. "
            "Write one word per line with its columns, and a blank line between sentences."
        )


def _checked_tag(path: Path, number: int, tag: str, ids: Mapping[str, int]) -> str:
    # Checked before the conversion to IOB2: I-X may become B-X, and a label set with I-X has B-X too.
    if tag not in ids:
        unknown = registry.unknown(tag, "tag", ids)
        raise ValueError(f"{path}, line {number}, the tag's column: {unknown} Correct the file or the labels.")
    return tag
