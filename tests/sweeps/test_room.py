"""room: trials fit single nodes, and places follow the cluster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.sweeps.on_ray.room import (
    LOOK_SECONDS,
    ClusterShare,
    needs,
    slots,
    trials_on,
)


def node(cpus: float = 0.0, gpus: float = 0.0, alive: bool = True, group: str | None = None) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    resources = {name: number for name, number in (("CPU", cpus), ("GPU", gpus)) if number}
    labels = {"ray.io/node-id": "0123"} | ({"ray.io/node-group": group} if group else {})
    return {"Alive": alive, "Resources": resources, "Labels": labels}


@pytest.mark.parametrize(
    ("has", "wants", "count"),
    [
        ((8, 0), (1, 0), 8), ((8, 0), (3, 0), 2), ((1, 0), (0.1, 0), 10), ((8, 4), (1, 1), 4), ((2, 4), (1, 1), 2),
        ((64, 2), (1, 0.4), 4), ((64, 2), (1, 0.3333), 6), ((64, 4), (1, 3), 1), ((8, 0), (1, 0.5), 0),
    ],
)  # fmt: skip
def test_a_node_has_room_for_whole_trials_and_a_gpu_for_whole_shares(has, wants, count) -> None:
    assert trials_on(node(*has), *wants) == count


def test_slots_are_counted_on_each_node_and_dead_nodes_have_none() -> None:
    assert slots(2, 0, [node(3), node(3), node(1)]) == 2
    assert slots(1, 0.4, [node(8, 1), node(8, 1)]) == 4
    assert slots(1, 0, [node(2), node(64, alive=False)]) == 2


def test_a_trial_that_fits_no_single_node_is_refused_with_the_options() -> None:
    with pytest.raises(ValueError, match=r"needs 2 CPUs, and no node of this Ray cluster has them; lower --cpus-per"):
        slots(2, 0, [node(1), node(1)])
    with pytest.raises(ValueError, match="needs 8 CPUs and 1 GPU, and no node"):
        slots(8, 1, [node(64), node(4, 2)])


def test_a_trial_that_an_autoscaler_may_have_room_for_is_not_refused() -> None:
    assert slots(8, 1, [node(0, group="headgroup")]) == 1
    assert slots(8, 0, [node(1, group="small"), node(1)]) == 1


def test_a_need_is_said_in_words() -> None:
    assert [needs(2, 0), needs(1, 0.25), needs(1, 1)] == ["2 CPUs", "1 CPU and 0.25 GPUs", "1 CPU and 1 GPU"]


def part(places: int, whole: int, **more: Any) -> ClusterPart:
    """A part of a cluster whose trials take a CPU each."""
    return ClusterPart(places=places, whole=whole, cpus=1.0, **more)


@dataclass
class Cluster:
    """A cluster's places, and a clock."""

    places: int
    seconds: float = 0.0

    def share(self, most: int | None = None) -> ClusterShare:
        return ClusterShare(1.0, 0.0, most, count=lambda cpus, gpus: self.count(), clock=lambda: self.seconds)

    def count(self) -> int:
        if not self.places:
            raise ValueError("A trial needs 1 CPU, but Ray has 0 CPUs.")
        return self.places


def test_a_sweep_with_a_cap_leaves_the_rest_to_others() -> None:
    capped = Cluster(places=8).share(most=2)
    assert capped.now() == part(2, 8, most=2)
    assert str(capped.now()) == "2 of 8 CPUs (2 of 8 trials at a time); at most 2 workers"


def test_places_follow_the_cluster_when_nodes_come_and_go() -> None:
    cluster = Cluster(places=1)
    share = cluster.share()
    cluster.places = 16
    cluster.seconds += LOOK_SECONDS
    assert share.now() == part(16, 16)
    cluster.places = 3
    cluster.seconds += LOOK_SECONDS
    assert share.now() == part(3, 3)
    cluster.places = 0
    cluster.seconds += LOOK_SECONDS
    assert share.now() == part(3, 3, has_no_node=True), "a node that joins goes on"
    assert str(share.now()).startswith("none: no node has room for a trial")
    cluster.places = 2
    cluster.seconds += LOOK_SECONDS
    assert share.now() == part(2, 2)


