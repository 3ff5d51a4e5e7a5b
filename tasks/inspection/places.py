"""The splits that files and folders hold, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meltpoint.tasks.core import conll
from meltpoint.tasks.core.files import exists, is_file, is_folder, regular, without_suffix
from meltpoint.tasks.core.task import Split

SPLIT_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("dev", "development", "valid", "validation", "val", "eval", "trial", "testa"), "dev"),
    **dict.fromkeys(("test", "testing", "testb", "tst"), "test"),
}
"""Words of a name, or values of a split column → the split."""

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".label", *conll.SUFFIXES)
"""The suffixes of the files of a folder that is asked for; a file that is named may have any."""

PlaceForm = Literal["file", "folders", "datasets"]


@dataclass(frozen=True)
class Place:
    """A file or folder with (a part of) one split.

    Attributes:
        path: where it is.
        form: a file, a folder of folders of texts, or a folder of a saved dataset.
        split: the split that its name says; None if it says none.
    """

    path: Path
    form: PlaceForm
    split: Split | None


def split_word(name: str) -> Split | None:
    """The split that a name says: the only one among its words (`snli_1.0_train.jsonl`, `20news-bydate-test`)."""
    words = re.split(r"[^a-z]+", name.lower())
    found = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return found.pop() if len(found) == 1 else None


def places_of(paths: Sequence[Path]) -> list[Place]:
    """The places that files and folders stand for, in order.

    Raises:
        ValueError: there is nothing at a path, or nothing that is read.
    """
    return [place for path in paths for place in _places(path)]


def _places(path: Path) -> Iterator[Place]:
    if is_file(path):
        yield Place(path, "file", _split_of(path))
        return
    if exists(path) and not is_folder(path):
        regular(path)
    if not is_folder(path):
        raise ValueError(f"{path} is missing. Name the files of your data, such as train.csv and dev.csv.")
    form = _form(path)
    if form is not None:
        yield Place(path, form, _split_of(path))
        return
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    splits = [one for one in inside if one.is_dir() and split_word(one.name) and _form(one)]
    files = sorted(one for one in path.rglob("*") if one.is_file() and without_suffix(one).suffix.lower() in SUFFIXES)
    if not splits and not files:
        raise ValueError(
            f"{path} holds no files of examples. Name the files themselves, such as {path.name}/train.csv."
        )
    for one in splits or files:
        yield from _places(one)


def _form(folder: Path) -> PlaceForm | None:
    """The form of a folder that holds one split; None if it does not."""
    if (folder / "dataset_dict.json").is_file():
        return None
    if (folder / "state.json").is_file() or any(folder.glob("*.arrow")):
        return "datasets"
    folders = [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]
    has_splits = any(split_word(one.name) for one in folders)
    return "folders" if folders and not has_splits and all(_holds_files(one) for one in folders) else None


def _holds_files(folder: Path) -> bool:
    """True if a folder has files that may be a text each."""
    files = [one for one in folder.iterdir() if one.is_file() and not one.name.startswith(".")]
    return bool(files) and all(without_suffix(one).suffix.lower() in {".txt", *_no_table(one)} for one in files)


def _no_table(path: Path) -> set[str]:
    """The file's own suffix, unless it is one of tables or tagged words."""
    suffix = without_suffix(path).suffix.lower()
    return set() if suffix in SUFFIXES else {suffix}


def _split_of(path: Path) -> Split | None:
    """The split that the path's own name says, or else a folder on the way to it as it was named."""
    folders = (SPLIT_WORDS.get(part.lower()) for part in reversed(path.parts[:-1]))
    return split_word(path.name) or next((split for split in folders if split is not None), None)


def by_split(places: Sequence[Place]) -> tuple[dict[Split, list[Place]], list[str]]:
    """The places of each split, and remarks on those whose names say none: the first is train, others are test.

    Test is the guess that does no harm: it stays locked.
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
            remarks.append(f"{place.path.name}: its name says no split; taken for {split}")
    if "train" not in found:
        names = ", ".join(place.path.name for place in places)
        raise ValueError(f"No file of the training split is among {names}. Name it first, such as train.csv.")
    return {split: found[split] for split in ("train", "dev", "test") if split in found}, remarks
