"""The draft of a task file: its keys with guessed values, and remarks for you to check."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meltpoint import tasks
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import without_suffix
from meltpoint.tasks.core.kinds import DOCUMENT, GROUP, LABEL
from meltpoint.tasks.core.readers import shown
from meltpoint.tasks.core.task import SPLITS, Kind, Split
from meltpoint.tasks.core.user_layout import Layout
from meltpoint.tasks.core.wording import some
from meltpoint.tasks.inspection.file_shape import FileShape, shape_of
from meltpoint.tasks.inspection.roles import GUESS, Asked, Roles, roles_of
from meltpoint.tasks.inspection.splits import (
    SPLIT_WORDS,
    Place,
    SplitCounts,
    by_split,
    counted_rows,
    places_of,
    split_word,
)
from meltpoint.tasks.inspection.text_shape import NO_LABELS, is_number

NO_NAMES = {"data", "text", "texts", "gold", "label", "labels", "all", "full", "set", "task"}
"""Words of a file's name that do not name a task."""
KEYS = ("delimiter", "quoting", "header", "encoding", "pattern")
"""The keys of a format, in the order of the file."""
FEWEST = 100
"""The fewest examples to select by, and to test on, if the data has them."""


@dataclass
class Draft:
    """A task file in the making.

    Attributes:
        keys: key of a task file → value, in the order of the file.
        counts: split → its counts.
        remarks: key → remarks to check there; "" for remarks on the whole file.
    """

    keys: dict[str, object] = field(default_factory=dict)
    counts: dict[Split, SplitCounts] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def remark(self, key: str, text: str) -> None:
        """Add a remark at a key."""
        self.remarks.setdefault(key, []).append(text)


def draft_of(
    paths: Sequence[Path], relative_to: Path, named: str = "", asked: Asked = GUESS,
    given: Mapping[Split, Path] | None = None,
) -> Draft:  # fmt: skip
    """Look at files and guess the task file that reads them.

    Args:
        paths: files and folders.
        relative_to: the folder of the future task file.
        named: the task file's own name, without its suffix; "" if it has none yet.
        asked: the columns and the kind that you named; they are not guessed.
        given: split → its file, instead of `paths`; without a test file, test is carved off train.

    Raises:
        ValueError: a file is missing, in an unknown format, or without texts or labels.
    """
    remarks: list[str] = []
    if given:
        split_places = {split: [Place(path, split)] for split, path in given.items()}
    else:
        split_places, remarks = by_split(places_of(paths))
    first = split_places["train"][0]
    shape = shape_of(first)
    roles = _roles(first, shape, asked)
    draft = Draft()
    draft.keys |= {"name": _name(named, first), "kind": roles.kind}
    _add_files(draft, split_places, roles, relative_to)
    _add_format(draft, shape, roles)
    if asked.group:
        columns = draft.keys.get("columns", {})
        assert isinstance(columns, Mapping)
        draft.keys["columns"] = {**columns, GROUP: asked.group}
    for remark in remarks:
        draft.remark("files", remark)
    _count(draft, split_places, _layout(draft))
    _add_labels(draft, roles.kind)
    _add_parts(draft, carves_test=bool(given))
    return draft


def _roles(place: Place, shape: FileShape, asked: Asked) -> Roles:
    if shape.roles is None:
        try:
            return roles_of(shape.names, shape.rows, asked)
        except ValueError as error:
            raise ValueError(f"{place.path} ({shape.format}): {error}") from None
    of_documents = shape.format == "conll" and asked.group == DOCUMENT
    if asked or (asked.group and not of_documents):
        groups = f"its groups are its documents: --group {DOCUMENT}" if shape.format == "conll" else "it has no groups"
        raise ValueError(
            f"{place.path} has no named columns, and {groups}. Leave --text, --label and --kind out, or write a task "
            "file (docs/tasks.md)."
        )
    return shape.roles


