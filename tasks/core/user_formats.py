"""Examples of a user's files: every format gives the same examples, and rows that are left out are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.conll import ConllLayout, read_conll, to_iob2
from meltpoint.tasks.core.files import matching
from meltpoint.tasks.core.kinds import GROUP, LABEL, TAGS, WORDS
from meltpoint.tasks.core.readers import Record
from meltpoint.tasks.core.rows import (
    SPLIT,
    ClassName,
    ListCell,
    Row,
    as_record,
    cell_names,
    cells_of,
    parts_of,
    read_records,
    with_class_names,
)
from meltpoint.tasks.core.task import Example, Label, ReadExamples
from meltpoint.tasks.core.user_layout import Layout, UserSplit
from meltpoint.tasks.core.wording import some

LeftOut = Counter[str]
"""Reason → the number of rows that were left out for it."""

EMPTY, KEPT = "an empty text", "an empty text kept"


def read_user_files(folder: Path, split: UserSplit, layout: Layout) -> list[Example]:
    """Read the examples of one split.

    Raises:
        ValueError: a file is missing or broken; the line and the column are named.
    """
    paths = [path for name in split.names for path in (matching(folder, name) if "*" in name else [folder / name])]
    if not paths:
        raise ValueError(f"{folder / split.names[0]} is missing. Put the files there, or correct the name.")
    left_out: LeftOut = Counter()
    if layout.format == "conll":
        return _conll(paths, layout)
    examples: list[Example] = []
    for position, record in enumerate(chain.from_iterable(read_records(path, layout) for path in paths)):
        if not split.values or _belongs(record, split):
            example = _example(str(position), record, layout, left_out)
            examples += [] if example is None else [example]
    if not examples:
        raise ValueError(f"{paths[0]} gives no example of this split. Check the split's name and the skipped rows.")
    return ReadExamples(examples, notes_of(left_out))


def notes_of(left_out: LeftOut) -> list[str]:
    """The remarks for the tables: rows that were left out, and the number of empty texts that were kept."""
    notes = {why: f"{some(count, 'row')} with {why}" for why, count in left_out.items()}
    return [note if why == KEPT else f"{note} left out" for why, note in notes.items()]


def _conll(paths: list[Path], layout: Layout) -> ReadExamples:
    files = [read_conll(path, layout.label_ids, conll_layout(layout)) for path in paths]
    for path, examples in zip(paths, files, strict=True):
        check_documents(path, (one.group for one in examples), layout)
    if len(files) == 1:
        return files[0]
    joined = [
        replace(one, id=f"{number}.{one.id}", group=f"{number}.{one.group}" if one.group else "")
        for number, examples in enumerate(files)
        for one in examples
    ]
    notes = [f"{path.name}: {note}" for path, one in zip(paths, files, strict=True) for note in one.notes]
    return ReadExamples(joined, notes)


def check_documents(path: Path, documents: Iterable[object], layout: Layout) -> None:
    """Check that a column file marks its documents, if they are the groups.

    Raises:
        ValueError: the file marks no document.
    """
    if GROUP in layout.named and not any(documents):
        raise ValueError(f"{path} has no -DOCSTART- and no # newdoc. Mark its documents, or remove columns.group.")


def conll_layout(layout: Layout) -> ConllLayout:
    """The columns of a user's column file; by default the first has the words and the last has the tags."""
    word, tag = (int(layout.named.get(name, default)[0]) for name, default in (("words", ("0",)), ("tags", ("-1",))))
    return ConllLayout(word, tag, None, layout.tag_scheme if layout.of_kind.has_spans else None, layout.encoding)


def _belongs(record: Record, split: UserSplit) -> bool:
    value = record.cell(SPLIT)
    if value not in split.values and value not in split.other_values:
        unknown = registry.unknown(value, "split", {*split.values, *split.other_values})
        raise record.problem(SPLIT, f"{unknown} Correct the file, or splits: in the task file.")
    return value in split.values


