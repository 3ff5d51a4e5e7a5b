"""The shape of a file of examples, and the draft of its task file: keys with guessed values, and remarks to check."""

from __future__ import annotations

import io
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from meltpoint import tasks
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.conll import SUFFIXES
from meltpoint.tasks.core.files import without_suffix
from meltpoint.tasks.core.kinds import DOCUMENT, GROUP, LABEL
from meltpoint.tasks.core.readers import csv_rows, is_in_quotes, records, shown, text_of, with_line_feeds
from meltpoint.tasks.core.rows import Row, json_rows, parquet_rows
from meltpoint.tasks.core.task import SPLITS, Kind, Split
from meltpoint.tasks.core.user_layout import Layout
from meltpoint.tasks.core.wording import some
from meltpoint.tasks.inspection.roles import GUESS, Asked, Roles, roles_of
from meltpoint.tasks.inspection.splits import (
    SPLIT_WORDS,
    SplitCounts,
    by_split,
    counted_rows,
    split_word,
)
from meltpoint.tasks.inspection.text_shape import (
    NO_LABELS,
    TableShape,
    conll_shape,
    decodable,
    flattened,
    is_number,
    spread,
    table_shape,
)

MOST_ROWS = 20_000
"""The rows of a parquet file that a sample is taken from."""


@dataclass(frozen=True)
class FileShape:
    """The shape of one file.

    Attributes:
        format: a format of a task file.
        keys: the task file's keys that reading needs, such as `delimiter`.
        names: the names of its columns, or their numbers.
        rows: its first rows: column → text, list, or None.
        remarks: (key of a task file, a remark on the guess there).
        roles: the roles of its columns, if its shape shows them; otherwise None.
    """

    format: str
    keys: Mapping[str, object]
    names: tuple[str, ...] = ()
    rows: Sequence[Row] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    roles: Roles | None = None


def shape_of(path: Path) -> FileShape:
    """The shape of a file.

    Raises:
        ValueError: it cannot be read, or its format is unknown.
    """
    if without_suffix(path).suffix.lower() == ".parquet":
        return _of_rows("parquet", spread(list(islice(parquet_rows(path, None), MOST_ROWS))))
    data, encoding = decodable(path)
    shape = _of_text(path, with_line_feeds(text_of(path, data, encoding)))
    if encoding == "utf-8":
        return shape
    remark = ("encoding", "the encoding is a guess: check the words with other letters than a to z")
    return replace(shape, keys={"encoding": encoding, **shape.keys}, remarks=(*shape.remarks, remark))


def _of_text(path: Path, text: str) -> FileShape:
    if text.lstrip()[:1] in "[{" and without_suffix(path).suffix.lower() in {".json", ".jsonl", ".ndjson"}:
        return _of_rows("jsonl", _json_rows(path, text))
    conll = conll_shape(text, is_named=without_suffix(path).suffix.lower() in SUFFIXES)
    if conll is not None:
        columns = {"words": conll.word_column, "tags": conll.tag_column}
        others = len({*range(conll.width)} - {conll.word_column, conll.tag_column % max(1, conll.width)})
        remark = (f"the tags could also be another column of 0 to {conll.width - 1}",) if others else ()
        return FileShape("conll", {}, roles=Roles(conll.kind, columns, "", remark, "", conll.scheme or ""))
    if (table := table_shape(text)) is not None:
        return _of_table(path, text, table)
    separator = {".csv": ",", ".tsv": "\t"}.get(without_suffix(path).suffix.lower())
    if separator is not None and (fault := _fault(path, text, separator)):
        raise ValueError(fault)
    raise ValueError(
        f"{path} is not a table, JSON lines or tagged words. Write its task file by hand, for example with format: "
        "lines; see docs/tasks.md."
    )


