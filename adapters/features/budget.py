"""The size limit of the feature cache: eviction of old entries, and the alternatives for features that do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.entries import bytes_of, entries, make_room
from meltpoint.adapters.features.layout import FeatureKey
from meltpoint.adapters.features.reading import needed_bytes

DISK_MARGIN_BYTES = 2**30
"""Kept free on the disk for weights, records and the tracking store, which are written at the same time."""


@dataclass(frozen=True)
class Budget:
    """The limits of the cache.

    Attributes:
        bytes: largest total size of all entries.
        overflow: the alternative for features that do not fit: "bf16" stores float32 features in bfloat16, at half the
            size; "on_the_fly" runs the encoder in each batch.
        disk_margin_bytes: space to keep free on the disk.
    """

    bytes: int
    overflow: Literal["on_the_fly", "bf16"] = "on_the_fly"
    disk_margin_bytes: int = DISK_MARGIN_BYTES


@dataclass(frozen=True)
class Decision:
    """The decision about caching a split's features.

    Attributes:
        key: the entry to open; None to run the encoder in each batch.
        words: one line for the trial's notes.
    """

    key: FeatureKey | None
    words: str


def choose(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: Sequence[int], budget: Budget
) -> Decision:  # fmt: skip
    """Make room for an entry, or choose the alternative.

    The least recently used entries are removed first, except those that a process has open. Two workers that begin
    different entries at the same moment do not see each other's, so that the budget can be exceeded by one entry.
    """
    needed = needed_bytes(folder, key, encoder, split, layers)
    if _make_room(folder, key, needed, budget):
        return Decision(key, f"features: cached in {key.precision}" + (f", {_size(needed)} to write" if needed else ""))
    free = _size(free_bytes(folder))
    short = f"{_size(needed)} in {key.precision} do not fit ({_size(budget.bytes)} allowed, {free} free)"
    if budget.overflow == "bf16" and key.precision == "fp32":
        smaller = choose(folder, replace(key, precision="bf16"), encoder, split, layers, budget)
        return Decision(smaller.key, f"features: {short}; {smaller.words.removeprefix('features: ')}")
    return Decision(None, f"features: {short}; the encoder runs in each batch")


def _make_room(folder: Path, key: FeatureKey, needed: int, budget: Budget) -> bool:
    """Remove entries until the needed bytes fit; removes nothing if that could not suffice."""
    if needed == 0:
        return True
    kept = bytes_of(folder / key.id)
    if needed + kept > budget.bytes:
        return False
    others = [entry for entry in entries(folder) if entry.id != key.id]
    if needed > free_bytes(folder) - budget.disk_margin_bytes + sum(entry.bytes for entry in others):
        return False
    used = kept + sum(entry.bytes for entry in others)
    for entry in others:
        if _fits(folder, used + needed, needed, budget):
            break
        if make_room(folder, entry.id):
            used -= entry.bytes
    return _fits(folder, used + needed, needed, budget)


def _fits(folder: Path, total: int, needed: int, budget: Budget) -> bool:
    return total <= budget.bytes and needed <= free_bytes(folder) - budget.disk_margin_bytes


def free_bytes(folder: Path) -> int:
    """The free bytes of the disk that the folder is, or will be, on."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _size(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
