"""room: trials fit single nodes, and sweeps on one cluster take equal parts of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.sweeps.on_ray.room import (
    LOOK_SECONDS,
    MARK,
    TURN_SECONDS,
    ClusterShare,
    fair_shares,
    needs,
    slots,
    trials_on,
)
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode, said_by
from meltpoint.tests.sweeps.ray_nodes import sweep_on as sweep
from meltpoint.tests.sweeps.whole_sweeps import records


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


# --- several sweeps ---


def part(places: int, whole: int, others: tuple[str, ...] = (), **more: Any) -> ClusterPart:
    """A part of a cluster whose trials take a CPU each."""
    return ClusterPart(places=places, whole=whole, cpus=1.0, others=others, **more)


NAMES = st.text("abcdef", min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("places", "wants", "shares"),
    [
        (4, {"a": 9, "b": 9}, {"a": 2, "b": 2}), (5, {"b": 9, "a": 9}, {"a": 3, "b": 2}),
        (8, {"a": 1, "b": 9}, {"a": 1, "b": 7}), (8, {"a": 1, "b": 2, "c": 9}, {"a": 1, "b": 2, "c": 5}),
        (8, {"a": 2, "b": 3}, {"a": 2, "b": 3}), (1, {"a": 9, "b": 9}, {"a": 1, "b": 0}), (3, {"a": 9}, {"a": 3}),
        (0, {"a": 1}, {"a": 0}), (4, {"a": 0, "b": 9}, {"a": 0, "b": 4}),
    ],
)  # fmt: skip
def test_places_are_shared_equally_and_what_one_sweep_does_not_want_goes_to_the_others(places, wants, shares) -> None:
    assert fair_shares(places, wants) == shares


@given(st.integers(0, 300), st.dictionaries(NAMES, st.integers(0, 300), min_size=1, max_size=9), st.integers(0, 99))
def test_no_place_is_idle_while_a_sweep_wants_one_and_no_sweep_has_two_more_than_another_that_wants_more(
    places, wants, turn
) -> None:
    shares = fair_shares(places, wants, turn)
    assert sum(shares.values()) == min(places, sum(wants.values()))
    for name, share in shares.items():
        assert 0 <= share <= wants[name]
        if share < wants[name]:
            assert all(other - share <= 1 for other in shares.values())


@given(st.integers(1, 9), st.integers(1, 9))
def test_with_fewer_places_than_sweeps_each_sweep_has_one_in_some_turn(places, sweeps) -> None:
    wants = {str(number): 5 for number in range(sweeps)}
    turns = [fair_shares(places, wants, turn) for turn in range(sweeps)]
    assert all(any(shares[name] for shares in turns) for name in wants)


@dataclass
class Cluster:
    """A cluster's places, a clock, and the announcements of its sweeps."""

    places: int
    seconds: float = 0.0
    announced: dict[str, int] = field(default_factory=dict)

    def share(self, sweep: str, most: int | None = None) -> ClusterShare:
        return ClusterShare(
            sweep, 1.0, 0.0, most, FakeBoard(self, f"{MARK}|{sweep}|0"),  # type: ignore[arg-type]
            count=lambda cpus, gpus: self.count(), clock=lambda: self.seconds,
        )  # fmt: skip

    def count(self) -> int:
        if not self.places:
            raise ValueError("A trial needs 1 CPU, but Ray has 0 CPUs.")
        return self.places


@dataclass
class FakeBoard:
    cluster: Cluster
    own: str

    def announce(self, sweep: str, part: int) -> None:
        self.cluster.announced[self.own] = part

    def others(self) -> dict[str, int]:
        return {name: part for name, part in self.cluster.announced.items() if name != self.own}


