"""The checks of a cluster's nodes: the facts about each machine, and their comparison with the driver's.

The facts are gathered on the node, which answers before it imports torch. They are plain values, so that a node with
other code can send them. Each check gives one line, with the nodes at fault."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

import meltpoint
from meltpoint.adapters import encoders
from meltpoint.sweeps.machine.services import Check, connection_fault, existing
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.storage.files import StoragePath, scratch_of, storage_path, write
from meltpoint.sweeps.storage.object_store import StoreError
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Kind
from meltpoint.tasks.core.wording import some

COMPUTING = ("torch", "transformers", "pytorch-crf", "numpy", "tokenizers", "safetensors")
"""Packages that scores depend on."""

ON = {"1", "on", "true", "yes"}
"""The values that huggingface_hub takes for a set switch, in lower case."""

TOKEN_FILE = "driver"
"""The driver's file in the probe's folder; each node writes a file with its own name next to it."""

VISIBLE_SECONDS = 2.0
"""The longest time until a file appears on a network file system."""


class NodeFacts(TypedDict):
    """The facts about a machine.

    Attributes:
        host: its name.
        ray, python, meltpoint: versions.
        code: the version of Meltpoint's code, including its digest.
        packages: installed package → version without the build ("2.13.0", not "2.13.0+cpu").
        storage: the fault of the sweep's storage there; "" if it has none.
        free_bytes: on the storage's disk; on the disk of temporary files if the storage is an object store.
        folders: requested folder → number of files, bytes in them; None if it is missing.
        hub: "offline", "reached", or why the hub is not reached; "" if not tested.
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
        probe: a folder in the sweep's storage where the driver has written a token.
        token: the token.
        folders: folders to inspect.
        asks_hub: whether to try to reach the hub.
    """
    clock = time.time()
    return NodeFacts(
        host=socket.gethostname(), ray=metadata.version("ray"), python=platform.python_version(),
        meltpoint=meltpoint.__version__, code=code_version(), packages=installed_packages(),
        storage=probe_fault(storage_path(probe), name, token),
        free_bytes=shutil.disk_usage(existing(scratch_of(storage_path(probe)))).free,
        folders={folder: size_of(Path(folder)) for folder in folders}, hub=hub_state(os.environ) if asks_hub else "",
        clock=clock,
    )  # fmt: skip


def installed_packages() -> dict[str, str]:
    """The versions of the installed packages among `COMPUTING`."""
    found = {}
    for name in COMPUTING:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def probe_fault(probe: StoragePath, name: str, token: str) -> str:
    """The fault of a probe's storage, in a few words; "" if this machine can read and write it."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    written = probe / TOKEN_FILE
    try:
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if written.read_text(encoding="utf-8") != token:
            return f"has a different folder {probe.parent}"
        write(probe / name, token)
    except (StoreError, ValueError) as error:
        return f"cannot reach the storage ({str(error).removesuffix('.')})"
    except FileNotFoundError:
        return f"{'has a different folder' if probe.parent.is_dir() else 'does not see'} {probe.parent}"
    except OSError as error:
        return f"cannot {'write' if written.exists() else 'read'} {probe.parent} ({error.strerror})"
    return ""


def size_of(folder: Path) -> tuple[int, int] | None:
    """(number of files, their bytes) below a folder; None if it is missing."""
    if not folder.is_dir():
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def hub_state(environment: Mapping[str, str]) -> str:
    """ "offline", "reached", or why this machine does not reach the Hugging Face hub."""
    if environment.get("HF_HUB_OFFLINE", "").lower() in ON:
        return "offline"
    if any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy")):
        return "reached"  # up to the proxy; huggingface_hub reports its answer
    parts = urlsplit(environment.get("HF_ENDPOINT") or "https://huggingface.co")
    fault = connection_fault(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))
    return f"{parts.hostname}: {fault}" if fault else "reached"


def input_facts(data: Sequence[DataSpec], words: Sequence[tuple[str, Kind]]) -> dict[str, str]:
    """The fingerprints of data and of encoders' folders as this machine reads them, or one line on the fault.

    Args:
        data: the data; train and dev are read.
        words: encoder names, each with its kind of task.

    Returns:
        Name of the task or encoder → fingerprint, or `cannot be read (…)`.
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


GIB = 1024**3
LEAST_FREE_BYTES = GIB // 4
"""Least free space on the storage's disk: less does not hold the weights of a few trials."""

