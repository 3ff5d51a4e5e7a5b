"""Starting Ray beside everything else: the driver waits for the launch alone, and hears of what goes wrong."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from meltpoint.sweeps.on_ray.cluster import Cluster, _launching
from meltpoint.sweeps.on_ray.fork_server import COMMAND
from meltpoint.sweeps.on_ray.forked_worker import FORK_SERVER


def failing(cluster: Cluster, **options: Any) -> None:
    raise RuntimeError("no room\nand more")


@pytest.mark.parametrize(
    ("address", "where"), [(None, "A local Ray cluster"), ("127.0.0.1:1", "--address 127.0.0.1:1")]
)
def test_a_ray_that_cannot_start_holds_nobody_up_and_is_one_line(monkeypatch, address, where):
    monkeypatch.setattr(Cluster, "_init", failing)
    with Cluster(address) as cluster:
        cluster.begin()
        with pytest.raises(ValueError, match=rf"^{where}: Ray did not start \(no room\)") as told:
            cluster.join()
    assert "\n" not in str(told.value)


def test_the_driver_hears_of_the_launch_as_soon_as_the_last_process_is_there(monkeypatch):
    from ray._private.node import Node

    heard: list[str] = []
    monkeypatch.setattr(Node, "start_raylet", lambda node, *words: heard.append(os.environ[FORK_SERVER]))
    launch = Node.start_raylet
    node = SimpleNamespace(_ray_params=SimpleNamespace())
    with _launching("a socket", lambda: heard.append("launched")):
        Node.start_raylet(node, "store")
    assert heard == ["a socket", "launched"]
    assert node._ray_params.setup_worker_path == str(COMMAND)
    assert FORK_SERVER not in os.environ
    assert Node.start_raylet is launch
