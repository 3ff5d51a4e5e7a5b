"""Real clusters of several raylets on this machine, on 127.0.0.1 alone, in a process of their own.

As a script: each line of standard input describes nodes to start (JSON), each answer is the cluster's address; they end
when standard input is closed. `cluster` does that from a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meltpoint.sweeps.specification.sweep_spec import SweepSpec

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's own way to stay on 127.0.0.1 (`cluster.LOCAL_SETTINGS`)."""


@dataclass(frozen=True)
class RayNode:
    """A node to start, the first of a cluster being its head.

    Attributes:
        folder: its working directory, which `/proc/self/cwd` shows to its workers; "" is the test's.
        head: where it finds the head, as `HOST:PORT`, if not at its own address: a proxy.
        environment: more environment variables, for it and its workers.
    """

    cpus: int = 1
    gpus: int = 0
    folder: str = ""
    head: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def environment(**more: str) -> dict[str, str]:
    """A driver's environment: this process's without Ray's variables, which other tests may have set."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**plain, **LOOPBACK, "RAY_AUTH_MODE": "disabled", **more}


@dataclass(frozen=True)
class Running:
    """A running cluster.

    Attributes:
        process: the script.
        said: what it says.
        address: of its head.
    """

    process: subprocess.Popen[str]
    said: Path
    address: str = ""

    def add(self, *nodes: RayNode) -> Running:
        """Start nodes, and wait until they are there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([asdict(node) for node in nodes]), file=self.process.stdin, flush=True)
        address = self.process.stdout.readline().strip()
        assert address, f"the nodes did not start:\n{self.said.read_text(encoding='utf-8')[-3000:]}"
        return replace(self, address=address)


@contextmanager
def cluster(*nodes: RayNode, **variables: str) -> Iterator[Running]:
    """A running cluster.

    Args:
        variables: environment variables of its processes, as RAY_AUTH_MODE.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        running = started(Path(folder), **variables)
        try:
            yield running.add(*nodes)
        finally:
            running.process.communicate(timeout=60)


def started(folder: Path, **variables: str) -> Running:
    """A cluster without nodes yet.

    Args:
        folder: where Ray's files go; a short path, for those of its sockets.
        variables: environment variables of its processes, as RAY_AUTH_MODE.
    """
    said = folder / "nodes.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
            stderr=log, env=environment(RAY_TMPDIR=str(folder), **variables),
        )  # fmt: skip
    return Running(process, said)


@contextmanager
def sweep_on(spec: SweepSpec, folder: Path, address: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A sweep on a cluster, started in a folder; its storage is `runs` there."""
    from meltpoint.tests.sweeps.whole_sweeps import command  # here: as a script the file needs none of it

    words = command(spec, folder / "runs", "--address", address, *more)
    folder.mkdir(exist_ok=True)
    patient = environment()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(words, cwd=folder, env=patient, stdout=said, stderr=said, encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said_by(folder: Path) -> str:
    """What such a sweep said so far."""
    return (folder / "said.txt").read_text(encoding="utf-8")


def main() -> None:
    """Start nodes as they are asked for, and end them with standard input."""
    from ray.cluster_utils import Cluster

    started = Cluster()
    for line in sys.stdin:
        for dead in [node for node in started.worker_nodes if not node.remaining_processes_alive()]:
            started.remove_node(dead, allow_graceful=False)  # or it waits for all that were ever added
        for node in json.loads(line):
            os.chdir(node["folder"] or Path.cwd())
            started.add_node(
                num_cpus=node["cpus"], num_gpus=node["gpus"], node_ip_address="127.0.0.1", include_dashboard=False,
                env_vars=node["environment"] or None, wait=False,
                **({"gcs_address": node["head"]} if node["head"] else {}),
            )  # fmt: skip
        started.wait_for_nodes(timeout=120)
        print(started.address, flush=True)
    started.shutdown()


if __name__ == "__main__":
    main()
