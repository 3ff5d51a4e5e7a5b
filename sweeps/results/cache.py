"""What `meltpoint cache` lists and removes: the features that sweeps of a storage folder keep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meltpoint.adapters.features.entries import Entry, entries, remove
from meltpoint.sweeps.ledger.ledger import cache_folder, features_folder, first_phases_folder, storage_folder
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.tasks.core.counts import some


@dataclass(frozen=True)
class Removal:
    """What `cache rm` did.

    Attributes:
        removed: the entries that are gone.
        busy: those that a process has open; they stay.
    """

    removed: tuple[Entry, ...]
    busy: tuple[Entry, ...]


def feature_folder(storage: Path) -> Path:
    """Where a storage folder keeps features."""
    return features_folder(cache_folder(storage.absolute()))


def listed(storage: Path) -> list[dict[str, object]]:
    """One row an entry, the one that was used least recently first; sizes in bytes, times in seconds since 1970."""
    return [asdict(entry) for entry in entries(feature_folder(storage))]


def shown(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The same for people: sizes and times in words."""
    return [_in_words(row) for row in rows]


def _in_words(row: dict[str, object]) -> dict[str, object]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(row["last_used"]))))
    row = {**row, "size": f"{int(str(row['bytes'])) / 1e6:.1f} MB", "last_used": used}
    return {key: value for key, value in row.items() if key != "bytes"}


def remove_entries(storage: Path, ids: Sequence[str], task: str | None, everything: bool) -> Removal:
    """Remove entries that no process has open.

    Args:
        ids: ids or their beginnings.
        task: remove what this task asked for.
        everything: remove all.

    Raises:
        ValueError: nothing or two things are named, an id is unknown or fits several entries, a task has no entry.
    """
    if (bool(ids), task is not None, everything).count(True) != 1:
        raise ValueError("cache rm takes ids, or --task T, or --all; `meltpoint cache ls` shows what there is.")
    folder = feature_folder(storage)
    there = entries(folder)
    chosen = there if everything else [_find(there, one) for one in ids] if ids else _of_task(there, str(task))
    gone = {entry.id: remove(folder, entry.id) for entry in dict.fromkeys(chosen)}
    removed = tuple(entry for entry in there if gone.get(entry.id) is True)
    return Removal(removed, tuple(entry for entry in there if gone.get(entry.id) is False))


def trim(resources: Resources) -> int:
    """Leave what a finished sweep leaves: no stages, and the features used last, as far as they may stay.

    Entries that another process has open stay.

    Returns:
        the bytes that were freed.
    """
    cache, freed = cache_folder(storage_folder(resources.storage)), 0
    for path in first_phases_folder(cache).glob("*.safetensors"):
        with suppress(FileNotFoundError):  # another sweep of this storage makes room too
            freed += path.stat().st_size
            path.unlink()
    there = entries(features_folder(cache))
    used = sum(entry.bytes for entry in there)
    for entry in there:
        if used > resources.cache_keep_bytes and remove(features_folder(cache), entry.id):
            used, freed = used - entry.bytes, freed + entry.bytes
    return freed


def _find(there: Sequence[Entry], beginning: str) -> Entry:
    found = [entry for entry in there if entry.id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    what = f"fits {some(len(found), 'entry')}; write more of it" if found else "is no entry"
    raise ValueError(f"'{beginning}' {what}; `meltpoint cache ls` shows what there is.")


def _of_task(there: Sequence[Entry], task: str) -> list[Entry]:
    found = [entry for entry in there if task in entry.task.split(", ")]
    if not found:
        tasks = sorted({word for entry in there for word in entry.task.split(", ")})
        raise ValueError(f"no entry is of task '{task}'; there are entries of: {', '.join(tasks) or 'no task'}.")
    return found
