"""CoNLL column files: one tagged word per line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.readers import read_lines
from meltpoint.tasks.core.task import Example

TagScheme = Literal["iob1", "iob2"]

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class ConllLayout:
    """Column layout of a CoNLL file.

    Attributes:
        word, tag: the indices of their columns, from 0; negative ones count from the end.
        width: the number of columns of every line, or None to accept any width that has both columns.
        scheme: `iob1` (B- only between adjacent entities of one type) is converted to `iob2`; `iob2` is kept.
    """

    word: int = 0
    tag: int = -1
    width: int | None = None
    scheme: TagScheme = "iob2"


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


def read_conll(path: Path, labels: Sequence[str], layout: ConllLayout) -> list[Example]:
    """Read the sentences of a column file; `group` is the document's number if the file marks documents.

    Columns are separated by spaces or tabs only, since a word may contain U+00A0. `-DOCSTART-` lines are skipped.

    Raises:
        ValueError: a line with a wrong number of columns, an unknown tag, or a file without sentences.
    """
    ids = {label: position for position, label in enumerate(labels)}
    examples: list[Example] = []
    document = 0
    tokens: list[str] = []
    tags: list[str] = []
    # The appended blank line ends the last sentence.
    for number, line in enumerate([*read_lines(path), ""], 1):
        columns = _columns(line)
        if columns and columns[0] == DOCUMENT_START:
            document += 1
        elif columns:
            _check(path, number, columns, layout)
            tokens.append(columns[layout.word])
            tags.append(_checked_tag(path, number, columns[layout.tag], ids))
        elif tokens:
            scheme_tags = iob1_to_iob2(tags) if layout.scheme == "iob1" else tags
            label = tuple(ids[tag] for tag in scheme_tags)
            group = str(document) if document else ""
            examples.append(Example(str(len(examples)), words=tuple(tokens), label=label, group=group))
            tokens, tags = [], []
    if not examples:
        raise ValueError(f"{path} holds no sentence. Replace it with the complete file.")
    return examples


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


def _checked_tag(path: Path, number: int, tag: str, ids: dict[str, int]) -> str:
    # Checked before the conversion to IOB2: I-X may become B-X, and a label set with I-X has B-X too.
    if tag not in ids:
        unknown = registry.unknown(tag, "tag", ids)
        raise ValueError(f"{path}, line {number}, the tag's column: {unknown} Correct the file or the labels.")
    return tag
