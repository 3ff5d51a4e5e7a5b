"""The folders of a storage: a sweep's, what trials share, MLflow's artifacts."""

from __future__ import annotations

import os
from pathlib import Path

from meltpoint.sweeps.storage.files import StoragePath

NODE_CACHE = "~/.cache/meltpoint/sweeps"
"""The folder of each node for what trials share if the storage is an object store, which cannot be memory-mapped."""


def cache_folder(storage: StoragePath, cache_dir: str | None = None) -> str:
    """The folder of what trials share: cached features and first phases. It may be deleted.

    Args:
        cache_dir: `--cache-dir`, a folder of each node; None for the storage's own, which all nodes share.

    Returns:
        A path as it is written; `~` is the home on the node that uses it.
    """
    if cache_dir is not None:
        return cache_dir
    return str(storage / "cache") if isinstance(storage, Path) else NODE_CACHE


def sweep_folder(storage: StoragePath, name: str) -> StoragePath:
    """The folder of a sweep in a storage.

    Raises:
        ValueError: the name is no single folder's, so that it could lie outside the storage.
    """
    if name in ("", ".", "..") or set(name) & {"/", os.sep, "\0"}:
        raise ValueError(f"{name!r} is no name of a sweep; name one in {storage}, or another folder with --storage.")
    return storage / name


def artifacts_folder(storage: StoragePath) -> StoragePath:
    """The folder of the artifacts of all sweeps' MLflow runs."""
    return storage / "mlartifacts"


def features_folder(cache: str) -> Path:
    """The folder of frozen encoders' hidden states, on this machine."""
    return Path(cache).expanduser() / "features"


def first_phases_folder(cache: str) -> Path:
    """The folder of checkpoints of first phases that several trials continue from, on this machine."""
    return Path(cache).expanduser() / "stages"
