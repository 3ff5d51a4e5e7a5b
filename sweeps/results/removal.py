"""Removal of a sweep, or of its weights alone: never while a process drives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meltpoint.adapters.files import check_removable
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.storage.files import StoragePath, remove, sweep_folder


@dataclass(frozen=True)
class Removable:
    """The part of a sweep that would be removed.

    Attributes:
        folder: with everything in it.
        files: how many files it has.
        bytes: their size.
    """

    folder: StoragePath
    files: int
    bytes: int


def removable(storage: StoragePath, name: str, only_checkpoints: bool) -> Removable:
    """The files that `remove_sweep` would remove; a sweep whose files are damaged can be removed whole.

    Raises:
        ValueError: there is no such sweep; or its weights are still needed, since it is not done.
    """
    ledger = Ledger(sweep_folder(storage, name))
    is_rest = ledger.drivers.is_dir()  # of a removal that was cut off
    if not ledger.specification.exists() and (only_checkpoints or not is_rest):
        read_sweep(ledger)  # says which sweeps there are
    if only_checkpoints and (state := summarise(ledger).state) != "done":
        raise ValueError(
            f"Sweep '{name}' is {state}: without its weights its finalists would train again. Finish it, or remove it "
            "whole."
        )
    folder = ledger.folder / "checkpoints" if only_checkpoints else ledger.folder
    sizes = [path.stat().st_size for path in _files(folder)]
    return Removable(folder, len(sizes), sum(sizes))


def _files(folder: StoragePath) -> Iterator[StoragePath]:
    if isinstance(folder, Path):
        return (path for path in sorted(folder.rglob("*")) if path.is_file())
    return folder.files()


def remove_sweep(storage: StoragePath, name: str, found: Removable) -> None:
    """Remove what `removable` has found. MLflow's runs stay, and so does the cache that sweeps share.

    Raises:
        ValueError: another process drives the sweep.
        OSError: a file cannot be removed, or is a link, so that nothing was; or it went wrong in the midst.
    """
    ledger = Ledger(sweep_folder(storage, name))
    is_whole = found.folder == ledger.folder
    with ledger.driving():
        if isinstance(found.folder, Path) and found.folder.exists():
            check_removable(found.folder)
        remove(ledger.specification if is_whole else found.folder)  # first: what an interruption leaves is no sweep
    if is_whole:
        parts: list[StoragePath] = list(ledger.folder.iterdir())
        for path in parts:
            if path.name != ledger.drivers.name:  # last: by it the same command knows the rest of a sweep
                remove(path)
        remove(ledger.folder)
