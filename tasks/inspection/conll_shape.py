"""The shape of a file of tagged words: one word a line with its columns, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meltpoint.tasks.core.conll import COMMENTS, DOCUMENT_START, TagScheme

SAMPLE_LINES = 20_000
"""The lines that the scheme is guessed from; iob1 shows only where entities stand side by side or begin with I-."""
ONTONOTES = (3, 10)
"""The columns of words and names in CoNLL-2012."""
TAG = re.compile(r"O|[BIES]-\S+")


@dataclass(frozen=True)
class ConllShape:
    """The columns of words and tags, counted from 0 (-1: the last), and the scheme of the tags."""

    word_column: int
    tag_column: int
    scheme: TagScheme


def conll_shape(text: str) -> ConllShape | None:
    """The shape of a text as a file of tagged words; None if it is none."""
    lines = text.split("\n", SAMPLE_LINES)[:SAMPLE_LINES]
    if any(line.startswith("#begin document") for line in lines[:100]):
        return ConllShape(*ONTONOTES, "brackets")
    sentences = [sentence for sentence in split_sentences(lines) if sentence]
    if not sentences or not any(len(sentence) > 1 for sentence in sentences):
        return None
    rows = [columns for sentence in sentences for columns in sentence]
    for column in (-1, 1):
        tags = [row[column] if len(row) > 1 else "" for row in rows]
        if all(map(TAG.fullmatch, tags)) and any(tag != "O" for tag in tags):
            return ConllShape(0, column, _scheme([[row[column] for row in sentence] for sentence in sentences]))
    return None


def split_sentences(lines: Sequence[str]) -> Iterator[list[list[str]]]:
    """The sentences of a column file: for each word its columns."""
    sentence: list[list[str]] = []
    for line in lines:
        columns = line.split()
        if columns and (columns[0] == DOCUMENT_START or columns[:2] in COMMENTS):
            continue
        if columns:
            sentence.append(columns)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _scheme(sentences: Sequence[Sequence[str]]) -> TagScheme:
    if any(tag[0] in "ES" for tags in sentences for tag in tags):
        return "bioes"
    for tags in sentences:
        for before, tag in zip(["O", *tags], tags, strict=False):
            if tag.startswith("I-") and before[2:] != tag[2:]:
                return "iob1"  # in iob2 an entity begins with B-
    return "iob2"
