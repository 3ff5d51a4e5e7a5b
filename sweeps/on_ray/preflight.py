"""The preflight of a sweep on a running cluster: compares every node with the driver, before the first trial.

A node that is slow, late or lost does not stop the sweep: workers check their own machine (`worker.fitness`). Ray
itself refuses nodes with another Ray or Python. Light to import: nodes answer before they import torch.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meltpoint.adapters import encoders
from meltpoint.sweeps.machine.services import Check, existing
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.room import Node, trials_on
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.storage.files import StoragePath, remove, storage_path, write
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from meltpoint.sweeps.specification.cells import OpenCell

SECONDS, VARIABLE = 8.0, "MELTPOINT_PREFLIGHT_SECONDS"
"""Time that a sweep waits for the nodes' answers, and the environment variable that changes it."""
DOCTOR_SECONDS = 30.0
"""The same for `doctor`, which also waits for slow nodes."""
VISIBLE_SECONDS = 2.0
"""The longest time until a file appears on a network file system."""
COMPUTING = ("torch", "transformers", "pytorch-crf", "numpy", "tokenizers", "safetensors")
"""Packages that scores depend on."""
TOKEN_FILE = "driver"
"""The driver's file in the probe's folder; each node writes a file with its own name next to it."""

NODES, CODE, PACKAGES, STORAGE, INPUTS = (
    "nodes", "code on the nodes", "packages on the nodes", "storage on the nodes", "data on the nodes",
)  # fmt: skip
MAY_DIFFER = frozenset({NODES, PACKAGES})
"""Checks whose failure a sweep only reports."""
REMEDIES = {
    NODES: "check that node's load, firewall and Meltpoint installation, or remove it",
    CODE: "install the driver's version on every node, or submit the sweep with `ray job submit --working-dir`",
    PACKAGES: "install the driver's versions there (pip install -c constraints.txt), or scores depend on the node",
    STORAGE: "set --storage to a folder that all nodes mount at the same path, or start Ray with the store's variables",
    INPUTS: "put the same files there, at the same paths (--data-dir)",
}

Facts = Mapping[str, Mapping[str, str]]
"""Check → subject → its state on one machine. A node is fit if its facts equal the driver's."""


def require_fit_nodes(storage: StoragePath, cells: Sequence[OpenCell], cpus: float, say: Callable[[str], None]) -> None:
    """Check the nodes of the joined cluster for a sweep.

    Args:
        cpus: CPUs per trial.
        say: receives a line for each difference that does not stop the sweep.

    Raises:
        ValueError: a node has different code, storage or data; one line names the node.
    """
    data = {cell.data: cell.data_fingerprint for cell in cells}
    folders = [cell for cell in cells if cell.reference.is_folder]
    words = {(cell.located_encoder, cell.task.kind): cell.encoder_fingerprint for cell in folders}
    seconds = float(os.environ.get(VARIABLE, SECONDS))
    faults = [one for one in check_nodes(storage, seconds, cpus, data, words) if not one.ok]
    for check in faults:
        if check.name in MAY_DIFFER:
            say(f"{check.name}: {check.detail}; {check.remedy}.")
    stops = [f"{one.name}: {one.detail}; {one.remedy}." for one in faults if one.name not in MAY_DIFFER]
    if stops:
        raise ValueError(" ".join(stops))


def cluster_checks(address: str, storage: StoragePath) -> list[Check]:
    """The checks of `doctor` for a running cluster: joins it, and leaves nothing behind.

    Args:
        address: as in `--address`.
        storage: the folder of sweeps, which need not exist.
    """
    place = existing(storage) if isinstance(storage, Path) else storage
    try:
        with Cluster(address) as cluster:
            cluster.join()
            return check_nodes(place, DOCTOR_SECONDS)
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return [Check(NODES, False, fault, remedy or "see `meltpoint doctor`")]


def check_nodes(
    storage: StoragePath, seconds: float, cpus: float = 0.0, data: Mapping[DataSpec, str] = MappingProxyType({}),
    words: Mapping[tuple[str, Kind], str] = MappingProxyType({}),
) -> list[Check]:  # fmt: skip
    """The checks of the joined cluster's nodes.

    Args:
        storage: the folder or object store of sweeps.
        seconds: time for the answers.
        cpus: CPUs per trial; nodes with fewer are skipped.
        data: data → fingerprint that every node should read.
        words: (encoder, kind of task) → fingerprint of its folder.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    names = node_names([node for node in alive if trials_on(node, max(cpus, 0.01), 0.0)])
    inputs = {spec.task: fingerprint for spec, fingerprint in data.items()}
    inputs |= {word: fingerprint for (word, _), fingerprint in words.items()}
    with _probe(storage) as (probe, token):
        wanted = {**node_facts("here", str(probe), token, [], []), INPUTS: inputs}
        found, silent = _ask(names, seconds, str(probe), token, list(data), list(words))
    return judged(wanted, found, silent)


@contextmanager
def _probe(storage: StoragePath) -> Iterator[tuple[StoragePath, str]]:
    """A folder in the storage with a token in it; removed afterwards, with the nodes' files."""
    token = uuid.uuid4().hex
    probe: StoragePath
    if isinstance(storage, Path):
        probe = Path(tempfile.mkdtemp(prefix=".preflight-", dir=storage))
        probe.chmod(0o777)  # the nodes' Ray may belong to other users
    else:
        probe = storage / f"preflight-{token}"
    try:
        write(probe / TOKEN_FILE, token)
        yield probe, token
    finally:
        with suppress(OSError):
            remove(probe)


