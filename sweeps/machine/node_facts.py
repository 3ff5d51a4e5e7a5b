"""The facts about one machine of a cluster that a sweep depends on; gathered there, and compared by `cluster_checks`.

Light to import: a node answers before it has imported torch. Facts are plain values, so that a node with other code can
send them.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

import meltpoint
from meltpoint.adapters import encoders
from meltpoint.sweeps.machine.services import connection_fault, existing
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.storage.files import StoragePath, scratch_of, storage_path, write
from meltpoint.sweeps.storage.object_store import StoreError
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind

COMPUTING = ("torch", "transformers", "pytorch-crf", "numpy", "tokenizers", "safetensors")
"""Packages that numbers depend on."""

ON = {"1", "on", "true", "yes"}
"""The values that huggingface_hub takes for a set switch, in lower case."""

TOKEN_FILE = "driver"
"""The file in the probe's folder that the driver writes; each node writes one of its own name beside it."""

VISIBLE_SECONDS = 2.0
"""How long a file may take to be seen on a network file system."""


class NodeFacts(TypedDict):
    """The facts about a machine.

    Attributes:
        host: its name.
        ray, python, meltpoint: versions.
        code: the version of Meltpoint's code, its digest included.
        packages: package → version without the build ("2.13.0", not "2.13.0+cpu"), of those that are installed.
        storage: what is wrong with the sweep's storage there; "" where nothing is.
        free_bytes: on the storage's disk; on that of temporary files if the storage is an object store.
        folders: folder that was asked for → number of files, bytes in them; None where it is not there.
        hub: "offline", "reached", or why the hub is not reached; "" where that was not asked.
        clock: seconds since 1970.
    """

    host: str
    ray: str
    python: str
    meltpoint: str
    code: str
    packages: dict[str, str]
    storage: str
    free_bytes: int
    folders: dict[str, tuple[int, int] | None]
    hub: str
    clock: float


def node_facts(name: str, probe: str, token: str, folders: Sequence[str] = (), asks_hub: bool = False) -> NodeFacts:
    """The facts about this machine.

    Args:
        name: a file name for this node's answer in the probe's folder.
        probe: a folder in the sweep's storage, in which the driver has written a token.
        token: the token.
        folders: folders to be looked into.
        asks_hub: whether the hub is tried.
    """
    clock = time.time()
    return NodeFacts(
        host=socket.gethostname(), ray=metadata.version("ray"), python=platform.python_version(),
        meltpoint=meltpoint.__version__, code=code_version(), packages=packages(),
        storage=storage_fault(storage_path(probe), name, token),
        free_bytes=shutil.disk_usage(existing(scratch_of(storage_path(probe)))).free,
        folders={folder: size_of(Path(folder)) for folder in folders}, hub=hub(os.environ) if asks_hub else "",
        clock=clock,
    )  # fmt: skip


def packages() -> dict[str, str]:
    """The versions of the packages that numbers depend on."""
    found = {}
    for name in COMPUTING:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def storage_fault(probe: StoragePath, name: str, token: str) -> str:
    """The fault of the storage that a probe lies in, in a few words; "" if this machine reads it and writes it."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    written = probe / TOKEN_FILE
    try:
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if written.read_text(encoding="utf-8") != token:
            return f"has another folder {probe.parent}"
        write(probe / name, token)
    except (StoreError, ValueError) as error:
        return f"has no way to the storage ({str(error).removesuffix('.')})"
    except FileNotFoundError:
        return f"{'has another folder' if probe.parent.is_dir() else 'does not see'} {probe.parent}"
    except OSError as error:
        return f"cannot {'write' if written.exists() else 'read'} {probe.parent} ({error.strerror})"
    return ""


def size_of(folder: Path) -> tuple[int, int] | None:
    """(number of files, their bytes) below a folder; None if it is not there."""
    if not folder.is_dir():
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def hub(environment: Mapping[str, str]) -> str:
    """ "offline", "reached", or why the Hugging Face hub is not reached from this machine."""
    if environment.get("HF_HUB_OFFLINE", "").lower() in ON:
        return "offline"
    if any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy")):
        return "reached"  # a proxy decides that; huggingface_hub tells what it says
    parts = urlsplit(environment.get("HF_ENDPOINT") or "https://huggingface.co")
    fault = connection_fault(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))
    return f"{parts.hostname}: {fault}" if fault else "reached"


def input_facts(data: Sequence[DataSpec], words: Sequence[tuple[str, Kind]]) -> dict[str, str]:
    """The fingerprints of data and of encoders' folders as this machine reads them, or one line on what is wrong.

    Args:
        data: which data; train and dev are read.
        words: encoders, with the kind of task that each is for.

    Returns:
        The task's or the encoder's word → fingerprint, or `cannot be read (…)`.
    """
    found: dict[str, str] = {}
    for spec in data:
        found[spec.task] = _or_fault(lambda spec=spec: load_training_data(spec).fingerprint)
    for word, kind in words:
        found[word] = _or_fault(lambda word=word, kind=kind: encoders.fingerprint(encoders.resolve(word, kind)))
    return found


def _or_fault(fingerprint: Any) -> str:
    try:
        return str(fingerprint())
    except (ValueError, OSError) as error:
        return f"cannot be read ({' '.join(str(error).split())})"