MOST_SKEW_SECONDS = 5.0
"""Largest difference between clocks: with more, a trial's epochs may precede its start in the ledger and MLflow."""

NODES, VERSIONS, CODE, PACKAGES, STORAGE, INPUTS, FOLDERS, CLOCKS, DISK, GPUS, HUB = (
    "nodes", "Ray and Python", "code on the nodes", "packages on the nodes", "storage on the nodes",
    "data on the nodes", "folders on the nodes", "clocks", "disk on the nodes", "GPUs", "hub from the nodes",
)  # fmt: skip

MAY_DIFFER = frozenset({NODES, PACKAGES, CLOCKS, DISK, HUB})
"""Checks whose failure a sweep only reports: if a node did not answer, its workers check it."""


@dataclass(frozen=True)
class Answers:
    """The answers of a cluster's nodes.

    Attributes:
        here: the driver's own facts.
        facts: node → its facts.
        silent: node → why it did not answer.
        span: node → (time of the request, time of the answer), in seconds since 1970 by the driver's clock.
        unread: nodes whose files in the probe's folder the driver did not see.
        wanted: name of a task or encoder → fingerprint; empty outside a sweep.
        inputs: node → name → fingerprint, or the fault; without nodes that were too slow.
        gpus: node → its GPUs in words, for nodes with GPUs.
    """

    here: NodeFacts
    facts: Mapping[str, NodeFacts]
    silent: Mapping[str, str] = field(default_factory=dict)
    span: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    wanted: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)


def judged(answers: Answers) -> list[Check]:
    """Every check of a cluster's nodes, in the order in which you would fix them."""
    checks = [
        nodes(answers), versions(answers), code(answers), packages(answers), storage(answers), disk(answers),
        clocks(answers), gpus(answers),
    ]  # fmt: skip
    if answers.wanted:
        checks.insert(5, inputs(answers))
    if answers.here["folders"]:
        checks.insert(5, folders(answers))
    if answers.here["hub"]:
        checks.append(hub(answers))
    return checks


def nodes(answers: Answers) -> Check:
    """The nodes that answered."""
    count = some(len(answers.facts) + len(answers.silent), "node")
    if answers.silent:
        faults = "; ".join(f"{node}: {why}" for node, why in answers.silent.items())
        remedy = "check that node's load, firewall and Meltpoint installation, or remove it"
        return Check(NODES, False, f"of {count}, {len(answers.silent)} did not answer: {faults}", remedy)
    return Check(NODES, True, f"{count}: {', '.join(answers.facts)}")


def versions(answers: Answers) -> Check:
    """The versions of Ray and Python, which must match to the patch level."""
    here = (answers.here["ray"], answers.here["python"])
    wrong = _wrong(answers, lambda facts: _differ("Ray and Python", here, (facts["ray"], facts["python"])))
    return _check(VERSIONS, wrong, f"Ray {here[0]}, Python {here[1]} everywhere", "install the driver's there")


def code(answers: Answers) -> Check:
    """The version of Meltpoint's code, which is part of a trial's identity."""
    here = answers.here["code"]
    wrong = _wrong(answers, lambda facts: "" if facts["code"] == here else f"has {facts['code']}, the driver {here}")
    remedy = "install the driver's version on every node, or submit the sweep with `ray job submit --working-dir`"
    return _check(CODE, wrong, f"{here} everywhere", remedy)


def packages(answers: Answers) -> Check:
    """The versions of packages that scores depend on."""
    here = answers.here["packages"]

    def fault(facts: NodeFacts) -> str:
        names = sorted(here.keys() | facts["packages"].keys())
        pairs = [(name, facts["packages"].get(name, "none"), here.get(name, "none")) for name in names]
        return "; ".join(f"{name} {there} (the driver: {own})" for name, there, own in pairs if there != own)

    remedy = "install the driver's versions there (pip install -c constraints.txt), or scores depend on the node"
    return _check(PACKAGES, _wrong(answers, fault), "the same everywhere", remedy)


def storage(answers: Answers) -> Check:
    """The sweep's storage: each node reads the driver's file, and the driver reads the nodes' files."""
    wrong = _wrong(answers, lambda facts: facts["storage"])
    wrong |= {node: "the driver does not see its files" for node in sorted(answers.unread) if node not in wrong}
    remedy = "set --storage to a folder that all nodes mount at the same path and can write"
    if any("cannot reach the storage" in fault for fault in wrong.values()):
        remedy = "start Ray there with the store's environment variables and its package"
    return _check(STORAGE, wrong, "read and written from every node", remedy)