def _of_table(path: Path, text: str, table: TableShape) -> FileShape:
    if len(table.rows) == 1 and not table.has_header and (fault := _fault(path, text, table.delimiter)):
        raise ValueError(fault)  # names alone
    form = "tsv" if table.delimiter == "\t" else "csv"
    keys: dict[str, object] = {} if table.delimiter in "\t," else {"delimiter": table.delimiter}
    remarks = []
    if not table.has_header:
        keys["header"] = False
    if table.is_quoted != (form == "csv"):
        keys["quoting"] = table.is_quoted or "none"
        has_quotes = any(is_in_quotes(cell) for row in table.rows for cell in row)
        if form == "csv" and has_quotes and (fault := _fault(path, text, table.delimiter)):
            remarks.append(("quoting", f"NOT YET RIGHT, cells keep their quotes: {fault}"))
    if table.named_twice:
        remarks.append(("columns", f"two columns are named '{table.named_twice}'; numbers, from 0, tell them apart"))
    rows = [dict(zip(table.names, row, strict=True)) for row in table.rows]
    return FileShape(form, keys, table.names, rows, tuple(remarks))


def _fault(path: Path, text: str, separator: str) -> str:
    """The reason why a text is not a table of cells (never quoted in a tsv); "" if it is one."""
    lines = enumerate(text.split("\n"), 1)
    plain = ((number, line.split(separator)) for number, line in lines)
    rows = plain if separator == "\t" else csv_rows(path, io.StringIO(text, newline=""), separator)
    try:
        for _ in records(path, rows, None, header=True, separator=separator):
            pass
    except ValueError as error:
        return str(error)
    return ""


def _json_rows(path: Path, text: str) -> Iterable[tuple[int, Row]]:
    if text.lstrip().startswith("["):
        raise ValueError(f"{path} is one JSON list. Write one object per line (JSON lines).")
    yield from json_rows(path, spread(list(enumerate(text.split("\n"), 1))))


def _of_rows(form: str, rows: Iterable[tuple[int, Row]]) -> FileShape:
    flat = [flattened(row) for _, row in rows]
    names = tuple(dict.fromkeys(name for row in flat for name in row))
    return FileShape(form, {}, names, flat)


