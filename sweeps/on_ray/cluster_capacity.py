"""Room on a Ray cluster: how many trials fit its nodes, and how many of those places a sweep may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.tasks.core.wording import some

Node = Mapping[str, Any]
"""A node as `ray.nodes()` returns it."""

ANY_NUMBER = 10**6
"""The number of trials that fit if they need no resources."""

NODE_GROUP = "ray.io/node-group"
"""The label of a node that an autoscaler or KubeRay started, which may start more nodes."""

NODE_ID = "ray.io/node-id"
"""The label with a Ray node's id."""

PATIENCE_SECONDS = 2.0
"""Time before a sweep reports that it waits for room: a worker that just ended may still be releasing its own."""

LOOK_SECONDS = 5.0
"""Interval between checks of the cluster's nodes; a check takes milliseconds."""


def elsewhere(nodes: Iterable[str]) -> dict[str, str]:
    """Ray's label selector for all nodes except these; empty without any."""
    ids = ",".join(sorted(nodes))
    return {NODE_ID: f"!in({ids})"} if ids else {}


def trials_on(node: Node, cpus: float, gpus: float) -> int:
    """Number of trials that a node has room for when nothing else runs there.

    A trial stays on one node, and shares of a GPU that add up to one stay on one GPU, as Ray places them.
    """
    have: Mapping[str, float] = node["Resources"]
    count = _parts(have.get("CPU", 0.0), cpus)
    if not gpus:
        return count
    if gpus >= 1:
        return min(count, _parts(have.get("GPU", 0.0), gpus))
    return min(count, int(have.get("GPU", 0.0)) * _parts(1.0, gpus))


def _parts(whole: float, part: float) -> int:
    return int(whole / part + 1e-9) if part else ANY_NUMBER


def slots(cpus: float, gpus: float, nodes: Iterable[Node] | None = None) -> int:
    """Number of trials that the cluster's nodes run at once; at least one if more nodes may join.

    Args:
        nodes: as `ray.nodes()` returns them; None queries Ray.

    Raises:
        ValueError: a trial is too large for each node, and no autoscaler can start other nodes; one line.
    """
    if nodes is None:
        import ray

        nodes = ray.nodes()  # type: ignore[no-untyped-call]
    alive = [node for node in nodes if node["Alive"]]
    found = sum(trials_on(node, cpus, gpus) for node in alive)
    if found < 1 and not may_grow(alive):
        raise ValueError(
            f"A trial needs {needs(cpus, gpus)}, and no node of this Ray cluster has them; lower --cpus-per-trial or "
            "--gpus-per-trial."
        )
    return max(1, found)


def may_grow(nodes: Iterable[Node]) -> bool:
    """True if an autoscaler may add other nodes to these."""
    return any(NODE_GROUP in node.get("Labels", {}) for node in nodes)


def wait_for_room(cpus: float, gpus: float, say: Callable[[str], None]) -> None:
    """Wait until the cluster has room for one trial; the request also reaches an autoscaler.

    Args:
        say: receives one line if there is no room yet.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    place = placement_group([{"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}])
    try:
        if not place.wait(PATIENCE_SECONDS):
            say(f"Waiting for {needs(cpus, gpus)} on one node: an autoscaler has to add it, or other work release it.")
            while not place.wait(1.0):
                pass  # Ctrl-C is handled in between
    finally:
        remove_placement_group(place)


def needs(cpus: float, gpus: float) -> str:
    """`2 CPUs`, `1 CPU and 0.25 GPUs`."""
    return some(cpus, "CPU") + (f" and {some(gpus, 'GPU')}" if gpus else "")


class ClusterShare:
    """A driver's view of the cluster: the number of trials that it may run now.

    Args:
        cpus, gpus: of one trial; the smallest share of a GPU if cells differ.
        most: `--max-workers`, or None.
        clock: seconds since 1970.
    """

    def __init__(
        self, cpus: float, gpus: float, most: int | None = None, count: Callable[[float, float], int] = slots,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.cpus, self.gpus, self.most, self.count, self.clock = cpus, gpus, most, count, clock
        self.part = self._look()

    def now(self) -> ClusterPart:
        """The part, at most `LOOK_SECONDS` old. If Ray does not answer, the old part stays until the next check.

        Lost nodes may come back; the head and this machine's raylet are watched elsewhere (`cluster.watched`).
        """
        if not 0 <= self.clock() - self._looked < LOOK_SECONDS:
            from ray.exceptions import RayError

            try:
                self.part = self._look()
            except RayError:
                pass
            except ValueError:  # no remaining node has room for a trial
                self.part = self.part.model_copy(update={"has_no_node": True})
        return self.part

    def _look(self) -> ClusterPart:
        self._looked = self.clock()
        whole = self.count(self.cpus, self.gpus)
        places = min(whole, self.most or whole)
        return ClusterPart(places=places, whole=whole, cpus=self.cpus, gpus=self.gpus, most=self.most)
