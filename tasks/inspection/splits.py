"""Splits of new data: the files that hold them, by their names, and counts over all their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meltpoint.tasks.core.conll import read_columns
from meltpoint.tasks.core.files import is_file
from meltpoint.tasks.core.kinds import TAGS, WORDS
from meltpoint.tasks.core.rows import SPLIT, parts_of, read_records
from meltpoint.tasks.core.task import SPLITS, Split
from meltpoint.tasks.core.user_formats import check_documents, conll_layout, group_of, joined_text, label_spellings
from meltpoint.tasks.core.user_layout import Layout

SPLIT_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("dev", "development", "valid", "validation", "val", "eval", "trial", "testa"), "dev"),
    **dict.fromkeys(("test", "testing", "testb", "tst"), "test"),
}
"""A word of a name, or a value of a split column → the split."""


def split_word(name: str) -> Split | None:
    """The split in a name: the only one among its words (`snli_1.0_train.jsonl`, `20news-bydate-test`)."""
    words = re.split(r"[^a-z]+", name.lower())
    found = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return found.pop() if len(found) == 1 else None


def by_split(paths: Sequence[Path]) -> tuple[dict[Split, list[Path]], list[str]]:
    """The files of each split, and remarks on names without a split: the first such file is train, the others test.

    A split is named by the file, or else by one of its folders. Test is the safe guess: it stays locked.

    Raises:
        ValueError: a file is missing, or none is the training split.
    """
    for path in paths:
        check_file(path)
    found: dict[Split, list[Path]] = {}
    remarks = []
    for path in sorted(paths, key=lambda path: _split_of(path) is None):  # the files with a split come first
        split = _split_of(path)
        if split is None:
            split = "test" if "train" in found else "train"
            remarks += [f"{path.name}: its name has no split; read as {split}"] if len(paths) > 1 else []
        found.setdefault(split, []).append(path)
    if "train" not in found:
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"None of {names} is the training split. Name that file first, such as train.csv.")
    return {split: found[split] for split in SPLITS if split in found}, remarks


def check_file(path: Path) -> None:
    """Check that a file exists.

    Raises:
        ValueError: it is missing, or a folder.
    """
    if not is_file(path):
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'missing'}. Name a file, such as train.csv.")


def _split_of(path: Path) -> Split | None:
    folders = (SPLIT_WORDS.get(part.lower()) for part in reversed(path.parts[:-1]))
    return split_word(path.name) or next((split for split in folders if split is not None), None)


@dataclass
class SplitCounts:
    """Counts of one split.

    Attributes:
        examples: the number of rows.
        labels: label as spelled → rows (for tags: words); `labels_of_empty` those with an empty text.
        empty: rows with an empty text.
        unlabelled: rows with a text whose label is none.
    """

    examples: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    labels_of_empty: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    unlabelled: int = 0

    @property
    def kept(self) -> int:
        """The number of rows that the task reads."""
        return self.examples - self.empty - self.unlabelled


Counted = tuple[str, tuple[str, ...], list[str]]
"""(the value of the split column or "", texts or words, labels or tags)."""


def counted_rows(path: Path, layout: Layout) -> Iterator[Counted]:
    """The rows of a file, for counting.

    Raises:
        ValueError: a broken row; the line is named.
    """
    if layout.format == "conll":
        shape = conll_layout(layout)
        sentences = read_columns(path, shape).sentences
        check_documents(path, (one.document for one in sentences), layout)
        yield from (("", tuple(one.column(shape.word)), one.column(shape.tag)) for one in sentences)
        return
    for record in read_records(path, layout):
        split = record.cell(SPLIT) if layout.split_column else ""
        group_of(record, layout)  # refuses an empty group
        if layout.of_kind.labels_words:
            yield split, parts_of(record, WORDS), list(parts_of(record, TAGS))
        else:
            texts = tuple(joined_text(record, key, layout) for key in layout.texts)
            yield split, texts, list(label_spellings(record, layout))
