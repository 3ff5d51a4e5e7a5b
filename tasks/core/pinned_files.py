"""Download of a task's original files from a commit of a public repository, each checked by its SHA-256."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from meltpoint.tasks.core.hub import unreachable
from meltpoint.tasks.core.task import Split, Task


def pinned_names(task: Task, split: Split) -> tuple[str, ...]:
    """The names of a split's original files if all of them can be downloaded, else ()."""
    names = task.files.get(split, ())
    return names if task.pinned is not None and all(name in task.pinned.sha256 for name in names) else ()


@contextmanager
def pinned_folder(task: Task, split: Split) -> Iterator[Path]:
    """A folder with the original files of one split and of no other, downloaded or from the cache of `datasets`.

    Raises:
        ValueError: a file cannot be had, or is another than the commit's.
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
        # Without ETags: a commit's file does not change, and what was downloaded once needs no network any more.
        once = datasets.DownloadConfig(use_etag=False)
        path = Path(datasets.DownloadManager(download_config=once).download(url))
    # Any exception: the HTTP library's are passed on, and differ between versions.
    except Exception as error:
        raise unreachable(url, "downloaded", error) from error
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{url} came with the SHA-256 {found[:12]}… instead of {sha256[:12]}…: it was cut off, or is another file. "
            f"Delete {path} and try again, or read the original files with --data-dir."
        )
    return path