def _example(name: str, record: Record, layout: Layout, left_out: LeftOut) -> Example | None:
    """The example of a row; None, and counted, if it is left out."""
    if layout.of_kind.labels_words:
        return _tagged(name, record, layout, left_out)
    skipped = next((one for one in label_spellings(record, layout) if one in layout.skip_labels), None)
    if skipped is not None:
        left_out[f"the label '{skipped}'"] += 1
        return None
    texts = {key: joined_text(record, key, layout) for key in layout.texts}
    empty = next((key for key, text in texts.items() if not text), None)
    if empty is not None:
        if layout.empty == "refuse":
            remedy = "Fill it in, remove the row, or write empty: skip, or keep."
            raise record.problem(next(iter(cells_of(empty, layout))), f"the text is empty. {remedy}")
        left_out[EMPTY if layout.empty == "skip" else KEPT] += 1
        if layout.empty == "skip":
            return None
    found: Label
    if layout.range is not None:
        found = record.score(LABEL, layout.range)
    elif layout.of_kind.has_labels:
        found = _indicators(record, layout)
    else:
        found = _class(record, LABEL, layout)
    return Example(name, tuple(texts.values()), label=found, group=group_of(record, layout))


def group_of(record: Record, layout: Layout) -> str:
    """The group of an example; "" if the task has none.

    Raises:
        ValueError: its cell is empty.
    """
    if GROUP not in layout.named:
        return ""
    group = record.cell(GROUP).strip()
    if not group:
        raise record.problem(GROUP, "the group is empty. Fill it in, or remove the row.")
    return group


def label_spellings(record: Record, layout: Layout) -> Sequence[str]:
    """The labels of a row as spelled: one label, or several in a list, in one cell, or in one column of 0 or 1 each.

    Raises:
        ValueError: a column of a label holds neither 0 nor 1.
    """
    columns = layout.named.get(LABEL, (LABEL,))
    if len(columns) > 1:
        return [column for column in columns if _is_set(record, f"{LABEL}: {column}")]
    cell = record.cell(LABEL)
    if isinstance(cell, ListCell):
        return cell.parts
    if not layout.of_kind.has_labels:
        return [cell]
    return [part.strip() for part in cell.split(layout.label_separator)] if cell.strip() else []


def _is_set(record: Record, column: str) -> bool:
    found = {"0": False, "1": True, "false": False, "true": True, "False": False, "True": True}.get(record.cell(column))
    if found is None:
        raise record.problem(column, f"'{record.cell(column)[:40]}' is not 0 or 1. Correct the file.")
    return found


def _indicators(record: Record, layout: Layout) -> tuple[int, ...]:
    """0 or 1 for each label."""
    spellings, ids = label_spellings(record, layout), layout.label_ids
    having = {_class(record, LABEL, layout, one) if LABEL in record.positions else ids[one] for one in spellings}
    return tuple(int(label in having) for label in range(len(layout.label_names())))


def joined_text(record: Record, key: str, layout: Layout) -> str:
    """A text: its column without surrounding spaces, or its columns joined, without empty ones."""
    cells = [record.cell(name).strip(" ") for name in cells_of(key, layout)]
    return cells[0] if len(cells) == 1 else layout.joiner.join(cell for cell in cells if cell)


def _class(record: Record, column: str, layout: Layout, spelling: str | None = None) -> int:
    """The class id of a label, by its spelling, or by the class's number if no label has the class's name."""
    labels = layout.label_ids
    cell = record.cell(column) if spelling is None else spelling
    if isinstance(cell, ClassName) and cell not in labels and cell.number in labels:
        return labels[cell.number]
    return record.label(column, labels, cell)


def _tagged(name: str, record: Record, layout: Layout, left_out: LeftOut) -> Example | None:
    """The example of a row with a list of words and a list of tags; None, and counted, if it has no words."""
    words, cells = parts_of(record, WORDS), parts_of(record, TAGS)
    where = f"{record.path}, line {record.line}"
    if not words:
        left_out["no words"] += 1
        return None
    if len(words) != len(cells):
        raise ValueError(f"{where}: {some(len(words), 'word')} but {some(len(cells), 'tag')}. Give one tag per word.")
    try:
        tags = cells if layout.tag_scheme == "iob1" else to_iob2(cells, layout.tag_scheme)
    except ValueError as error:
        raise ValueError(f"{where}, field '{layout.named[TAGS][0]}': {error}") from None
    ids = [_class(record, TAGS, layout, tag) for tag in tags]
    if layout.tag_scheme == "iob1":
        ids = [layout.label_ids[tag] for tag in to_iob2(cells, "iob1")]
    return Example(name, words=words, label=tuple(ids), group=group_of(record, layout))


def hub_example(row: Row, position: int, names: tuple[str, ...], *, place: Path, layout: Layout) -> Example | None:
    """The example of a row of the hub (see `HubSource.example`); None if it is left out."""
    key = layout.named[layout.of_kind.label_column][0]
    named = with_class_names(row, {key: names} if names else {})
    record = as_record(place, position + 1, named, cell_names(layout), layout)
    return _example(str(position), record, layout, Counter())