def _ask(
    names: Mapping[str, str], seconds: float, *question: Any
) -> tuple[dict[str, Facts], dict[str, str]]:  # fmt: skip
    """Query the nodes in parallel; returns (node name → its facts, node name → why it has none).

    Args:
        question: the arguments of `node_facts` after the first.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(node_facts)
    asked = {}
    for node, name in names.items():
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        asked[there.remote(node, *question)] = name
    found: dict[str, Facts] = {}
    silent: dict[str, str] = {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=seconds) if asked else ([], [])
    for reference in ready:
        try:
            found[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayError as error:
            silent[asked[reference]] = fault_of(error)
    for reference in late:
        ray.cancel(reference, force=True)
        silent[asked[reference]] = f"no answer in {seconds:g} s"
    return found, silent


def node_names(nodes: Sequence[Node]) -> dict[str, str]:
    """Node id → name: its address, with a part of its id if several nodes share the address."""
    addresses = [node["NodeManagerAddress"] for node in nodes]
    return {
        str(node["NodeID"]): address if addresses.count(address) == 1 else f"{address} (node {node['NodeID'][:8]})"
        for node, address in zip(nodes, addresses, strict=True)
    }


def fault_of(error: BaseException) -> str:
    """One line on why a node could not answer: an error's text ends with the error itself."""
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    if "No module named 'meltpoint" in str(error):
        return "has no Meltpoint, or an older version, in Ray's Python"
    return last[0].strip()[:200]


def judged(wanted: Facts, found: Mapping[str, Facts], silent: Mapping[str, str]) -> list[Check]:
    """Every check of a cluster's nodes, in the order in which you would fix them.

    Args:
        wanted: the facts of a fit node.
        found: node name → its facts.
        silent: node name → why it did not answer.
    """
    faults = {NODES: [f"{node}: {why}" for node, why in silent.items()]}
    for check, own in wanted.items():
        faults[check] = [
            f"{node}: {subject} {there} (the driver: {value})"
            for node, facts in found.items() for subject, value in own.items()
            if (there := facts.get(check, {}).get(subject, "none")) != value
        ]  # fmt: skip
    ok = f"the same on {some(len(found), 'node')}: {', '.join(found)}"
    return [
        Check(name, not said, "; ".join(said) or ok, REMEDIES[name] if said else "") for name, said in faults.items()
    ]


def node_facts(
    name: str, probe: str, token: str, data: Sequence[DataSpec], words: Sequence[tuple[str, Kind]]
) -> dict[str, dict[str, str]]:
    """The facts about this machine.

    Args:
        name: a file name for this node's answer in the probe's folder.
        probe: a folder in the sweep's storage where the driver has written a token.
        data: the data whose train and dev splits are read.
        words: encoder names, each with its kind of task.
    """
    inputs = {spec.task: _or_fault(lambda spec=spec: load_training_data(spec).fingerprint) for spec in data}
    for word, kind in words:
        inputs[word] = _or_fault(lambda word=word, kind=kind: encoders.fingerprint(encoders.resolve(word, kind)))
    return {
        CODE: {"Meltpoint": code_version()},
        PACKAGES: {name: version for name in COMPUTING if (version := _installed(name))},
        STORAGE: {str(storage_path(probe).parent): storage_state(storage_path(probe), name, token)},
        INPUTS: inputs,
    }


def _installed(package: str) -> str:
    """A package's version without the build ("2.13.0", not "2.13.0+cpu"); "" if it is not installed."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _or_fault(fingerprint: Any) -> str:
    try:
        return str(fingerprint())
    except (ValueError, OSError) as error:
        return f"cannot be read ({' '.join(str(error).split())})"


def storage_state(probe: StoragePath, name: str, token: str) -> str:
    """The state of a probe's storage in a few words: whether this machine can read and write it."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    written = probe / TOKEN_FILE
    try:
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if written.read_text(encoding="utf-8") != token:
            return "is a different folder"
        write(probe / name, token)
    except FileNotFoundError:
        return "is a different folder" if probe.parent.is_dir() else "is missing"
    except (OSError, ValueError) as error:
        return f"cannot be read and written ({getattr(error, 'strerror', None) or str(error).removesuffix('.')})"
    return "can be read and written"
