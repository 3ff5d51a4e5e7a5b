"""Loading of one split from the Hugging Face hub: its parquet files, through `datasets`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.task import Example, HubSource, Label, ReadExamples, Split

HubRow = Mapping[str, object]

BATCH_ROWS = 10_000


def parquet_files(source: HubSource, split: Split) -> str:
    """The path pattern of one split's parquet files, on the hub at the pinned revision or in a folder.

    A source whose id is an absolute path is a folder in the dataset's layout, such as a mirror.
    """
    inside = source.pattern.format(config=source.config or "default", split=source.splits[split])
    folder = Path(source.id)
    return str(folder / inside) if folder.is_absolute() else f"hf://datasets/{source.id}@{source.revision}/{inside}"


def load_hub_split(source: HubSource, split: Split) -> list[Example]:
    """Load the examples of one split; no other split's files are opened or downloaded.

    `load_dataset(id, split=…)` would prepare every split including test, so the files of the one split are named.

    Raises:
        ValueError: the hub cannot be reached, or the dataset lacks the files or a column.
    """
    # Imported here: `datasets` takes a second to import, and reading local files does not need it.
    import datasets

    source = source.elsewhere.get(split, source)
    files = parquet_files(source, split)
    try:
        loaded = datasets.load_dataset(
            "parquet", data_files={"asked": files}, split="asked", columns=list(source.columns) or None
        )
    # Any exception: the hub's client passes on those of its HTTP library, which differs between versions.
    except Exception as error:
        raise unreachable(files, "loaded", error) from error
    names = _class_names(loaded.features, source)
    # In batches: all rows of Yahoo Answers as Python objects at once would take gigabytes.
    batches = loaded.with_format("arrow").iter(batch_size=BATCH_ROWS)
    rows = enumerate(row for batch in batches for row in batch.to_pylist())
    examples = (source.example(row, position, names) for position, row in rows)
    kept = [example for example in examples if example is not None]
    left_out = len(loaded) - len(kept)
    return ReadExamples(kept, [f"{some(left_out, 'row')} left out"] if left_out and source.counts_left_out else [])


def unreachable(place: str, done: str, error: Exception) -> ValueError:
    """The line about data that a library could not fetch, with the remedy.

    Args:
        place: its address.
        done: what could not be done with it, as in `could not be loaded`.
    """
    reason = " ".join(str(error).split())[:200]
    return ValueError(
        f"{place} could not be {done} ({type(error).__name__}: {reason}). "
        "Check the network, or read the original files with --data-dir."
    )


def _class_names(features: Mapping[str, object], source: HubSource) -> tuple[str, ...]:
    if source.label_column not in features:
        known = ", ".join(features)
        raise ValueError(f"{source.id} has no column '{source.label_column}'; its columns are: {known}.")
    feature = features[source.label_column]
    inner = getattr(feature, "feature", feature)  # a list feature wraps the class feature
    return tuple(getattr(inner, "names", None) or ())


def class_id(value: object, names: Sequence[str], labels: Sequence[str]) -> int | None:
    """The class id of a hub label, by name if the column has class names, else by number; None for -1 (hidden).

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
    row: HubRow,
    position: int,
    names: tuple[str, ...],
    *,
    texts: Sequence[str],
    labels: Sequence[str],
    label: str = "label",
    id_column: str | None = None,
    group: str | None = None,
) -> Example:
    """Convert a row with one or two texts and a class label (see `class_id`)."""
    return Example(
        id=str(row[id_column]) if id_column else str(position),
        texts=tuple(str(row[column]).strip(" ") for column in texts),
        label=class_id(row[label], names, labels),
        group=str(row[group]) if group else "",
    )


def score_row(
    row: HubRow,
    position: int,
    names: tuple[str, ...],
    *,
    texts: Sequence[str],
    score: str,
    scale: float = 1.0,
    id_column: str | None = None,
) -> Example:
    """Convert a row with two texts and a score, which is multiplied by `scale`; -1 (a hidden score) gives None."""
    return Example(
        id=str(row[id_column]) if id_column else str(position),
        texts=tuple(str(row[column]).strip(" ") for column in texts),
        label=_scaled(cast(float | None, row[score]), scale),
    )


def _scaled(score: float | None, scale: float) -> Label:
    if score is None or score < 0 or math.isnan(score):
        return None
    # 6 decimals remove the rounding errors of scaling and of scores stored as float32.
    return round(score * scale, 6)


def tagged_row(
    row: HubRow, position: int, names: tuple[str, ...], *, tokens: str, tags: str, labels: Sequence[str]
) -> Example:
    """Convert a row with a list of words and a list of IOB2 tags."""
    ids = [class_id(tag, names, labels) for tag in cast(Sequence[object], row[tags])]
    hidden = any(tag is None for tag in ids)
    label = None if hidden else tuple(tag for tag in ids if tag is not None)
    return Example(id=str(position), words=tuple(cast(Sequence[str], row[tokens])), label=label)
