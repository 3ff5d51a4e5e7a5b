"""Column files of tagged words, one word a line, a blank line between sentences (CoNLL shared tasks)."""

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
    """How the columns of a file are to be read.

    Attributes:
        word, tag: their columns, counted from 0; negative ones count from the end.
        width: how many columns every line has, or None where any width that holds both will do.
        scheme: `iob1` (B- only where two entities of a type touch) is turned into `iob2`; `iob2` stays.
    """

    word: int = 0
    tag: int = -1
    width: int | None = None
    scheme: TagScheme = "iob2"


def iob1_to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities with every first word tagged B-.

    Args:
        tags: IOB1 or IOB2 tags of one sentence, such as `I-PER`, `B-PER`, `O`.
    """
    found: list[str] = []
    before = "O"
    for tag in tags:
        starts = tag.startswith("I-") and (before == "O" or before[2:] != tag[2:])
        found.append(f"B-{tag[2:]}" if starts else tag)
        before = tag
    return found


def read_conll(path: Path, labels: Sequence[str], layout: ConllLayout) -> list[Example]:
    """The sentences of a column file; `group` is the document's number where the file marks documents.

    Columns are divided by spaces or tabs only: a word may hold U+00A0. `-DOCSTART-` lines are no sentences.

    Raises:
        ValueError: a line with a wrong number of columns, a tag that is not a label, or no sentence at all.
    """
    ids = {label: position for position, label in enumerate(labels)}
    examples: list[Example] = []
    document = 0
    tokens: list[str] = []
    tags: list[str] = []
    # A blank line after the last one ends the last sentence too.
    for number, line in enumerate([*read_lines(path), ""], 1):
        columns = _columns(line)
        if columns and columns[0] == DOCUMENT_START:
            document += 1
        elif columns:
            _check(path, number, columns, layout)
            tokens.append(columns[layout.word])
            tags.append(_known(path, number, columns[layout.tag], ids))
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
    wrong = len(columns) != layout.width if layout.width else len(columns) < need
    if wrong:
        wanted = str(layout.width) if layout.width else f"at least {need}"
        raise ValueError(
            f"{path}, line {number}: {some(len(columns), 'column')}, not {wanted}. "
            "Write one word a line with its columns, and a blank line between sentences."
        )


def _known(path: Path, number: int, tag: str, ids: dict[str, int]) -> str:
    # An IOB1 file's I-X may turn into B-X, which is a label wherever I-X is.
    if tag not in ids:
        unknown = registry.unknown(tag, "tag", ids)
        raise ValueError(f"{path}, line {number}, the tag's column: {unknown} Correct the file or the labels.")
    return tag