def _name(named: str, place: Place) -> str:
    """A task's name: its task file's, else a data file's, else the folder's if data files only name the split."""
    stem = place.path.name if place.is_folder else without_suffix(place.path).stem
    for text in (named, stem, *(parent.name for parent in place.path.absolute().parents)):
        words = re.split(r"[^a-z0-9]+", text.lower())
        words = [word for word in words if word and word not in SPLIT_WORDS and word not in NO_NAMES]
        name = re.sub(r"^[0-9_]+", "", "_".join(words))
        if name:
            return f"my_{name}" if name in tasks.names() else name
    return "my_task"


def _add_files(draft: Draft, places: Mapping[Split, Sequence[Place]], roles: Roles, relative_to: Path) -> None:
    def written(path: Path) -> str:
        return Path(os.path.relpath(path, relative_to)).as_posix()

    if roles.split_column:
        only = places["train"][0]
        draft.keys |= {"file": written(only.path), "split_column": roles.split_column, "splits": {}}
        if sum(map(len, places.values())) > 1:
            draft.remark("file", "the other files are not read, because this one has a column of splits")
        return
    names = {split: [written(place.path) for place in some_places] for split, some_places in places.items()}
    draft.keys["files"] = {split: one[0] if len(one) == 1 else one for split, one in names.items()}


def _add_format(draft: Draft, shape: FileShape, roles: Roles) -> None:
    draft.keys["format"] = shape.format
    draft.keys |= {key: shape.keys[key] for key in KEYS if key in shape.keys}
    for key, remark in shape.remarks:
        draft.remark(key, remark)
    if shape.format not in {"lines", "folders"}:
        draft.keys["columns"] = roles.columns
    for remark in roles.remarks:
        draft.remark("columns", remark)
    if roles.tag_scheme:
        draft.keys["tag_scheme"] = roles.tag_scheme
    if roles.tag_scheme not in ("", "iob2"):
        draft.remark("tag_scheme", f"the tags are {roles.tag_scheme} in the files, converted to IOB2")
    if roles.label_separator not in ("", ","):
        draft.keys["label_separator"] = roles.label_separator
    if any(isinstance(value, list) for key, value in roles.columns.items() if key != LABEL):
        draft.keys["joiner"] = " "


def _layout(draft: Draft) -> Layout:
    """The layout of the files as drafted; rows with an empty text are counted, too."""
    keys = {key: value for key, value in draft.keys.items() if key in Layout.model_fields}
    columns = keys.get("columns", {})
    assert isinstance(columns, Mapping)
    texts = {key: value if isinstance(value, list) else str(value) for key, value in columns.items()}
    return Layout.model_validate({**keys, "columns": texts, "empty": "skip"})


def _count(draft: Draft, places: Mapping[Split, Sequence[Place]], layout: Layout) -> None:
    is_tagged = layout.of_kind.labels_words
    for split, some_places in places.items():
        counts = SplitCounts()
        for place in some_places:
            try:
                for value, texts, label in counted_rows(place.path, layout):
                    if layout.split_column:
                        _add_to_value(draft, value, texts, label)
                    else:
                        counts.add(texts, label, is_tagged=is_tagged)
            except ValueError as error:
                draft.remark("", f"NOT YET RIGHT: {error}")
        if split == "test" and not counts.examples and "" in draft.remarks:  # most of them lack labels
            files = draft.keys["files"]
            assert isinstance(files, dict)
            fault = f"{files.pop('test')}: {draft.remarks[''].pop()}"
            draft.remark("files", f"left out, because it cannot be read like train: {fault}")
        elif not layout.split_column:
            draft.counts[split] = counts
    if layout.split_column:
        draft.counts = {split: draft.counts[split] for split in SPLITS if split in draft.counts}


def _add_to_value(draft: Draft, value: str, texts: tuple[str, ...], label: str | list[str]) -> None:
    """Count a row of a file that has all splits."""
    split, names = split_word(value), draft.keys["splits"]
    assert isinstance(names, dict)
    if split is None:
        draft.remark("splits", f"'{value}' is not a known split; its rows are refused")
        return
    names.setdefault(split, value)
    is_tagged = kinds.get(str(draft.keys["kind"])).labels_words
    draft.counts.setdefault(split, SplitCounts()).add(texts, label, is_tagged=is_tagged)


