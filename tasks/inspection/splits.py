"""Splits of new data: the files and folders that hold them, by their names, and counts over all their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meltpoint.tasks.core import conll
from meltpoint.tasks.core.conll import read_columns
from meltpoint.tasks.core.files import exists, is_file, is_folder, regular, without_suffix
from meltpoint.tasks.core.kinds import TAGS, WORDS
from meltpoint.tasks.core.rows import SPLIT, parts_of, read_records
from meltpoint.tasks.core.task import Split
from meltpoint.tasks.core.user_formats import check_documents, conll_layout, group_of, joined_text, label_spellings
from meltpoint.tasks.core.user_layout import Layout

SPLIT_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("dev", "development", "valid", "validation", "val", "eval", "trial", "testa"), "dev"),
    **dict.fromkeys(("test", "testing", "testb", "tst"), "test"),
}
"""A word of a name, or a value of a split column → the split."""

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".label", *conll.SUFFIXES)
"""Suffixes of the files that are read from a folder; a file that you name may have any suffix."""


@dataclass(frozen=True)
class Place:
    """A file or folder with (a part of) one split.

    Attributes:
        path: the file or folder.
        split: the split in its name; None if there is none.
        is_folder: True for a folder of folders of texts.
    """

    path: Path
    split: Split | None
    is_folder: bool = False


def split_word(name: str) -> Split | None:
    """The split in a name: the only one among its words (`snli_1.0_train.jsonl`, `20news-bydate-test`)."""
    words = re.split(r"[^a-z]+", name.lower())
    found = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return found.pop() if len(found) == 1 else None


def places_of(paths: Sequence[Path]) -> list[Place]:
    """The data places in files and folders, in order.

    Raises:
        ValueError: a path does not exist, or holds nothing that can be read.
    """
    return [place for path in paths for place in _places(path)]


def _places(path: Path) -> Iterator[Place]:
    if is_file(path):
        yield Place(path, _split_of(path))
        return
    if exists(path) and not is_folder(path):
        regular(path)  # it is not: the error names the kind
    if not is_folder(path):
        raise ValueError(f"{path} is missing. Name the files of your data, such as train.csv and dev.csv.")
    if _has_classes(path):
        yield Place(path, _split_of(path), is_folder=True)
        return
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    splits = [one for one in inside if one.is_dir() and split_word(one.name) and _has_classes(one)]
    files = sorted(one for one in path.rglob("*") if one.is_file() and _suffix(one) in SUFFIXES)
    if not splits and not files:
        raise ValueError(
            f"{path} holds no files of examples. Name the files themselves, such as {path.name}/train.csv."
        )
    for one in splits or files:
        yield from _places(one)


def _has_classes(folder: Path) -> bool:
    """True if a folder holds one split, as a folder of texts for each class."""
    folders = [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]
    return bool(folders) and all(not split_word(one.name) and _holds_texts(one) for one in folders)


def _holds_texts(folder: Path) -> bool:
    """True if each file of a folder may be a text."""
    files = [one for one in folder.iterdir() if one.is_file() and not one.name.startswith(".")]
    return bool(files) and all(_suffix(one) == ".txt" or _suffix(one) not in SUFFIXES for one in files)


def _suffix(path: Path) -> str:
    return without_suffix(path).suffix.lower()


def _split_of(path: Path) -> Split | None:
    """The split in a path's name, or otherwise in the name of one of its folders."""
    folders = (SPLIT_WORDS.get(part.lower()) for part in reversed(path.parts[:-1]))
    return split_word(path.name) or next((split for split in folders if split is not None), None)


def by_split(places: Sequence[Place]) -> tuple[dict[Split, list[Place]], list[str]]:
    """The places of each split, and remarks on places whose names have no split: the first is train, the others test.

    Test is the safe guess: it stays locked.
    """
    found: dict[Split, list[Place]] = {}
    remarks = []
    for place in places:
        if place.split is not None:
            found.setdefault(place.split, []).append(place)
    for place in (place for place in places if place.split is None):
        split: Split = "test" if "train" in found else "train"
        found.setdefault(split, []).append(place)
        if len(places) > 1:
            remarks.append(f"{place.path.name}: its name has no split; read as {split}")
    if "train" not in found:
        names = ", ".join(place.path.name for place in places)
        raise ValueError(f"None of {names} is the training split. Name that file first, such as train.csv.")
    return {split: found[split] for split in ("train", "dev", "test") if split in found}, remarks


Texts = tuple[str, ...]
Counted = tuple[str, Texts, str | list[str]]
"""(the value of the split column or "", texts or words, label or tags)."""


@dataclass
class SplitCounts:
    """Counts of one split.

    Attributes:
        examples: the number of rows with words.
        labels: label as spelled → rows (for tags: words).
        lengths: number of words → texts; both texts of a pair count together.
        empty: rows with an empty text.
        texts: texts → their labels as spelled, each once.
        repeated: rows with the same texts as an earlier row.
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
        """The number of words in the longest text."""
        return max(self.lengths, default=0)

    def percentile(self, part: float) -> int:
        """The number of words that a share (0 to 1) of the texts does not exceed."""
        seen, total = 0, self.lengths.total()
        for length in sorted(self.lengths):
            seen += self.lengths[length]
            if seen >= part * total:
                return length
        return 0


def counted_rows(path: Path, layout: Layout) -> Iterator[Counted]:
    """The rows of a file, for counting.

    Raises:
        ValueError: a broken row; the line is named.
    """
    if layout.format == "conll":
        yield from _conll_rows(path, layout)
        return
    for record in read_records(path, layout):
        split = record.cell(SPLIT) if layout.split_column else ""
        group_of(record, layout)  # refuses an empty group
        if layout.of_kind.labels_words:
            yield split, parts_of(record, WORDS), list(parts_of(record, TAGS))
        else:
            spelled = label_spellings(record, layout)
            texts = tuple(joined_text(record, key, layout) for key in layout.texts)
            yield split, texts, list(spelled) if layout.of_kind.has_labels else spelled[0]


def _conll_rows(path: Path, layout: Layout) -> Iterator[Counted]:
    shape = conll_layout(layout)
    sentences = read_columns(path, shape).sentences
    check_documents(path, (one.document for one in sentences), layout)
    for sentence in sentences:
        yield "", tuple(sentence.column(shape.word)), sentence.column(shape.tag)


def shared_texts(first: SplitCounts, second: SplitCounts) -> int:
    """The number of different texts that two splits share."""
    small, large = sorted((first.texts, second.texts), key=len)
    return sum(texts in large for texts in small)
