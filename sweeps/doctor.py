"""What this machine has and lacks for a sweep: one check a line, each with its remedy. Nothing is printed here."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from packaging.requirements import Requirement

from meltpoint.adapters.hardware import bf16_is_native
from meltpoint.sweeps.reach import Check, ray_cluster, tracking_store

GIB = 1024**3

LEAST_FREE_BYTES = GIB
"""A sweep of 12 cells with 4 trials and 2 seeds stays under 1 GB, its finalists' checkpoints and its store counted."""

LEAST_MEMORY_BYTES = 4 * GIB
"""Ray's own processes and two workers, each with torch and the 6-layer default encoder in training."""

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of all-MiniLM-L6-v2's model.safetensors, as published on the hub."""


def checks(storage: Path, tracking_uri: str | None, address: str | None) -> list[Check]:
    """Every check, in the order in which a person would fix what is wrong.

    Nothing stays behind: a storage folder that does not exist is not made, a store is not migrated.

    Args:
        storage: the folder that sweeps are kept in.
        tracking_uri: MLflow's store, or None for the default one in `storage`.
        address: a running Ray cluster (`HOST:PORT`, `ray://HOST:PORT`, `http://HOST:PORT`, `auto`), or None for a
            local one.
    """
    return [
        python(),
        *packages(),
        cores(),
        memory(),
        bf16(),
        *gpus(),
        storage_folder(storage),
        tracking_store(tracking_uri or f"sqlite:///{storage.absolute() / 'mlflow.db'}"),
        hub_cache(os.environ),
        minilm(),
        ray_cluster(address),
        ray_token(os.environ),
    ]
