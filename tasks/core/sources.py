"""Sources of a task's data, one split at a time: original files, pinned downloads, the hub, or a generator.

A pinned download is the original file from a commit of a public repository, checked by its SHA-256. The hub's parquet
files are read through `datasets`.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

from meltpoint import tasks
from meltpoint.tasks.core import registry
from meltpoint.tasks.core.carving import parse_cut
from meltpoint.tasks.core.files import expanded, is_file, is_folder, matching
from meltpoint.tasks.core.readers import first_present
from meltpoint.tasks.core.task import DataSpec, Example, HubSource, Label, ReadExamples, Split, Task
from meltpoint.tasks.core.wording import some

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

    `load_dataset(id, split=…)` would prepare every split including test, so only the files of one split are named.

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
    # Any exception: the hub's client raises those of its HTTP library, which differs between versions.
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
    """The error for data that a library could not fetch, with the remedy.

    Args:
        place: the address of the data.
        done: the participle in the message, such as `loaded` in `could not be loaded`.
    """
    reason = " ".join(str(error).split())[:200]
    return ValueError(
        f"{place} could not be {done} ({type(error).__name__}: {reason}). "
        "Check the network, or read the original files with --data-dir."
    )


def _class_names(features: Mapping[str, object], source: HubSource) -> tuple[str, ...]:
    if not {source.label_column, source.label_column.partition(".")[0]} & {*features}:  # it may be a nested field
        known = ", ".join(features)
        raise ValueError(f"{source.id} has no column '{source.label_column}'; its columns are: {known}.")
    feature = features.get(source.label_column)
    inner = getattr(feature, "feature", feature)  # a list feature wraps the class feature
    return tuple(getattr(inner, "names", None) or ())


def class_id(value: object, names: Sequence[str], labels: Sequence[str]) -> int | None:
    """The class id of a hub label, by name if the column has class names, otherwise by number; None for -1 (hidden).

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
    row: HubRow, position: int, names: tuple[str, ...], *,
    texts: Sequence[str], labels: Sequence[str] = (), label: str = "label", scale: float = 1.0,
    id_column: str | None = None, group: str | None = None,
) -> Example:  # fmt: skip
    """Convert a row with one or two texts and a class (see `class_id`) or, without `labels`, a score times `scale`."""
    return Example(
        id=str(row[id_column]) if id_column else str(position),
        texts=tuple(str(row[column]).strip(" ") for column in texts),
        label=class_id(row[label], names, labels) if labels else _scaled(cast(float | None, row[label]), scale),
        group=str(row[group]) if group else "",
    )


def _scaled(score: float | None, scale: float) -> Label:
    if score is None or score < 0 or math.isnan(score):  # -1 is a hidden score
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


def pinned_names(task: Task, split: Split) -> tuple[str, ...]:
    """The names of a split's original files if all of them can be downloaded, else ()."""
    names = task.files.get(split, ())
    return names if task.pinned is not None and all(name in task.pinned.sha256 for name in names) else ()


@contextmanager
def pinned_folder(task: Task, split: Split) -> Iterator[Path]:
    """A folder with the original files of this split only, downloaded or from the cache of `datasets`.

    Raises:
        ValueError: a file cannot be downloaded, or differs from the commit's.
    """
    assert task.pinned is not None
    with TemporaryDirectory(prefix="meltpoint-files-") as folder:
        for name in pinned_names(task, split):
            url = f"{task.pinned.url}/{task.pinned.renamed.get(name, name)}"
            target = Path(folder) / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(_download(url, task.pinned.sha256[name]), target)
        yield Path(folder)


def _download(url: str, sha256: str) -> Path:
    # Imported here: `datasets` takes a second to import, and reading local files does not need it.
    import datasets

    try:
        # Without ETags: a commit's file never changes, so a downloaded file needs no network again.
        once = datasets.DownloadConfig(use_etag=False)
        path = Path(datasets.DownloadManager(download_config=once).download(url))
    # Any exception: the hub's client raises those of its HTTP library, which differs between versions.
    except Exception as error:
        raise unreachable(url, "downloaded", error) from error
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{url} has the SHA-256 {found[:12]}… instead of {sha256[:12]}…: it is truncated, or another file. "
            f"Delete {path} and try again, or read the original files with --data-dir."
        )
    return path


TestState = Literal["labelled", "carved", "hidden", "absent", "closed"]


def find(spec: DataSpec) -> Task:
    """The task of a data specification; the task's `sample` if the folder has only the sample's files.

    Raises:
        ValueError: an unknown task, or a missing folder.
    """
    return _located(spec)[0]


def _located(spec: DataSpec) -> tuple[Task, Path | None]:
    """The task, and the folder with its original files; None if they are downloaded, or the hub is read."""
    task = tasks.get(spec.task)
    folder = _folder(task, spec)
    if task.sample is not None and _missing(task, folder, "train") and not _missing(task.sample, folder, "train"):
        return task.sample, folder
    return task, folder