def test_a_second_sweep_halves_the_first_ones_places_and_gives_them_back_when_it_needs_them_no_more() -> None:
    cluster = Cluster(places=4)
    first = cluster.share("first")
    assert first.now() == part(4, 4)
    assert not first.now().is_limited
    second = cluster.share("second")
    assert second.now() == part(2, 4, ("first",))
    assert first.now() == part(4, 4), "looked at every few seconds"
    cluster.seconds += LOOK_SECONDS
    assert first.now() == part(2, 4, ("second",))
    assert str(first.now()) == "2 of 4 CPUs (2 of 4 trials at a time), shared with second"
    second.want(1)  # its last trial
    second.now()
    cluster.seconds += LOOK_SECONDS
    assert first.now().places == 3
    cluster.announced.pop(second.board.own)  # type: ignore[union-attr]
    cluster.seconds += LOOK_SECONDS
    assert first.now() == part(4, 4)


def test_a_sweep_with_a_cap_leaves_the_rest_to_the_others() -> None:
    cluster = Cluster(places=8)
    capped, other = cluster.share("capped", most=2), cluster.share("other")
    cluster.seconds += LOOK_SECONDS
    assert capped.now() == part(2, 8, ("other",), most=2)
    assert other.now().places == 6


def test_places_follow_the_cluster_when_nodes_come_and_go() -> None:
    cluster = Cluster(places=1)
    share = cluster.share("only")
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


def test_two_sweeps_take_turns_on_a_single_place() -> None:
    cluster = Cluster(places=1)
    shares = [cluster.share("first"), cluster.share("second")]
    had = []
    for _ in range(2):
        cluster.seconds += TURN_SECONDS
        had.append([share.now().places for share in shares])
    assert sorted(had) == [[0, 1], [1, 0]]


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
        (part(2, 4), 2, 0, False), (part(2, 2, ("other",)), 2, 2, False), (part(0, 1, ("other",)), 0, 0, False),
    ],
)  # fmt: skip
def test_a_sweep_alone_lets_one_order_wait_and_one_that_shares_the_cluster_none(
    share, orders, taken, has_place
) -> None:
    driver, _ = driver_with(share, orders, taken)
    assert driver._has_place() is has_place
    assert driver.has_enough() is (share.is_limited and orders >= share.places)


def test_the_driver_says_with_whom_it_shares_the_cluster_once() -> None:
    driver, said = driver_with(part(4, 4), 0, 0)
    shared = part(2, 4, ("other",))

    def now() -> ClusterPart:
        driver.share.part = shared  # type: ignore[union-attr]
        return shared

    driver.share.now = now  # type: ignore[union-attr]
    driver._follow_cluster()
    driver._follow_cluster()
    assert said == ["The sweep may use 2 of 4 CPUs (2 of 4 trials at a time), shared with other."]
    assert driver.slots == 2


PATIENCE_SECONDS = 900
LONG = ("--set", "epochs=300")
"""Trials of some seconds, so that the first sweep runs while the second one starts."""


def wait_until(holds: Callable[[], bool], folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert process.poll() is None, said_by(folder)
        assert time.monotonic() < deadline, said_by(folder)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_second_sweep_gets_its_part_of_the_cluster_and_the_first_goes_on(frozen_spec, tmp_path) -> None:
    first = frozen_spec.model_copy(update={"name": "first", "modes": ("fine_tuning",), "trials": 20, "seeds": 1})
    second = first.model_copy(update={"name": "second", "trials": 3})
    early, late = tmp_path / "early", tmp_path / "late"
    with ray_nodes.cluster(RayNode(cpus=2)) as running, sweep(first, early, running.address, *LONG) as one:
        wait_until(lambda: len(records(early / "runs", "first")) >= 2, early, one)
        with sweep(second, late, running.address, *LONG) as two:
            wait_until(lambda: len(records(late / "runs", "second")) >= 1, late, two)
            assert one.poll() is None, "the first has not ended when the second's first trial has"
            before = len(records(early / "runs", "first"))
            assert two.wait(PATIENCE_SECONDS) == 0, said_by(late)
        wait_until(lambda: len(records(early / "runs", "first")) > before, early, one)
        assert one.wait(PATIENCE_SECONDS) == 0, said_by(early)
    assert "(1 of 2 trials at a time), shared with second" in said_by(early)
    assert "(1 of 2 trials at a time), shared with first" in said_by(late)
    every = [*records(early / "runs", "first"), *records(late / "runs", "second")]
    assert {(record["status"], record["attempts"]) for record in every} == {("finished", 1)}


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
