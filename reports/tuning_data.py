"""The data of `mp.tune` as files: frames, datasets, pairs of texts and labels, or paths."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meltpoint.tasks.core.task import Split
from meltpoint.tasks.inspection.splits import SPLIT_WORDS

if TYPE_CHECKING:
    import pandas


WANTED = (
    "a pandas frame, a datasets.Dataset, a pair (texts, labels), a path, or a dict of splits of these, as in "
    '{"train": frame, "test": frame}'
)


def splits_of(data: Any, test: Any = None, dev: Any = None) -> dict[Split, Path | str]:
    """Split → the path of its file, or the JSON lines to write to one.

    Raises:
        ValueError: data of another form, an unknown split, or none to train on.
    """
    parts: dict[Split, Any] = {}
    is_of_splits = isinstance(data, Mapping) and bool(set(data) & set(SPLIT_WORDS))
    for name, part in data.items() if is_of_splits else [("train", data)]:
        if name not in SPLIT_WORDS:
            raise ValueError(f"data has an unknown split {name!r}; name the splits train, dev and test.")
        parts[SPLIT_WORDS[name]] = part
    named: dict[Split, Any] = {"test": test, "dev": dev}
    for split, part in named.items():
        if part is not None and split in parts:
            raise ValueError(f"{split} is given twice: in data, and as an argument; leave one out.")
        parts |= {} if part is None else {split: part}
    if "train" not in parts:
        raise ValueError("data has no split train; name it, as in {'train': frame, 'test': frame}.")
    return {
        split: Path(part) if isinstance(part, str | os.PathLike) else _lines(_frame(part, split))
        for split, part in parts.items()
    }


def name_of(parts: Mapping[Split, Path | str]) -> str:
    """The name of a sweep without one: its training file's, or a name unique to the data."""
    train = parts["train"]
    if isinstance(train, Path):
        return re.sub(r"[^A-Za-z0-9_-]+", "-", train.name.partition(".")[0]).strip("-_") or "data"
    return f"data-{hashlib.sha256(train.encode()).hexdigest()[:8]}"


def write_splits(parts: Mapping[Split, Path | str], folder: Path) -> dict[Split, Path]:
    """Split → its file; data not yet in a file is written to `FOLDER/SPLIT.jsonl`.

    Raises:
        ValueError: the file exists and holds other data.
    """
    files: dict[Split, Path] = {}
    for split, part in parts.items():
        files[split] = path = part if isinstance(part, Path) else folder / f"{split}.jsonl"
        if isinstance(part, Path):
            continue
        if path.exists() and path.read_text(encoding="utf-8") != part:
            raise ValueError(f"{path} holds other data; choose another name, or remove that sweep.")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(part, encoding="utf-8")
    return files


def _frame(part: Any, split: str) -> pandas.DataFrame:
    """The frame of one split."""
    import pandas

    if isinstance(part, pandas.DataFrame):
        return part
    if hasattr(part, "to_pandas") and hasattr(part, "features"):
        return pandas.DataFrame({name: _named(part[name], feature) for name, feature in part.features.items()})
    if isinstance(part, tuple) and len(part) == 2 and len(part[0]) == len(part[1]):
        texts, labels = list(part[0]), list(part[1])
        if texts and isinstance(texts[0], tuple):
            return pandas.DataFrame({"text_a": [a for a, _ in texts], "text_b": [b for _, b in texts], "label": labels})
        is_words = bool(texts) and isinstance(texts[0], list)
        return pandas.DataFrame({"words": texts, "tags": labels} if is_words else {"text": texts, "label": labels})
    if isinstance(part, Mapping):
        return pandas.DataFrame(part)
    raise ValueError(f"{split} is a {type(part).__name__}; pass {WANTED}.")


def _named(values: Any, feature: Any) -> list[Any]:
    """A column of a dataset with the names of its classes in place of their numbers; -1 is no label."""
    inner = getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    if not names:
        return list(values)

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(one) for one in value]
        return None if value is None or value < 0 else names[value]

    return [name(value) for value in values]


def _lines(frame: pandas.DataFrame) -> str:
    text: str = frame.to_json(orient="records", lines=True, force_ascii=False)
    return text if text.endswith("\n") else text + "\n"