def _add_labels(draft: Draft, kind: Kind) -> None:
    """Add the labels of train and dev in order, or the range of the scores, and the treatment of unlabelled rows."""
    columns, seen = draft.keys.get("columns"), Counter[str]()
    for split in ("train", "dev"):
        seen += draft.counts[split].labels if split in draft.counts else Counter()
    if kinds.get(kind).is_regression:
        scores = [float(value) for value in seen if is_number(value)]
        low, high = min(scores, default=0.0), max(scores, default=1.0)
        draft.keys["range"] = [math.floor(low), max(math.ceil(high), math.floor(low) + 1)]
        draft.remark(
            "range", f"the scores of train and dev go from {shown(low)} to {shown(high)}; write the scale's ends"
        )
    elif isinstance(columns, Mapping) and isinstance(columns.get(LABEL), list):
        pass  # the columns are the labels
    elif kinds.get(kind).has_spans:
        draft.keys["labels"] = _tags(seen, str(draft.keys.get("tag_scheme", "iob2")))
    elif kinds.get(kind).labels_words:
        draft.keys["labels"] = sorted(seen)
    else:
        hidden = sorted(label for label in seen if label.strip().lower() in NO_LABELS)
        labels = sorted(set(seen) - set(hidden), key=_label_order)
        draft.keys["labels"] = labels
        if len(labels) > 2 and all(map(is_number, labels)) and kind == "sentence_classification":
            draft.remark("kind", "ordered classes, such as stars, can be kind: ordinal_classification")
        if labels and all(map(is_number, labels)):
            names = ", ".join(f"{label}: NAME" for label in labels[:3])
            draft.remark("labels", f"numbers can have names, as in labels: {{{names}}}")
        if hidden:
            draft.keys["skip_labels"] = hidden
            draft.remark("skip_labels", f"{some(sum(seen[one] for one in hidden), 'row')} without a label")
    if any(counts.empty for counts in draft.counts.values()):
        draft.keys["empty"] = "skip"
        empty = ", ".join(f"{split} {counts.empty}" for split, counts in draft.counts.items())
        draft.remark("empty", f"rows with an empty text: {empty}; other choices: refuse, keep")


def _label_order(label: str) -> tuple[bool, float, str]:
    return (not is_number(label), float(label) if is_number(label) else 0.0, label)


def _tags(seen: Mapping[str, int], scheme: str) -> list[str]:
    """The IOB2 labels of tags: O, then B- and I- of each type."""
    found = re.compile(r"\(([^()*]+)") if scheme == "brackets" else re.compile(r"[BIESLU]-(.+)")
    types = sorted({match[1] for tag in seen if (match := found.match(tag))})
    return ["O", *(f"{prefix}-{one}" for one in types for prefix in "BI")]


def _add_parts(draft: Draft, *, carves_test: bool) -> None:
    """Carve dev if there is none, and test if `carves_test`; otherwise remark on the missing test."""
    left = draft.counts["train"].examples if "train" in draft.counts else 0
    if "test" not in draft.counts and carves_test:
        test = _part(left, left // 4)
        draft.keys["test_from"] = {"from": "train", "fraction": round(test / max(1, left), 4), "seed": 0}
        draft.remark("test_from", "no test split: this part of train is used, locked until the finals")
        left -= test
    elif "test" not in draft.counts:
        draft.remark("", "no test split: finalists need one, as in test_from: {from: train, fraction: 0.1, seed: 0}")
    if "dev" not in draft.counts:
        dev = _part(left, left // 2)
        draft.keys["dev_from"] = {"from": "train", "fraction": round(dev / left, 4) if left > 1 else 0.5, "seed": 0}
        draft.remark("dev_from", "no dev split: this part of train is used, with each class's share")


def _part(size: int, most: int) -> int:
    """The size of a part: a tenth of `size` examples, but at least `FEWEST` if `most` allows it."""
    return max(1, min(most, max(FEWEST, size // 10)))
