"""Room for trials on the nodes of a Ray cluster: how many fit at once, and waiting until one does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meltpoint.tasks.core.wording import some

Node = Mapping[str, Any]
"""A node as `ray.nodes()` has it."""

ANY_NUMBER = 10**6
"""The number of trials that fit where they need nothing."""

NODE_GROUP = "ray.io/node-group"
"""The label of a node that an autoscaler or KubeRay started: others of its kind, or of other kinds, may follow."""

PATIENCE_SECONDS = 2.0
"""How long a place is waited for without a word: a worker that has just ended may still be giving its own back."""


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
    """Number of trials that the nodes of the joined cluster run at once; at least one where others may join it.

    Args:
        nodes: as `ray.nodes()` has them; None asks Ray.

    Raises:
        ValueError: a trial is too large for each node, and no autoscaler starts other ones; one line.
    """
    alive = [node for node in (_nodes() if nodes is None else nodes) if node["Alive"]]
    found = sum(trials_on(node, cpus, gpus) for node in alive)
    if found < 1 and not may_grow(alive):
        raise ValueError(_too_large(cpus, gpus, alive))
    return max(1, found)


def may_grow(nodes: Iterable[Node]) -> bool:
    """True if an autoscaler may add other nodes to these."""
    return any(NODE_GROUP in node.get("Labels", {}) for node in nodes)


def _nodes() -> list[Node]:
    import ray

    found: list[Node] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _too_large(cpus: float, gpus: float, nodes: list[Node]) -> str:
    """One line: what a trial needs, and what the largest nodes have."""
    sizes = {(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)) for node in nodes} or {(0, 0)}
    largest = {max(sizes), max(sizes, key=lambda size: (size[1], size[0]))}
    has = " or ".join(f"{some(cpu, 'CPU')} and {some(gpu, 'GPU')}" for cpu, gpu in sorted(largest))
    where = "Ray has" if len(nodes) < 2 else "a node of this Ray cluster has at most"
    return (
        f"A trial needs {some(cpus, 'CPU')} and {some(gpus, 'GPU')}, but {where} {has}; lower --cpus-per-trial or "
        "--gpus-per-trial."
    )


def wait_for_room(cpus: float, gpus: float, say: Callable[[str], None]) -> None:
    """Wait until the cluster has room for one trial; an autoscaler learns by that what is wanted.

    Args:
        say: is told once where it has none yet.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    place = placement_group([{"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}])
    try:
        if not place.wait(PATIENCE_SECONDS):
            say(f"Waiting for {needs(cpus, gpus)} on one node (an autoscaler, or other work there, has to give it).")
            while not place.wait(1.0):
                pass  # Ctrl-C is heard in between
    finally:
        remove_placement_group(place)


def needs(cpus: float, gpus: float) -> str:
    """`2 CPUs`, `1 CPU and 0.25 GPUs`."""
    return some(cpus, "CPU") + (f" and {some(gpus, 'GPU')}" if gpus else "")
