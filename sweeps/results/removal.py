"""Removal of a sweep or its weights (`rm`), never while a process drives it, and of cached states (`cache`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meltpoint.adapters.features import Entry, entries, make_room
from meltpoint.adapters.features import remove as remove_entry
from meltpoint.adapters.files import check_removable
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.storage.files import (
    StoragePath,
    cache_folder,
    features_folder,
    remove,
    storage_path,
    sweep_folder,
)


@dataclass(frozen=True)
class Removable:
    """The part of a sweep that would be removed.

    Attributes:
        folder: the folder to remove.
        files: the number of its files.
        bytes: their total size.
    """

    folder: StoragePath
    files: int
    bytes: int


def removable(storage: StoragePath, name: str, only_checkpoints: bool) -> Removable:
    """The files that `remove_sweep` would remove; a sweep with damaged files can be removed completely.

    Raises:
        ValueError: the sweep does not exist, or still needs its weights because it is not done.
    """
    ledger = Ledger(sweep_folder(storage, name))
    is_rest = ledger.drivers.is_dir()  # the rest of an interrupted removal
    if not ledger.specification.exists() and (only_checkpoints or not is_rest):
        read_sweep(ledger)  # raises, and lists the existing sweeps
    if only_checkpoints and (state := summarise(ledger).state) != "done":
        raise ValueError(
            f"Sweep '{name}' is {state}: without its weights, its finalists would train again. Finish it, or remove "
            "the whole sweep."
        )
    folder = ledger.folder / "checkpoints" if only_checkpoints else ledger.folder
    sizes = [path.stat().st_size for path in _files(folder)]
    return Removable(folder, len(sizes), sum(sizes))


def _files(folder: StoragePath) -> Iterator[StoragePath]:
    if isinstance(folder, Path):
        return (path for path in sorted(folder.rglob("*")) if path.is_file())
    return folder.files()


def remove_sweep(storage: StoragePath, name: str, found: Removable) -> None:
    """Remove the files found by `removable`. MLflow's runs stay, and so does the cache that sweeps share.

    Raises:
        ValueError: another process drives the sweep.
        OSError: a file cannot be removed or is a link, and nothing was removed; or the removal failed halfway.
    """
    ledger = Ledger(sweep_folder(storage, name))
    is_whole = found.folder == ledger.folder
    with ledger.driving():
        if isinstance(found.folder, Path) and found.folder.exists():
            check_removable(found.folder)
        remove(ledger.specification if is_whole else found.folder)  # first: an interrupted removal leaves no sweep
    if is_whole:
        parts: list[StoragePath] = list(ledger.folder.iterdir())
        for path in parts:
            if path.name != ledger.drivers.name:  # last: the same command recognises an interrupted removal by it
                remove(path)
        remove(ledger.folder)


def listed(storage: StoragePath, cache_dir: str | None = None) -> list[dict[str, object]]:
    """One row per entry, least recently used first; sizes in bytes, times in seconds since 1970.

    Args:
        cache_dir: as in `storage.files.cache_folder`.
    """
    return [asdict(entry) for entry in entries(features_folder(cache_folder(storage, cache_dir)))]


def remove_entries(
    storage: StoragePath, ids: Sequence[str], everything: bool, cache_dir: str | None = None
) -> tuple[list[Entry], list[str]]:  # fmt: skip
    """Remove entries that no process has open.

    Args:
        storage: the folder of all sweeps, or an object store.
        ids: ids or prefixes of ids.
        everything: remove all entries.
        cache_dir: as in `storage.files.cache_folder`.

    Returns:
        The removed entries; and one line for each kept one with the reason: a process has it open, or a file cannot be
        deleted.

    Raises:
        ValueError: not exactly one of the two is given, or an id is unknown or ambiguous.
    """
    if bool(ids) == everything:
        raise ValueError("cache rm takes ids or --all; `meltpoint cache ls` lists the entries.")
    folder = features_folder(cache_folder(storage, cache_dir))
    chosen = entries(folder)
    for prefix in ids:
        if (count := sum(entry.id.startswith(prefix) for entry in chosen)) != 1:
            raise ValueError(f"'{prefix}' matches {count or 'no'} entries; `meltpoint cache ls` lists the entries.")
    removed, kept = [], []
    for entry in chosen:
        if not everything and not entry.id.startswith(tuple(ids)):
            continue
        try:
            if remove_entry(folder, entry.id):
                removed.append(entry)
            else:
                kept.append(f"{entry.id} is in use; first stop the sweep that reads it.")
        except OSError as error:
            kept.append(f"{entry.id}: {error}.")
    return removed, kept


def trim(resources: Resources) -> int:
    """Trim the cache after a finished sweep: delete features beyond `--cache-keep`.

    The least recently used features are deleted first; entries that another process has open are kept. If each node has
    its own cache, only the one on this machine is trimmed.

    Returns:
        the freed bytes.
    """
    folder, freed = features_folder(cache_folder(storage_path(resources.storage), resources.cache_dir)), 0
    existing = entries(folder)
    used = sum(entry.bytes for entry in existing)
    for entry in existing:
        if used > resources.cache_keep and make_room(folder, entry.id):
            used, freed = used - entry.bytes, freed + entry.bytes
    return freed
