"""The shape of a file of tagged words: one word a line with its columns, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mode

from meltpoint.tasks.core.conll import Sentence, TagScheme, is_numbered, split_columns
from meltpoint.tasks.core.task import Kind

SAMPLE_LINES = 20_000
"""The lines that the scheme is guessed from; iob1 shows only where entities stand side by side or begin with I-."""
ONTONOTES = (3, 10)
"""The columns of words and names in CoNLL-2012."""
UNIVERSAL = (10, 3)
"""The number of columns of CoNLL-U, and the one of universal parts of speech."""
TAG = re.compile(r"O|[BIESLU]-.+")
MOST_CLASSES = 500
"""The most different tags of words in a file that its name does not say to be of words."""


@dataclass(frozen=True)
class ConllShape:
    """The columns of words and tags, counted from 0 (-1: the last), and the scheme of the tags; None if of no spans."""

    word_column: int
    tag_column: int
    scheme: TagScheme | None
    width: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of task."""
        return "word_tagging" if self.scheme is None else "sequence_labelling"


def conll_shape(text: str, *, is_named: bool = False) -> ConllShape | None:
    """The shape of a text as a file of tagged words; None if it is none.

    Args:
        is_named: whether the file's name says that it is one.
    """
    sample = "\n".join(text.replace("\r\n", "\n").split("\n", SAMPLE_LINES)[:SAMPLE_LINES])
    if re.search("^#begin document", sample, re.MULTILINE):
        return ConllShape(*ONTONOTES, "brackets")
    try:
        sentences = split_columns(Path(), sample).sentences
    except ValueError:  # with a name that says it, reading tells which line is wrong
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
    """True if lines in blocks look like words with classes that repeat, and so like no table or text."""
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