def inputs(answers: Answers) -> Check:
    """Data and encoders' folders: the same files on each node that could read them in time."""

    def fault(found: Mapping[str, str]) -> str:
        faults = [(word, found[word]) for word, wanted in answers.wanted.items() if found.get(word, wanted) != wanted]
        return "; ".join(f"{word} {there if ' ' in there else 'differs there'}" for word, there in faults)

    wrong = {node: fault(found) for node, found in answers.inputs.items() if fault(found)}
    late = sorted(answers.facts.keys() - answers.inputs.keys())
    ok = "the same data and encoders on every node"
    ok += f" except {', '.join(late)}, too slow to answer; workers compare theirs before they train" if late else ""
    return _check(INPUTS, wrong, ok, "put the same files there, at the same paths (--data-dir)")


def folders(answers: Answers) -> Check:
    """The named folders, compared by the number and size of their files."""

    def fault(facts: NodeFacts) -> str:
        pairs = [(name, facts["folders"].get(name), own) for name, own in answers.here["folders"].items()]
        return "; ".join(
            f"{'has other files in' if there else 'has no folder'} {name}" for name, there, own in pairs if there != own
        )

    missing = [name for name, own in answers.here["folders"].items() if own is None]
    wrong = {"the driver": f"has no folder {', '.join(missing)}"} if missing else _wrong(answers, fault)
    return _check(
        FOLDERS, wrong, f"{', '.join(answers.here['folders'])} everywhere", "mount it there, at the same path"
    )


def clocks(answers: Answers) -> Check:
    """The nodes' clocks; each answer was made between its request and its arrival."""

    def skew(node: str) -> float:
        asked, answered = answers.span[node]
        return max(asked - answers.facts[node]["clock"], answers.facts[node]["clock"] - answered, 0.0)

    off = {node: skew(node) for node in answers.span if node in answers.facts}
    wrong = {node: f"is off by {seconds:.0f} s" for node, seconds in off.items() if seconds > MOST_SKEW_SECONDS}
    return _check(CLOCKS, wrong, f"within {MOST_SKEW_SECONDS:g} s", "set that clock (NTP: timedatectl set-ntp true)")


def disk(answers: Answers) -> Check:
    """Free space on the storage's disk, as each node sees it."""

    def fault(facts: NodeFacts) -> str:
        is_full = facts["free_bytes"] < LEAST_FREE_BYTES
        return f"has {facts['free_bytes'] / GIB:.2f} GiB free in the storage" if is_full else ""

    least = min((facts["free_bytes"] for facts in answers.facts.values()), default=answers.here["free_bytes"])
    remedy = f"free {LEAST_FREE_BYTES / GIB:g} GiB there, or name another folder with --storage"
    return _check(DISK, _wrong(answers, fault), f"{least / GIB:.1f} GiB free in the storage, at least", remedy)


def gpus(answers: Answers) -> Check:
    """The GPUs, by node and kind."""
    has = "; ".join(f"{node}: {words}" for node, words in answers.gpus.items())
    return Check(GPUS, True, has or "none in this cluster; trials train on the CPUs")


def hub(answers: Answers) -> Check:
    """The Hugging Face hub from each node: reached, or offline by choice."""
    wrong = _wrong(answers, lambda facts: "" if facts["hub"] in {"offline", "reached"} else facts["hub"])
    offline = [node for node, facts in answers.facts.items() if facts["hub"] == "offline"]
    ok = f"offline on {', '.join(offline)} (HF_HUB_OFFLINE), where nothing is fetched" if offline else "reached"
    remedy = "let that node reach the hub, or set HF_HUB_OFFLINE=1 and give every node the same HF_HOME"
    return _check(HUB, wrong, ok, remedy)


def _wrong(answers: Answers, fault: Callable[[NodeFacts], str]) -> dict[str, str]:
    """Node → its fault."""
    return {node: said for node, facts in answers.facts.items() if (said := fault(facts))}


def _differ(what: str, here: tuple[str, ...], there: tuple[str, ...]) -> str:
    return "" if here == there else f"has {what} {', '.join(there)}, the driver {', '.join(here)}"


def _check(name: str, wrong: Mapping[str, str], ok: str, remedy: str) -> Check:
    if not wrong:
        return Check(name, True, ok)
    return Check(name, False, "; ".join(f"{node} {fault}" for node, fault in wrong.items()), remedy)
