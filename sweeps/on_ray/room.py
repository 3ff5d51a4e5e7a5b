"""Room on a Ray cluster: how many trials fit its nodes, and how many of those places a sweep may use.

Sweeps share a cluster. Each announces itself with a placement group of 1 to 1000 bytes of memory, which takes no room
from a trial. Every driver of the cluster sees the groups of all others, and Ray removes a group when its driver ends,
in whatever way. The bytes are the part of the cluster that the sweep could use, in thousandths; the others get the
rest. Every driver applies the same rule to the same groups, between trials: no trial is ended for another sweep.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.tasks.core.wording import some

Node = Mapping[str, Any]
"""A node as `ray.nodes()` returns it."""

ANY_NUMBER = 10**6
"""The number of trials that fit if they need no resources."""

NODE_GROUP = "ray.io/node-group"
"""The label of a node that an autoscaler or KubeRay started, which may start more nodes."""

PATIENCE_SECONDS = 2.0
"""Time before a sweep reports that it waits for room: a worker that just ended may still be releasing its own."""

MARK = "meltpoint-sweep"
WHOLE = 1000
"""The bytes that stand for the whole cluster."""
LOOK_SECONDS = 5.0
"""Interval between checks of the cluster's nodes and sweeps; a check takes milliseconds."""
TURN_SECONDS = 600.0
"""Length of a turn if sweeps outnumber places, by the drivers' clocks."""


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


# Several sweeps.


def fair_shares(places: int, wants: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Places for each sweep: as equal as possible, no more than it wants, and none idle while a sweep wants more.

    Args:
        places: total number.
        wants: sweep → the most that it could use.
        turn: with fewer places than sweeps, each turn gives them to other sweeps.
    """
    shares = dict.fromkeys(wants, 0)
    waiting = sorted(name for name, want in wants.items() if want > 0)
    if waiting and places < len(waiting):
        first = turn % len(waiting)
        waiting = (waiting[first:] + waiting[:first])[:places]
    left = places
    while left and waiting:
        each = left // len(waiting)
        for name in waiting if each else waiting[:left]:  # the remainder goes to the first ones
            given = min(max(1, each), wants[name] - shares[name])
            shares[name] += given
            left -= given
        waiting = [name for name in waiting if shares[name] < wants[name]]
    return shares


class ClusterShare:
    """A driver's view of the cluster: the number of trials that it may run now.

    Args:
        sweep: the sweep's name.
        cpus, gpus: of one trial; the smallest share of a GPU if cells differ.
        most: `--max-workers`, or None.
        board: the sweeps' announcements; None on a local cluster.
        clock: seconds since 1970.
    """

    def __init__(
        self, sweep: str, cpus: float, gpus: float, most: int | None = None, board: Board | None = None,
        count: Callable[[float, float], int] = slots, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.sweep, self.cpus, self.gpus, self.most = sweep, cpus, gpus, most
        self.board, self.count, self.clock = board, count, clock
        self._looked = -math.inf
        self._wanted = ANY_NUMBER
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

    def want(self, trials: int) -> None:
        """Set the number of trials that could run, so that other sweeps get the rest."""
        if trials != self._wanted:
            self._wanted, self._looked = trials, -math.inf

    def _look(self) -> ClusterPart:
        self._looked = self.clock()
        whole = self.count(self.cpus, self.gpus)
        wanted = min(whole, self._wanted, self.most or whole)
        part = ClusterPart(
            places=min(whole, self.most or whole), whole=whole, cpus=self.cpus, gpus=self.gpus, most=self.most
        )
        if self.board is None:
            return part
        self.board.announce(self.sweep, math.ceil(WHOLE * max(wanted, 1) / whole))
        others = self.board.others()
        wants = {name: math.ceil(whole * part / WHOLE) for name, part in others.items()}
        shares = fair_shares(whole, {**wants, self.board.own: max(1, wanted)}, int(self._looked / TURN_SECONDS))
        names = tuple(sorted(name.split("|")[1] for name in others))
        places = min(shares[self.board.own], self.most or whole)
        return part.model_copy(update={"places": places, "others": names})


class Board:
    """The announcements of the sweeps on the joined cluster.

    Attributes:
        own: this sweep's latest announcement. Its name is unique: sweeps of two storages may have one name, and Ray
            removes a group some time after the call.
    """

    def __init__(self) -> None:
        self.own = ""
        self._token, self._bytes, self._count = uuid4().hex[:12], 0, 0
        self._group: Any = None

    def announce(self, sweep: str, part: int) -> None:
        """Announce that a sweep runs here, and the part of the cluster that it could use, in thousandths."""
        if part == self._bytes:
            return
        from ray.util.placement_group import placement_group, remove_placement_group

        self._count += 1
        own, before = f"{MARK}|{sweep}|{self._token}|{self._count}", self._group
        self._group = placement_group([{"memory": part}], name=own)
        self.own, self._bytes = own, part
        if before is not None:
            remove_placement_group(before)

    def others(self) -> dict[str, int]:
        """The latest announcement of each other sweep."""
        from ray.util import placement_group_table

        latest: dict[str, tuple[int, str, int]] = {}
        for group in placement_group_table().values():
            mark, *words = str(group["name"]).split("|")
            if mark == MARK and len(words) == 3 and words[1] != self._token and group["state"] != "REMOVED":
                part = int(sum(bundle.get("memory", 0) for bundle in group["bundles"].values()))
                latest[words[1]] = max(latest.get(words[1], (0, "", 0)), (int(words[2]), str(group["name"]), part))
        return {name: part for _, name, part in latest.values()}