def read_split(spec: DataSpec, split: Literal["train", "dev"]) -> list[Example]:
    """Read all examples of train or dev.

    Raises:
        ValueError: the split is neither, or the source is missing or broken.
    """
    if split not in ("train", "dev"):
        raise ValueError(f"The {split} split is locked; only tasks/core/locked.py opens it, once for each finalist.")
    return _read(spec, split)


def read_locked_split(spec: DataSpec) -> list[Example]:
    """Read the examples of the test split. Only `tasks/core/locked.py` may call this, which a test enforces.

    Raises:
        ValueError: the task has no test split, or the source is missing or broken.
    """
    task, folder = _located(spec)
    if _test_state(task, folder) == "absent":
        raise ValueError(_no_split(task, "test"))
    return _read(spec, "test")


def read_locked_also(spec: DataSpec) -> dict[str, list[Example]]:
    """Read the further test splits (`Task.also_test`). Only `tasks/core/locked.py` may call this.

    Raises:
        ValueError: a file is broken.
    """
    task, folder = _located(spec)
    return {} if folder is None else {name: read(folder) for name, read in task.also_test.items()}


def check(spec: DataSpec) -> TestState:
    """Check that the data of all splits exists, without opening a file.

    Returns:
        the state of the test split: `labelled` (the task's own), `carved` (by `test_from`), `hidden` (examples
        without labels, for a server), `absent`, or `closed` by the specification (`locked.open_test` would fail).

    Raises:
        ValueError: an unknown task, a missing folder or file, or a `test_from` that is not part of train or dev.
    """
    task, folder = _located(spec)
    for split in ("train", "dev"):
        _check_files(task, folder, split)
    if spec.test_from:
        parse_cut(spec.test_from)
    if spec.is_test_closed:
        return "closed"
    if spec.test_from or task.test_from:
        if task.also_test:
            _check_files(task, folder, "test")
        return "carved"
    return _test_state(task, folder)


def open_bytes(spec: DataSpec) -> int:
    """The size of the files of train and dev; 0 if there are none, or if they are folders.

    Raises:
        ValueError: an unknown task, or a missing folder.
    """
    task, folder = _located(spec)
    names = {name for split in ("train", "dev") for name in task.files.get(split, ())}
    if folder is None or any(name.endswith("/") for name in names):
        return 0
    paths = [path for name in names for path in (matching(folder, name) if "*" in name else [folder / name])]
    return sum(path.stat().st_size for path in paths if is_file(path))


def _test_state(task: Task, folder: Path | None) -> TestState:
    has_test = _can_be_downloaded(task, "test") if folder is None else "test" in task.readers
    if not has_test or (task.test_labels == "hidden" and _missing(task, folder, "test")):
        return "absent"
    _check_files(task, folder, "test")
    return "labelled" if task.test_labels == "public" else "hidden"


def _folder(task: Task, spec: DataSpec) -> Path | None:
    if task.generated:
        return Path()
    if Path(task.folder).is_absolute():
        return Path(task.folder)
    if spec.data_dir is None or not task.files:
        if not _can_be_downloaded(task, "train"):
            raise ValueError(f"{task.name} is not on the hub. Name the folder of its original files with --data-dir.")
        return None
    folder = expanded(spec.data_dir) / task.folder
    if not is_folder(folder):
        wanted = ", ".join(name for names in task.files.values() for name in names)
        download = ", or leave --data-dir out to download the data." if _can_be_downloaded(task, "train") else "."
        remedy = f"Put them there{download}"
        raise ValueError(f"The folder {folder} is missing; {task.name} reads {wanted} from it. {remedy}")
    return folder


def _missing(task: Task, folder: Path | None, split: Split) -> Path | None:
    if folder is None:
        return None
    return next((path for names in task.files.get(split, ()) if (path := _missing_file(folder, names))), None)


def _missing_file(folder: Path, names: str) -> Path | None:
    """The path of a missing file or folder; None if it exists."""
    if "*" in names:
        return None if matching(folder, names) else folder / names
    if names.endswith("/"):
        return None if is_folder(folder / names) else folder / names
    path = first_present(folder, names)
    return None if is_file(path) else path


def _check_files(task: Task, folder: Path | None, split: Split) -> None:
    if missing := _missing(task, folder, split):
        raise ValueError(f"{missing} is missing; {task.name} needs it. Put the original file there.")


def _read(spec: DataSpec, split: Split) -> list[Example]:
    task, folder = _located(spec)
    if folder is not None:
        if split not in task.readers:
            raise ValueError(_no_split(task, split))
        return task.readers[split](folder)
    if pinned_names(task, split):
        with pinned_folder(task, split) as downloaded:
            return task.readers[split](downloaded)
    if task.hub is None or split not in task.hub.splits:
        raise ValueError(_no_split(task, split))
    return load_hub_split(task.hub, split)


def _can_be_downloaded(task: Task, split: Split) -> bool:
    return bool(pinned_names(task, split)) or (task.hub is not None and split in task.hub.splits)


def _no_split(task: Task, split: Split) -> str:
    return f"{task.name} has no {split} split here. Carve a labelled test with --test-from, such as train[-1000:]."
