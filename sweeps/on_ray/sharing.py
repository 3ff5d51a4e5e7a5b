"""Sharing of a Ray cluster between sweeps: each takes its part of the places, and fewer with `--max-workers`.

A sweep announces itself by a placement group of one to a thousand bytes of memory, which takes no room from a trial.
Every driver of the cluster sees the groups of all others, and Ray removes a group with its driver, however that ends.
The bytes say which part of the cluster the sweep could use, so that what one does not need goes to the others. Every
driver applies the same rule to the same groups, between trials: no trial is ended for another sweep.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from meltpoint.sweeps.ledger.cluster_part import ClusterPart
from meltpoint.sweeps.on_ray.room import ANY_NUMBER, slots

MARK = "meltpoint-sweep"
WHOLE = 1000
"""The bytes of a sweep that could use the whole cluster."""
LOOK_SECONDS = 5.0
"""How often the cluster's nodes and sweeps are looked at; a look takes milliseconds."""
TURN_SECONDS = 600.0
"""Where there are more sweeps than places, other ones have them after so long; the drivers' clocks say when."""


def fair_shares(places: int, wants: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Places for each sweep: as equal as may be, no more than it wants, and none left while one wants more.

    Args:
        places: all there are.
        wants: sweep → the most that it could use.
        turn: where there are fewer places than sweeps, they go to other ones with each turn.
    """
    shares = dict.fromkeys(wants, 0)
    waiting = sorted(name for name, want in wants.items() if want > 0)
    if waiting and places < len(waiting):
        first = turn % len(waiting)
        waiting = (waiting[first:] + waiting[:first])[:places]
    left = places
    while left and waiting:
        each = left // len(waiting)
        for name in waiting if each else waiting[:left]:  # what does not divide goes to the first ones, in the end
            given = min(max(1, each), wants[name] - shares[name])
            shares[name] += given
            left -= given
        waiting = [name for name in waiting if shares[name] < wants[name]]
    return shares


@dataclass(frozen=True)
class Part:
    """A sweep's part of a cluster.

    Attributes:
        places: how many of its trials may run at once.
        whole: how many would, if it were alone.
        others: the names of the other sweeps that are there.
        has_no_node: whether the nodes that had room for a trial are gone.
    """

    places: int
    whole: int
    others: tuple[str, ...] = ()
    has_no_node: bool = False

    @property
    def is_limited(self) -> bool:
        """True if it must not ask for more workers than its places, though the cluster may have some."""
        return self.places < self.whole or bool(self.others)

    @property
    def news(self) -> tuple[object, ...]:
        """The values of which a user is told when they change."""
        return self.has_no_node, self.others, self.places if self.others else self.whole

    def __str__(self) -> str:
        """`shares the cluster with first: 2 of 4 trials at a time`."""
        if self.has_no_node:
            return "waits: no node with room for a trial is left in the cluster; it goes on with the next that joins"
        count = f"{self.places} of {self.whole} trials at a time"
        if not self.others:
            return f"has the cluster to itself: {count}" if self.places == self.whole else count
        return f"shares the cluster with {' and '.join(self.others)}: {count}"


class ClusterShare:
    """A driver's view of the cluster: how many trials it may run now.

    Args:
        sweep: its name.
        cpus, gpus: of one trial; the smallest share of a GPU where cells have several.
        most: `--max-workers`, or None.
        board: where sweeps announce themselves; None on a cluster of the sweep's own.
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

    def now(self) -> Part:
        """The part as of the last seconds; as it was where Ray does not say, which is asked again in some seconds.

        Nodes that are lost may come back, and what a driver cannot do without is watched elsewhere (`cluster_watch`).
        """
        if not 0 <= self.clock() - self._looked < LOOK_SECONDS:
            from ray.exceptions import RayError

            try:
                self.part = self._look()
            except RayError:
                pass
            except ValueError:  # no node that is left has room for a trial
                self.part = replace(self.part, has_no_node=True)
        return self.part

    def noted(self) -> ClusterPart:
        """The part as it is noted for `status`."""
        part = self.part
        return ClusterPart(
            places=part.places, whole=part.whole, cpus=self.cpus, gpus=self.gpus, others=part.others, most=self.most,
            has_no_node=part.has_no_node,
        )  # fmt: skip

    def want(self, trials: int) -> None:
        """Say how many trials there are that could run, so that other sweeps get what is left."""
        if trials != self._wanted:
            self._wanted, self._looked = trials, -math.inf

    def _look(self) -> Part:
        self._looked = self.clock()
        whole = self.count(self.cpus, self.gpus)
        wanted = min(whole, self._wanted, self.most or whole)
        if self.board is None:
            return Part(min(whole, self.most or whole), whole)
        self.board.announce(self.sweep, math.ceil(WHOLE * max(wanted, 1) / whole))
        others = self.board.others()
        wants = {name: math.ceil(whole * part / WHOLE) for name, part in others.items()}
        shares = fair_shares(whole, {**wants, self.board.own: max(1, wanted)}, int(self._looked / TURN_SECONDS))
        names = tuple(sorted(name.split("|")[1] for name in others))
        return Part(min(shares[self.board.own], self.most or whole), whole, names)


class Board:
    """The announcements of the sweeps on the joined cluster.

    Attributes:
        own: the latest one of this sweep. Names are unique: sweeps of two storages may have one name, and Ray removes
            a group some time after it was asked to.
    """

    def __init__(self) -> None:
        self.own = ""
        self._token, self._bytes, self._count = uuid4().hex[:12], 0, 0
        self._group: Any = None

    def announce(self, sweep: str, part: int) -> None:
        """Say that a sweep runs here, and which part of the cluster it could use, in thousandths."""
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