def driver_with(share: ClusterPart, orders: int, taken: int) -> tuple[SweepDriver, list[str]]:
    """A driver's own methods on a share that stays as it is, and what it says."""
    said: list[str] = []
    driver = SweepDriver.__new__(SweepDriver)
    driver.share = SimpleNamespace(part=share, now=lambda: share)  # type: ignore[assignment]
    driver.ledger = SimpleNamespace(attempt=0)  # type: ignore[assignment]
    driver.orders = {str(number): number < taken for number in range(orders)}
    driver.slots, driver.progress = share.whole, SimpleNamespace(say=said.append)  # type: ignore[assignment]
    return driver, said


@pytest.mark.parametrize(
    ("share", "orders", "taken", "has_place"),
    [
        (part(4, 4), 4, 4, True), (part(4, 4), 5, 4, False), (part(2, 4), 1, 1, True), (part(2, 4), 2, 2, False),
        (part(2, 4), 2, 0, False),
    ],
)  # fmt: skip
def test_a_sweep_lets_one_order_wait_and_with_a_cap_none(share, orders, taken, has_place) -> None:
    driver, _ = driver_with(share, orders, taken)
    assert driver._has_place() is has_place
    assert driver.has_enough() is (share.is_limited and orders >= share.places)


def test_the_driver_says_once_that_the_cluster_has_changed() -> None:
    driver, said = driver_with(part(4, 4), 0, 0)

    def now() -> ClusterPart:
        driver.share.part = part(2, 2)  # type: ignore[union-attr]
        return driver.share.part  # type: ignore[union-attr]

    driver.share.now = now  # type: ignore[union-attr]
    driver._follow_cluster()
    driver._follow_cluster()
    assert said == ["The sweep may use 2 of 2 CPUs (2 of 2 trials at a time)."]
    assert driver.slots == 2


PATIENCE_SECONDS = 900

GIVING_BACK = """
import os, sys, time
import ray
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import SETTINGS, Cluster
from meltpoint.sweeps.on_ray.trainable import result_of
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import Order, from_config
from meltpoint.tasks.core.task import DataSpec

os.environ.update(SETTINGS)


def order(number):
    return Order(
        id=str(number), number=number, role="search", encoder="e", mode="m", task="t", head="h", seed=0, setting={},
        data=DataSpec("t"), data_fingerprint="", encoder_fingerprint="", checkpoint="nowhere", cpus=1, gpus=0,
    )


def train(config):
    from ray import tune

    first = from_config(config)[0]
    tune.report(result_of([TrialEvent(trial=first.id, outcome=TrialOutcome(status="finished"))]))


class Driver:
    failure, slots = None, 1

    def __init__(self):
        self.orders, self.other, self.said = [(order(number),) for number in range(2)], None, []
        self.running = 0

    def next_order(self):
        if self.running or self.has_enough():
            return "wait"
        self.running = len(self.orders[:1])
        return self.orders.pop(0) if self.orders else "done"

    def on_event(self, event):
        self.running = 0
        self.said.append(f"trial {event.trial}")

    def has_enough(self):
        return len(self.said) == 1

    def tick(self):
        if self.has_enough():  # the only place is another sweep's until its trial has run
            self.other = self.other or ray.remote(num_cpus=1)(lambda: 7).remote()
            if ray.wait([self.other], timeout=0.1)[0]:
                self.said.append(f"other {ray.get(self.other)}")

    def on_start(self, work): pass
    def on_order_end(self, work, outcome): pass
    def wants_stop(self, work): return False
    def early_stopping(self, work): return None


if __name__ == "__main__":
    driver = Driver()
    with Cluster(None, 1) as cluster:
        cluster.join()
        experiment.run_on_tune(driver, train)
    print(driver.said)
"""


@pytest.mark.slow
def test_a_sweep_without_a_place_ends_its_idle_worker_and_goes_on_when_it_has_one_again(tmp_path) -> None:
    script = tmp_path / "giving_back.py"
    script.write_text(GIVING_BACK, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["['trial 0', 'other 7', 'trial 1']"], done.stderr[-3000:]
