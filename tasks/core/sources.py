"""Data sources of a task, one split at a time: original files, a download of them, the hub, or a generator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from meltpoint import tasks
from meltpoint.tasks.core.bounded import regular
from meltpoint.tasks.core.carving import parse_cut
from meltpoint.tasks.core.hub import load_hub_split
from meltpoint.tasks.core.paths import exists, expanded, is_file, is_folder, matching
from meltpoint.tasks.core.pinned_files import pinned_folder, pinned_names
from meltpoint.tasks.core.readers import first_present
from meltpoint.tasks.core.task import DataSpec, Example, Split, Task

OpenSplit = Literal["train", "dev"]

TestState = Literal["labelled", "carved", "hidden", "absent", "closed"]


def find(spec: DataSpec) -> Task:
    """The task of a data specification; its sample if the folder has only the files of the sample.

    Raises:
        ValueError: an unknown task, or a missing folder.
    """
    task = tasks.get(spec.task)
    folder = _folder(task, spec)
    if task.sample is not None and _missing(task, folder, "train") and not _missing(task.sample, folder, "train"):
        return task.sample
    return task


def read_split(spec: DataSpec, split: OpenSplit) -> list[Example]:
    """Read all examples of train or dev.

    Raises:
        ValueError: the split is neither, or the source is missing or broken.
    """
    if split not in get_args(OpenSplit):
        raise ValueError(f"The {split} split is locked; only tasks/core/locked.py opens it, once for each finalist.")
    return _read(spec, split)


def read_locked_split(spec: DataSpec) -> list[Example]:
    """Read the examples of the test split. Only `tasks/core/locked.py` may call this, which a test enforces.

    Raises:
        ValueError: the task has no test split, or the source is missing or broken.
    """
    task = find(spec)
    if _test_state(task, _folder(task, spec)) == "absent":
        raise ValueError(_no_split(task, "test"))
    return _read(spec, "test")


def check(spec: DataSpec) -> TestState:
    """Check that the data of all splits exists, without opening a file.

    Returns:
        the state of the test split: `labelled` (the task's own), `carved` (by `test_from`), `hidden` (examples
        without labels, for a server), `absent`, or `closed` by the specification (`locked.open_test` would fail).

    Raises:
        ValueError: an unknown task, a missing folder or file, or a `test_from` that is no part of train or dev.
    """
    task = find(spec)
    sizes = {"--max-train-examples": spec.max_train_examples, "--max-dev-examples": spec.max_dev_examples}
    for option, size in sizes.items():
        if isinstance(size, int) and size < 1:
            raise ValueError(f"{option} is {size}; it takes a whole number of at least 1.")
    folder = _folder(task, spec)
    for split in ("train", "dev"):
        missing = _missing(task, folder, split)
        if missing:
            raise _absent_file(missing, task)
    if spec.test_from:
        parse_cut(spec.test_from)
    if spec.is_test_closed:
        return "closed"
    if spec.test_from or task.test_from:
        return "carved"
    return _test_state(task, folder)


def open_bytes(spec: DataSpec) -> int:
    """The size of the files of train and dev; 0 where they are no files, or folders of many.

    Raises:
        ValueError: an unknown task, or a missing folder.
    """
    task = find(spec)
    folder = _folder(task, spec)
    names = {name for split in ("train", "dev") for name in task.files.get(split, ())}
    if folder is None or any(name.endswith("/") for name in names):
        return 0
    paths = [path for name in names for path in (matching(folder, name) if "*" in name else [folder / name])]
    return sum(path.stat().st_size for path in paths if is_file(path))


def _test_state(task: Task, folder: Path | None) -> TestState:
    has_test = _can_be_downloaded(task, "test") if folder is None else "test" in task.readers
    missing = _missing(task, folder, "test")
    if not has_test or (missing and task.test_labels == "hidden"):
        return "absent"
    if missing:
        raise _absent_file(missing, task)
    return "labelled" if task.test_labels == "public" else "hidden"


def _folder(task: Task, spec: DataSpec) -> Path | None:
    """The folder with the task's original files; None if they are downloaded, or the hub is read."""
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
    """The path of a file or folder that is not there; None if it is."""
    if "*" in names:
        return None if matching(folder, names) else folder / names
    if names.endswith("/"):
        return None if is_folder(folder / names) else folder / names
    path = first_present(folder, names)
    return None if is_file(path) else path


def _absent_file(path: Path, task: Task) -> ValueError:
    if exists(path) and not is_folder(path):
        regular(path)
    return ValueError(f"{path} is missing; {task.name} needs it. Put the original file there.")


def _read(spec: DataSpec, split: Split) -> list[Example]:
    task = find(spec)
    folder = _folder(task, spec)
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