NO_NAMES = {"data", "text", "texts", "gold", "label", "labels", "all", "full", "set", "task"}
"""Words of a file's name that do not name a task."""
KEYS = ("delimiter", "quoting", "header", "encoding")
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

    keys: dict[str, Any] = field(default_factory=dict)
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
        paths: the files.
        relative_to: the folder of the future task file.
        named: the task file's own name, without its suffix; "" if it has none yet.
        asked: the columns and the kind that you named; they are not guessed.
        given: split → its file, instead of `paths`; without a test file, test is carved off train.

    Raises:
        ValueError: a file is missing, in an unknown format, or without texts or labels.
    """
    files, remarks = ({split: [path] for split, path in given.items()}, []) if given else by_split(paths)
    first = files["train"][0]
    shape = shape_of(first)
    roles = _roles(first, shape, asked)
    if given and len(given) > 1:
        _check_alike(first, shape, roles, [path for split, path in given.items() if split != "train"])
        roles = replace(roles, split_column="")
    draft = Draft()
    draft.keys |= {"name": _name(named, first), "kind": roles.kind}
    _add_files(draft, files, roles, relative_to)
    _add_format(draft, shape, roles)
    if asked.group:
        draft.keys["columns"] = {**draft.keys["columns"], GROUP: asked.group}
    for remark in remarks:
        draft.remark("files", remark)
    _count(draft, files, _layout(draft), drops_test=not given)
    _add_labels(draft, roles.kind, has_test=bool(given))
    _add_parts(draft, carves_test=bool(given))
    return draft


def _check_alike(first: Path, shape: FileShape, roles: Roles, others: Sequence[Path]) -> None:
    """Refuse files of one split each that differ in format or encoding, and train with rows of other splits."""
    for path in others:
        if path.suffixes != first.suffixes and (form := shape_of(path).format) != shape.format:
            raise ValueError(f"{path} is {form}, but {first} is {shape.format}; write all files in one format.")
        data, encoding = decodable(path) if (own := shape.keys.get("encoding")) else (b"", own)
        if encoding != own and not data.isascii():
            raise ValueError(f"{path} is {encoding}, but {first} is {own}; write both in UTF-8.")
    column = roles.split_column
    named = {split_word(str(row[column])) for row in shape.rows if row.get(column)} if column else set()
    if len(named) > 1:
        raise ValueError(f"{first} has several splits, by its column '{column}'; leave out the other files.")


def _roles(path: Path, shape: FileShape, asked: Asked) -> Roles:
    if shape.roles is None:
        try:
            return roles_of(shape.names, shape.rows, asked)
        except ValueError as error:
            raise ValueError(f"{path} ({shape.format}): {error}") from None
    if asked or asked.group not in ("", DOCUMENT):
        raise ValueError(
            f"{path} has no named columns, and its groups are its documents: --group {DOCUMENT}. Leave --text, --label "
            "and --kind out, or write a task file (docs/tasks.md)."
        )
    return shape.roles


def _name(named: str, path: Path) -> str:
    """A task's name: its task file's, else a data file's, else the folder's if data files only name the split."""
    for text in (named, without_suffix(path).stem, *(parent.name for parent in path.absolute().parents)):
        words = re.split(r"[^a-z0-9]+", text.lower())
        words = [word for word in words if word and word not in SPLIT_WORDS and word not in NO_NAMES]
        name = re.sub(r"^[0-9_]+", "", "_".join(words))
        if name:
            return f"my_{name}" if name in tasks.names() else name
    return "my_task"


def _add_files(draft: Draft, files: Mapping[Split, Sequence[Path]], roles: Roles, relative_to: Path) -> None:
    def written(path: Path) -> str:
        return Path(os.path.relpath(path, relative_to)).as_posix()

    if roles.split_column:
        draft.keys |= {"file": written(files["train"][0]), "split_column": roles.split_column, "splits": {}}
        if sum(map(len, files.values())) > 1:
            draft.remark("file", "the other files are not read, because this one has a column of splits")
        return
    names = {split: [written(path) for path in paths] for split, paths in files.items()}
    draft.keys["files"] = {split: one[0] if len(one) == 1 else one for split, one in names.items()}


def _add_format(draft: Draft, shape: FileShape, roles: Roles) -> None:
    draft.keys["format"] = shape.format
    draft.keys |= {key: shape.keys[key] for key in KEYS if key in shape.keys}
    for key, remark in shape.remarks:
        draft.remark(key, remark)
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
    texts = {key: value if isinstance(value, list) else str(value) for key, value in keys["columns"].items()}
    return Layout.model_validate({**keys, "columns": texts, "empty": "skip"})


def _count(draft: Draft, files: Mapping[Split, Sequence[Path]], layout: Layout, *, drops_test: bool) -> None:
    """Count the rows of each split; with `drops_test`, a test file that cannot be read like train is left out.

    Raises:
        ValueError: a broken row.
    """
    for split, paths in files.items():
        if not layout.split_column:
            draft.counts[split] = SplitCounts()
        try:
            for value, texts, labels in (row for path in paths for row in counted_rows(path, layout)):
                _count_row(draft, _split_of_value(draft, value) if layout.split_column else split, texts, labels)
        except ValueError as error:
            if split != "test" or not drops_test:
                raise
            draft.counts.pop("test")  # most of them lack labels
            name = draft.keys["files"].pop("test")
            draft.remark("files", f"left out, because it cannot be read like train: {name}: {error}")
    if layout.split_column:
        draft.counts = {split: draft.counts[split] for split in SPLITS if split in draft.counts}
    if "train" not in draft.counts:
        raise ValueError(
            f"no row of the column '{layout.split_column}' has the value train; rename that column, or its values."
        )


def _count_row(draft: Draft, split: Split | None, texts: Sequence[str], labels: Sequence[str]) -> None:
    if split is not None:
        counts = draft.counts.setdefault(split, SplitCounts())
        counts.examples += 1
        counts.labels.update(labels)
        if not texts or not all(texts):
            counts.empty += 1
            counts.labels_of_empty.update(labels)


def _split_of_value(draft: Draft, value: str) -> Split | None:
    """The split that a value of the split column names; None for an unknown value."""
    split = split_word(value)
    remark = f"'{value}' is not a known split; its rows are refused"
    if split is None and remark not in draft.remarks.get("splits", ()):
        draft.remark("splits", remark)
    elif split is not None:
        draft.keys["splits"].setdefault(split, value)
    return split


def _add_labels(draft: Draft, kind: Kind, *, has_test: bool) -> None:
    """Add the labels of train and dev in order, or the range of the scores (with `has_test`, those of test, too)."""
    seen = Counter[str]()
    for split in ("train", "dev"):
        seen += draft.counts[split].labels if split in draft.counts else Counter()
    if not kinds.get(kind).labels_words and not isinstance(draft.keys["columns"].get(LABEL), list):
        _skip_unlabelled(draft)
        seen = Counter(
            {label: count for label, count in seen.items() if label not in draft.keys.get("skip_labels", ())}
        )
    if kinds.get(kind).is_regression:
        scores = [float(value) for value in seen if is_number(value)]
        low, high = min(scores, default=0.0), max(scores, default=1.0)
        test = draft.counts["test"].labels if has_test and "test" in draft.counts else ()
        ends = [low, high, *(float(value) for value in test if is_number(value))]
        bottom = math.floor(min(ends))
        draft.keys["range"] = [bottom, max(math.ceil(max(ends)), bottom + 1)]
        draft.remark(
            "range", f"the scores of train and dev go from {shown(low)} to {shown(high)}; write the scale's ends"
        )
    elif isinstance(draft.keys["columns"].get(LABEL), list):
        pass  # the columns are the labels
    elif kinds.get(kind).has_spans:
        draft.keys["labels"] = _tags(seen, str(draft.keys.get("tag_scheme", "iob2")))
    elif kinds.get(kind).labels_words:
        draft.keys["labels"] = sorted(seen)
    else:
        labels = sorted(seen, key=_label_order)
        draft.keys["labels"] = labels
        if len(labels) > 2 and all(map(is_number, labels)) and kind == "sentence_classification":
            draft.remark("kind", "ordered classes, such as stars, can be kind: ordinal_classification")
        if labels and all(map(is_number, labels)):
            names = ", ".join(f"{label}: NAME" for label in labels[:3])
            draft.remark("labels", f"numbers can have names, as in labels: {{{names}}}")
    if any(counts.empty for counts in draft.counts.values()):
        draft.keys["empty"] = "skip"
        empty = ", ".join(f"{split} {counts.empty}" for split, counts in draft.counts.items())
        draft.remark("empty", f"rows with an empty text: {empty}; other choices: refuse, keep")


def _skip_unlabelled(draft: Draft) -> None:
    """Leave out the rows of all splits without a label or score."""
    everywhere = Counter[str]()
    for counts in draft.counts.values():
        everywhere += counts.labels
    hidden = sorted(label for label in everywhere if label.strip().lower() in NO_LABELS)
    if hidden:
        for counts in draft.counts.values():
            counts.unlabelled = sum(counts.labels[one] - counts.labels_of_empty[one] for one in hidden)
        draft.keys["skip_labels"] = hidden
        draft.remark("skip_labels", f"{some(sum(everywhere[one] for one in hidden), 'row')} without a label")


def _label_order(label: str) -> tuple[bool, float, str]:
    return (not is_number(label), float(label) if is_number(label) else 0.0, label)


def _tags(seen: Mapping[str, int], scheme: str) -> list[str]:
    """The IOB2 labels of tags: O, then B- and I- of each type."""
    found = re.compile(r"\(([^()*]+)") if scheme == "brackets" else re.compile(r"[BIESLU]-(.+)")
    types = sorted({match[1] for tag in seen if (match := found.match(tag))})
    return ["O", *(f"{prefix}-{one}" for one in types for prefix in "BI")]


def _add_parts(draft: Draft, *, carves_test: bool) -> None:
    """Carve dev if there is none, and test if `carves_test`; otherwise remark on the missing test."""
    left = draft.counts["train"].kept
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
