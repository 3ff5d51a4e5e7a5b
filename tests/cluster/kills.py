"""SIGKILLs at random moments over one sweep: of the driver, workers, a raylet with its workers, MLflow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meltpoint.tests.cluster import chaos
from meltpoint.tests.cluster.chaos import World
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.whole_sweeps import records

BACK_SECONDS = 5.0
"""After so long what was killed is started again: a server, a node, the command."""


@dataclass
class Watch:
    """The ledger as it grows: a record that was there stays, and a searched one stays as it is.

    What may be added is the run's id, by the first driver that finds MLflow again.

    Attributes:
        found: identity → the record of each trial that finished.
    """

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def look(self, world: World) -> None:
        """Compare the records with those of the last look."""
        now = {
            one["id"]: {name: value for name, value in one.items() if name != "mlflow_run_id"}
            for one in records(world.storage, world.spec.name)
            if one["status"] == "finished"
        }
        assert self.found.keys() <= now.keys(), "progress is monotone"
        again = {one for one in self.found if self.found[one] != now[one] and now[one]["role"] == "search"}
        assert not again, f"trained a second time: {again}"
        self.found = now


def kill_driver(world: World) -> None:
    """SIGKILL the driver, alone."""
    assert world.process is not None
    world.process.kill()


def kill_second_node(world: World) -> None:
    """SIGKILL the second node; another joins."""
    chaos.kill_node(world)
    assert world.cluster is not None
    time.sleep(BACK_SECONDS)
    world.cluster.add(ray_nodes.RayNode())


def kill_server(world: World) -> None:
    """SIGKILL MLflow, and start it again."""
    world.server.kill()
    time.sleep(BACK_SECONDS)
    world.server.start()


VICTIMS: tuple[Callable[[World], object], ...] = (kill_driver, chaos.kill_worker, kill_second_node, kill_server)


def kill_at_random(world: World, count: int, over_seconds: float, seed: int = 0) -> float:
    """Run a sweep to its end, with kills at moments of its first stretch, drawn beforehand and independent of it.

    The command is given again whenever the driver ended.

    Args:
        over_seconds: the length of that stretch.

    Returns:
        The seconds from the first start to the end.
    """
    draw, watch = random.Random(seed), Watch()
    moments = sorted(draw.uniform(0, over_seconds) for _ in range(count))
    began = time.monotonic()
    world.drive()
    while moments or world.process is not None:
        pause = max(0.0, began + moments[0] - time.monotonic()) if moments else None
        status = _wait(world, pause)
        watch.look(world)
        if status == 0:
            break
        if status is not None:
            time.sleep(BACK_SECONDS)
            world.drive()
        elif moments:
            draw.choice(VICTIMS)(world)
            del moments[0]
    assert not moments, f"the sweep ended before the last {len(moments)} kills"
    return time.monotonic() - began


def _wait(world: World, seconds: float | None) -> int | None:
    """The driver's exit status, or None if it still runs after a time."""
    assert world.process is not None
    deadline = None if seconds is None else time.monotonic() + seconds
    while (status := world.process.poll()) is None:
        if deadline is not None and time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return status
