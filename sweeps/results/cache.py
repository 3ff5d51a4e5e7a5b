"""Listing and removing entries of a storage's feature cache (`meltpoint cache`), and trimming it after a sweep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meltpoint.adapters.features.entries import Entry, entries, make_room
from meltpoint.adapters.features.entries import remove as remove_entry
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.storage.files import StoragePath, cache_folder, features_folder, first_phases_folder, storage_path
from meltpoint.tasks.core.wording import some


@dataclass(frozen=True)
class Removal:
    """The result of `cache rm`.

    Attributes:
        removed: the removed entries.
        kept: why others were kept, a line each: a process has them open, or a file cannot be deleted.
    """

    removed: tuple[Entry, ...]
    kept: tuple[str, ...]


def feature_folder(storage: StoragePath, cache_dir: str | None = None) -> Path:
    """The folder of a storage's feature cache, on this machine; `cache_dir` as in `layout.cache_folder`."""
    return features_folder(cache_folder(storage, cache_dir))


def listed(storage: StoragePath, cache_dir: str | None = None) -> list[dict[str, object]]:
    """One row per entry, the least recently used first; sizes in bytes, times in seconds since 1970."""
    return [asdict(entry) for entry in entries(feature_folder(storage, cache_dir))]


def shown(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The rows of `listed` with formatted sizes and times, for display."""
    return [_in_words(row) for row in rows]


def _in_words(row: dict[str, object]) -> dict[str, object]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(row["last_used"]))))
    row = {**row, "size": f"{int(str(row['bytes'])) / 1e6:.1f} MB", "last_used": used}
    return {key: value for key, value in row.items() if key != "bytes"}


def remove_entries(
    storage: StoragePath, ids: Sequence[str], task: str | None, everything: bool, cache_dir: str | None = None
) -> Removal:  # fmt: skip
    """Remove entries that no process has open.

    Args:
        storage: the folder of all sweeps, or an object store.
        ids: ids or prefixes of ids.
        task: remove the entries of this task.
        everything: remove all entries.
        cache_dir: as in `layout.cache_folder`.

    Raises:
        ValueError: not exactly one of the three is given, an id is unknown or ambiguous, or a task has no entry.
    """
    if (bool(ids), task is not None, everything).count(True) != 1:
        raise ValueError("cache rm takes ids, or --task T, or --all; `meltpoint cache ls` shows what there is.")
    folder = feature_folder(storage, cache_dir)
    existing = entries(folder)
    chosen = existing if everything else [_find(existing, one) for one in ids] if ids else _of_task(existing, str(task))
    removed, kept = [], []
    for entry in dict.fromkeys(chosen):
        try:
            if remove_entry(folder, entry.id):
                removed.append(entry)
            else:
                kept.append(f"{entry.id} is in use; stop the sweep that reads it first.")
        except OSError as error:
            kept.append(f"{entry.id}: {error}.")
    return Removal(tuple(removed), tuple(kept))


def trim(resources: Resources) -> int:
    """Trim the cache after a finished sweep: delete all first phases, and features beyond `cache_keep_bytes`.

    The least recently used features are deleted first; entries that another process has open are kept. Of caches that
    are local to nodes, only this machine's is trimmed.

    Returns:
        the freed bytes.
    """
    cache, freed = cache_folder(storage_path(resources.storage), resources.cache_dir), 0
    for path in first_phases_folder(cache).glob("*.safetensors"):
        with suppress(OSError):  # another sweep of this storage may delete it at the same time
            size = path.stat().st_size
            path.unlink()
            freed += size
    existing = entries(features_folder(cache))
    used = sum(entry.bytes for entry in existing)
    for entry in existing:
        if used > resources.cache_keep and make_room(features_folder(cache), entry.id):
            used, freed = used - entry.bytes, freed + entry.bytes
    return freed


def _find(existing: Sequence[Entry], prefix: str) -> Entry:
    """The only entry whose id has this prefix."""
    matches = [entry for entry in existing if entry.id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    problem = f"fits {some(len(matches), 'entry')}; write more of it" if matches else "is no entry"
    raise ValueError(f"'{prefix}' {problem}; `meltpoint cache ls` shows what there is.")


def _of_task(existing: Sequence[Entry], task: str) -> list[Entry]:
    """The entries of a task, at least one."""
    matches = [entry for entry in existing if task in entry.task.split(", ")]
    if not matches:
        tasks = sorted({word for entry in existing for word in entry.task.split(", ")})
        raise ValueError(f"no entry is of task '{task}'; there are entries of: {', '.join(tasks) or 'no task'}.")
    return matches
