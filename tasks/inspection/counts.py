"""Counts over all rows of each split: labels, lengths, empty texts, and texts that occur twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from meltpoint.tasks.core.conll import read_columns
from meltpoint.tasks.core.kinds import LABEL
from meltpoint.tasks.core.readers import Record
from meltpoint.tasks.core.rows import SPLIT, numbered_rows, read_records, value_at, with_labels
from meltpoint.tasks.core.user_formats import check_documents, conll_layout, group_of, joined_text, label_spellings
from meltpoint.tasks.core.user_layout import UserFileLayout

Texts = tuple[str, ...]
Counted = tuple[str, Texts, str | list[str]]
"""(the value of the split column or "", texts or words, label or tags)."""


@dataclass
class SplitCounts:
    """What one split holds.

    Attributes:
        examples: its rows, without those that have no words.
        labels: label (or tag, by words) as spelled → rows.
        lengths: number of words → texts; of a pair, of both together.
        empty: rows with an empty text.
        texts: texts → their labels as spelled, each once.
        repeated: rows whose texts are those of an earlier row.
        contradicting: texts that have several labels.
    """

    examples: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    empty: int = 0
    texts: dict[Texts, str] = field(default_factory=dict)
    repeated: int = 0
    contradicting: set[Texts] = field(default_factory=set)
    _different: int = 0

    def add(self, texts: Texts, label: str | list[str], *, is_tagged: bool) -> None:
        """Count a row."""
        self.examples += 1
        self.lengths[len(texts) if is_tagged else sum(len(text.split()) for text in texts)] += 1
        if isinstance(label, list):
            self.labels.update(label)
        else:
            self.labels[label] += 1
        if not texts or (not is_tagged and not all(texts)):
            self.empty += 1
            return
        shown = label if isinstance(label, str) else " ".join(label)
        known = self.texts.setdefault(texts, shown)
        self.repeated += len(self.texts) == self._different
        self._different = len(self.texts)
        if known != shown:
            self.contradicting.add(texts)

    def longest(self) -> int:
        """The most words of a text."""
        return max(self.lengths, default=0)

    def percentile(self, part: float) -> int:
        """The number of words that the part (0 to 1) of the texts does not exceed."""
        seen, total = 0, self.lengths.total()
        for length in sorted(self.lengths):
            seen += self.lengths[length]
            if seen >= part * total:
                return length
        return 0


def counted_rows(path: Path, layout: UserFileLayout, label_file: Path | None = None) -> Iterator[Counted]:
    """The rows of a file as they are counted.

    Raises:
        ValueError: a broken row; the line is named.
    """
    if layout.format == "conll":
        yield from _conll_rows(path, layout)
    elif layout.of_kind.labels_words:
        words, tags = (layout.columns[key][0] for key in ("words", "tags"))
        for line, row in numbered_rows(path, layout):
            split = str(value_at(path, line, row, layout.split_column)) if layout.split_column else ""
            yield split, tuple(_items(value_at(path, line, row, words))), _items(value_at(path, line, row, tags))
    else:
        records = read_records(path, layout)
        pairs = with_labels(records, label_file, layout.encoding) if label_file else ((one, one) for one in records)
        for record, label in pairs:
            texts = tuple(joined_text(record, key, layout) for key in layout.texts())
            group_of(record, layout)  # an empty one is refused
            yield record.cell(SPLIT) if layout.split_column else "", texts, _label(label, layout)


def _label(record: Record, layout: UserFileLayout) -> str | list[str]:
    return list(label_spellings(record, layout)) if layout.of_kind.has_labels else record.cell(LABEL)


def _items(value: object) -> list[str]:
    return [part if isinstance(part, str) else str(part) for part in value] if isinstance(value, list) else []


def _conll_rows(path: Path, layout: UserFileLayout) -> Iterator[Counted]:
    shape = conll_layout(layout)
    sentences = read_columns(path, shape).sentences
    check_documents(path, (one.document for one in sentences), layout)
    for sentence in sentences:
        yield "", tuple(sentence.column(shape.word)), sentence.column(shape.tag)


def shared_texts(first: SplitCounts, second: SplitCounts) -> int:
    """The number of different texts that two splits have both."""
    small, large = sorted((first.texts, second.texts), key=len)
    return sum(texts in large for texts in small)
