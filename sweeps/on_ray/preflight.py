"""The preflight of a sweep on a running cluster: checks all nodes at once, before the first trial.

A node that dies meanwhile no longer counts. The workers of a slow or late node check it themselves
(`worker.fitness`).
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meltpoint.sweeps.machine.cluster_checks import (
    MAY_DIFFER,
    NODES,
    STORAGE,
    TOKEN_FILE,
    VISIBLE_SECONDS,
    Answers,
    NodeFacts,
    input_facts,
    judged,
    node_facts,
)
from meltpoint.sweeps.machine.services import Check, existing
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.room import Node, trials_on
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import StoragePath, remove, write
from meltpoint.tasks.core.task import DataSpec, Kind
from meltpoint.tasks.core.wording import some

SECONDS, VARIABLE = 8.0, "MELTPOINT_PREFLIGHT_SECONDS"
"""Total time that a sweep waits for the nodes' answers, and the environment variable that changes it."""

DOCTOR_SECONDS = 30.0
"""The same for `doctor`, which also waits for slow nodes."""


@dataclass(frozen=True)
class Question:
    """The question for all nodes.

    Attributes:
        storage: the folder or object store of sweeps.
        data: data → fingerprint that every node should read.
        encoders: (encoder, kind of task) → fingerprint of its folder.
        folders: folders whose files are compared.
        asks_hub: whether the nodes try to reach the hub.
        cpus: CPUs per trial; nodes with fewer are skipped.
        seconds: total time for the answers.
    """

    storage: StoragePath
    data: Mapping[DataSpec, str] = field(default_factory=dict)
    encoders: Mapping[tuple[str, Kind], str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    asks_hub: bool = False
    cpus: float = 0.0
    seconds: float = SECONDS


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
    encoders = {(cell.located_encoder, cell.task.kind): cell.encoder_fingerprint for cell in folders}
    found = check_nodes(Question(storage, data, encoders, cpus=cpus, seconds=patience(os.environ)))
    for check in found:
        if not check.ok and check.name in MAY_DIFFER:
            say(f"{check.name}: {check.detail}; {check.remedy}.")
    stops = [check for check in found if not check.ok and check.name not in MAY_DIFFER]
    if stops:
        raise ValueError(" ".join(f"{check.name}: {check.detail}; {check.remedy}." for check in stops))


def patience(environment: Mapping[str, str]) -> float:
    """The time that a sweep waits for the nodes' answers, in seconds.

    Raises:
        ValueError: the environment variable is not a number above 0.
    """
    said = environment.get(VARIABLE, str(SECONDS))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{VARIABLE}={said}: set it to a number of seconds above 0.")
    return seconds


def check_nodes(question: Question) -> list[Check]:
    """The checks of the joined cluster's nodes."""
    with _probe(question.storage) as (probe, token):
        answers = _Asking(question, probe, token).answers()
    return judged(answers)


def cluster_checks(address: str, storage: StoragePath, folders: Sequence[Path]) -> list[Check]:
    """The checks of `doctor` for a running cluster: joins it, and leaves nothing behind.

    Args:
        address: as in `--address`.
        storage: the folder of sweeps, which need not exist.
        folders: folders that every node should have with the same files.
    """
    named = tuple(str(folder.expanduser().absolute()) for folder in folders)
    place = existing(storage) if isinstance(storage, Path) else storage
    question = Question(place, folders=named, asks_hub=True, seconds=DOCTOR_SECONDS)
    try:
        with Cluster(address) as cluster:
            cluster.join()
            return check_nodes(question)
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return [Check(NODES, False, fault, remedy or "see `meltpoint doctor`")]
    except OSError as error:
        remedy = "set --storage to a folder that this user can write"
        return [Check(STORAGE, False, f"not checked: {storage} cannot be written ({error.strerror})", remedy)]


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


class _Asking:
    """One round of questions to all nodes."""

    def __init__(self, question: Question, probe: StoragePath, token: str) -> None:
        self.question, self.probe, self.token = question, probe, token
        self.names = names([node for node in _alive() if trials_on(node, max(question.cpus, 0.01), 0.0)])
        self.deadline = time.monotonic() + question.seconds
        self.silent: dict[str, str] = {}
        self.span: dict[str, tuple[float, float]] = {}

    def answers(self) -> Answers:
        """The facts of all nodes, then the fingerprints of their data, both within the time limit."""
        asked = self.question
        here = node_facts("here", str(self.probe), self.token, asked.folders, asked.asks_hub)
        words = str(self.probe), self.token, asked.folders, asked.asks_hub
        facts, self.silent = self._ask(node_facts, list(self.names), *words)
        inputs: dict[str, Any] = {}
        if asked.data or asked.encoders:  # in the remaining time; workers also compare their data
            inputs, _ = self._ask(_input_facts, list(facts), list(asked.data), list(asked.encoders))
        self._forget_the_dead(facts)
        return Answers(
            here=here, facts=_named(facts, self.names), silent=_named(self.silent, self.names),
            span=_named(self.span, self.names), unread=self._unread(facts), wanted=self._wanted(),
            inputs=_named(inputs, self.names), gpus=gpus_in_words(_alive(), self.names),
        )  # fmt: skip

    def _wanted(self) -> dict[str, str]:
        words = {spec.task: fingerprint for spec, fingerprint in self.question.data.items()}
        return words | {word: fingerprint for (word, _), fingerprint in self.question.encoders.items()}

    def _ask(
        self, function: Callable[..., Any], nodes: Sequence[str], *words: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Query the nodes in parallel; returns (node → its answer, node → why it has none)."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = ray.remote(num_cpus=0, max_retries=0)(function)
        asked, began = {}, time.time()
        for node in nodes:
            there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            asked[there.remote(node, *words)] = node
        found: dict[str, Any] = {}
        silent: dict[str, str] = {}
        while asked and (left := self.deadline - time.monotonic()) > 0:
            for reference in ray.wait(list(asked), timeout=left)[0]:
                node = asked.pop(reference)
                self.span.setdefault(node, (began, time.time()))
                try:
                    found[node] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    silent[node] = fault_of(error)
        for reference, node in asked.items():
            ray.cancel(reference, force=True)
            silent[node] = f"no answer in {self.question.seconds:g} s"
        return found, silent

    def _forget_the_dead(self, facts: dict[str, NodeFacts]) -> None:
        """Drop nodes that have left the cluster."""
        alive = {str(node["NodeID"]) for node in _alive()}
        for kept in (facts, self.silent, self.names):
            for node in kept.keys() - alive:
                del kept[node]

    def _unread(self, facts: Mapping[str, NodeFacts]) -> frozenset[str]:
        """The nodes whose written files this machine does not see."""
        wrote = {node for node, has in facts.items() if not has["storage"]}
        deadline = time.monotonic() + VISIBLE_SECONDS
        while unseen := {node for node in wrote if not (self.probe / node).exists()}:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return frozenset(self.names[node] for node in unseen)


def _input_facts(node: str, data: Sequence[DataSpec], words: Sequence[tuple[str, Kind]]) -> dict[str, str]:
    return input_facts(data, words)


def fault_of(error: BaseException) -> str:
    """One line on why a node could not answer: an error's text ends with the error itself."""
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    if "No module named 'meltpoint" in str(error):
        return "has no Meltpoint, or an older version, in Ray's Python"
    return last[0].strip()[:200]


def _alive() -> list[Node]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def names(nodes: Sequence[Node]) -> dict[str, str]:
    """Node id → name: its address, with a part of its id if several nodes share the address."""
    addresses = [node["NodeManagerAddress"] for node in nodes]
    return {
        str(node["NodeID"]): address if addresses.count(address) == 1 else f"{address} (node {node['NodeID'][:8]})"
        for node, address in zip(nodes, addresses, strict=True)
    }


def _named(by_node: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[node]: value for node, value in by_node.items() if node in names}


def gpus_in_words(nodes: Sequence[Node], names: Mapping[str, str]) -> dict[str, str]:
    """Node name → `4 GPUs (H100)`, for nodes with GPUs."""
    having = [node for node in nodes if node["Resources"].get("GPU", 0) and str(node["NodeID"]) in names]
    return {names[str(node["NodeID"])]: _gpus(node["Resources"]) for node in having}


def _gpus(resources: Mapping[str, float]) -> str:
    kinds = sorted(name.partition(":")[2] for name in resources if name.startswith("accelerator_type:"))
    return some(resources["GPU"], "GPU") + (f" ({', '.join(kinds)})" if kinds else "")
