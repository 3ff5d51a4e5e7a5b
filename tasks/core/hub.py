"""One split of a data set on the Hugging Face hub, from its parquet files, through `datasets`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.task import Example, HubSource, Label, Split

Row = Mapping[str, object]

BATCH_ROWS = 10_000


def parquet_files(source: HubSource, split: Split) -> str:
    """Where the parquet files of one split lie: a pattern on the hub at the pinned revision, or in a folder.

    A source whose id is an absolute path is a folder in the data set's layout: a mirror, or a test's fixture.
    """
    inside = source.pattern.format(config=source.config or "default", split=source.splits[split])
    folder = Path(source.id)
    return str(folder / inside) if folder.is_absolute() else f"hf://datasets/{source.id}@{source.revision}/{inside}"


def load_hub_split(source: HubSource, split: Split) -> list[Example]:
    """The examples of exactly one split; no other split's files are opened or downloaded.

    `load_dataset(id, split=…)` would prepare every split, the test split too: so the files of one are named.

    Raises:
        ValueError: the hub cannot be reached, or the data set lacks the files or a column.
    """
    # Imported here: a run on local files needs neither `datasets` nor its second of start-up.
    import datasets

    source = source.elsewhere.get(split, source)
    files = parquet_files(source, split)
    try:
        loaded = datasets.load_dataset(
            "parquet", data_files={"asked": files}, split="asked", columns=list(source.columns) or None
        )
    # The hub's client passes on the errors of its HTTP library, whose package has changed name before.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{files} could not be loaded ({type(error).__name__}: {reason}). "
            "Check the network, or read the original files with --data-dir."
        ) from error
    names = _class_names(loaded.features, source)
    # In batches: all of Yahoo's rows as Python objects, beside the examples, would take gigabytes.
    batches = loaded.with_format("arrow").iter(batch_size=BATCH_ROWS)
    rows = enumerate(row for batch in batches for row in batch.to_pylist())
    examples = (source.example(row, position, names) for position, row in rows)
    return [example for example in examples if example is not None]


def _class_names(features: Mapping[str, object], source: HubSource) -> tuple[str, ...]:
    if source.label_column not in features:
        known = ", ".join(features)
        raise ValueError(f"{source.id} has no column '{source.label_column}'; its columns are: {known}.")
    feature = features[source.label_column]
    inner = getattr(feature, "feature", feature)  # a list of classes holds the class feature inside
    return tuple(getattr(inner, "names", None) or ())


def class_id(value: object, names: Sequence[str], labels: Sequence[str]) -> int | None:
    """Our class id of a hub label: by name where the column has class names, else by number; -1 is hidden.

    Raises:
        ValueError: a label that the task does not have.
    """
    if value is None or value == -1:
        return None
    if isinstance(value, int) and not names:
        if 0 <= value < len(labels):
            return value
        raise ValueError(f"The hub's label {value} is not one of 0 to {len(labels) - 1}. Check the pinned revision.")
    name = names[value] if isinstance(value, int) else str(value)
    known = {label.lower(): position for position, label in enumerate(labels)}
    if name.lower() not in known:
        raise ValueError(f"{registry.unknown(name, 'label', labels)} Check the hub's pinned revision.")
    return known[name.lower()]


def text_row(
    row: Row,
    position: int,
    names: tuple[str, ...],
    *,
    texts: Sequence[str],
    labels: Sequence[str],
    label: str = "label",
    id_column: str | None = None,
    group: str | None = None,
) -> Example:
    """A row with one or two texts and a class; see `class_id` for its label."""
    return Example(
        id=str(row[id_column]) if id_column else str(position),
        texts=tuple(str(row[column]).strip(" ") for column in texts),
        label=class_id(row[label], names, labels),
        group=str(row[group]) if group else "",
    )


def score_row(
    row: Row,
    position: int,
    names: tuple[str, ...],
    *,
    texts: Sequence[str],
    score: str,
    scale: float = 1.0,
    id_column: str | None = None,
) -> Example:
    """A row with two texts and a score, which is multiplied by `scale`; -1 (a hidden score) gives None."""
    return Example(
        id=str(row[id_column]) if id_column else str(position),
        texts=tuple(str(row[column]).strip(" ") for column in texts),
        label=_scaled(cast(float | None, row[score]), scale),
    )


def _scaled(score: float | None, scale: float) -> Label:
    if score is None or score < 0 or math.isnan(score):
        return None
    # 6 decimals undo the error of scaling there and back, and of scores kept as float32.
    return round(score * scale, 6)


def tagged_row(
    row: Row, position: int, names: tuple[str, ...], *, tokens: str, tags: str, labels: Sequence[str]
) -> Example:
    """A row with a list of words and a list of IOB2 tags."""
    ids = [class_id(tag, names, labels) for tag in cast(Sequence[object], row[tags])]
    hidden = any(tag is None for tag in ids)
    label = None if hidden else tuple(tag for tag in ids if tag is not None)
    return Example(id=str(position), words=tuple(cast(Sequence[str], row[tokens])), label=label)
