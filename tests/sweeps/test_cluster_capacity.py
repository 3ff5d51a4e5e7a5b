"""Ray's cluster: its start in the background, the watch for lost parts, and room for trials as nodes come and go."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.driver_notes import ClusterPart
from meltpoint.sweeps.on_ray import cluster as cluster_module
from meltpoint.sweeps.on_ray.cluster import Cluster, watched
from meltpoint.sweeps.on_ray.cluster_capacity import LOOK_SECONDS, ClusterShare, slots, trials_on


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


def part(places: int, whole: int, **more: Any) -> ClusterPart:
    """A part of a cluster whose trials take a CPU each."""
    return ClusterPart(places=places, whole=whole, cpus=1.0, **more)


@dataclass
class Places:
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
    capped = Places(places=8).share(most=2)
    assert capped.now() == part(2, 8, most=2)
    assert str(capped.now()) == "2 of 8 CPUs (2 of 8 trials at a time); at most 2 workers"
    assert str(ClusterPart(places=1, whole=6, cpus=2, gpus=1 / 3)) == "0.3333 of 2 GPUs (1 of 6 trials at a time)"
    assert str(part(1, 2, most=1)).endswith("; at most 1 worker")


def test_places_follow_the_cluster_when_nodes_come_and_go() -> None:
    cluster = Places(places=1)
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
        (part(4, 4), 4, 4, True), (part(4, 4, most=4), 4, 4, False), (part(4, 4), 5, 4, False),
        (part(2, 4), 1, 1, True), (part(2, 4), 2, 2, False), (part(2, 4), 2, 0, False),
    ],
)  # fmt: skip
def test_a_sweep_lets_one_order_wait_and_with_a_cap_none(share, orders, taken, has_place) -> None:
    driver, _ = driver_with(share, orders, taken)
    assert driver._has_place() is has_place
    assert driver.has_enough() is (share.is_limited and orders >= share.places)


GIVING_BACK = """
import os, sys, time
import ray
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import SETTINGS, Cluster
from meltpoint.sweeps.on_ray.workers import result_of
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import from_config
from meltpoint.tests.tiny_parts import bare_order

os.environ.update(SETTINGS)


def train(config):
    from ray import tune

    first = from_config(config)[0]
    tune.report(result_of([TrialEvent(trial=first.id, outcome=TrialOutcome(status="finished"))]))


class Driver:
    failure, slots = None, 1

    def __init__(self):
        self.orders, self.other, self.said = [(bare_order(number),) for number in range(2)], None, []
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
    def begins_too_late(self, work): return False
    def early_stopping(self, work): return None


if __name__ == "__main__":
    driver = Driver()
    with Cluster(None, 1) as cluster:
        cluster.join()
        experiment.run_on_tune(driver, train)
    print(driver.said)
"""


PATIENCE_SECONDS = 900


@pytest.mark.slow
def test_a_sweep_without_a_place_ends_its_idle_worker_and_goes_on_when_it_has_one_again(tmp_path) -> None:
    script = tmp_path / "giving_back.py"
    script.write_text(GIVING_BACK, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["['trial 0', 'other 7', 'trial 1']"], done.stderr[-3000:]


def failing(cluster: Cluster, **options: Any) -> None:
    raise RuntimeError("no room\nand more")


@pytest.mark.parametrize(
    ("address", "where"), [(None, "A local Ray cluster"), ("127.0.0.1:1", "--address 127.0.0.1:1")]
)
def test_a_ray_that_cannot_start_holds_nobody_up_and_is_one_line(monkeypatch, address, where):
    monkeypatch.setattr(Cluster, "_init", failing)
    monkeypatch.setattr(cluster_module, "check_answers", lambda address: None)
    with Cluster(address) as cluster:
        cluster.begin()
        with pytest.raises(ValueError, match=rf"^{where}: Ray did not start \(no room\)") as told:
            cluster.join()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("Unauthenticated: RPC error: InvalidAuthToken", "the cluster requires a token (RAY_AUTH_"),
        ("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n", "Version mismatch: The cluster was"),
        ("No node info found matching attributes: ''", "no node of that cluster runs on this machine; "),
        ("something else", "Ray did not start (Failed to connect)"),
    ],
)  # fmt: skip
def test_what_ray_says_of_a_cluster_that_cannot_be_joined_becomes_one_line_with_the_remedy(monkeypatch, cause, says):
    def init(cluster: Cluster, **options: Any) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError(cause)

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(cluster_module, "check_answers", lambda address: None)
    monkeypatch.setattr(Cluster, "_init", init)
    with Cluster("10.0.0.1:6379") as cluster, pytest.raises(ValueError, match=r"10\.0\.0\.1:6379") as told:
        cluster.join()
    assert str(told.value).startswith(f"--address 10.0.0.1:6379: {says}")
    assert "\n" not in str(told.value)


def test_a_cluster_that_answers_and_lets_nobody_join_is_given_up(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(cluster_module, "check_answers", lambda address: None)
    monkeypatch.setattr(cluster_module, "JOIN_SECONDS", 0.1)
    monkeypatch.setattr(Cluster, "_init", lambda cluster, **options: release.wait(60))
    with Cluster("10.0.0.1:6379") as cluster, pytest.raises(ValueError, match=r"it answers, but no driver could join"):
        cluster.join()
    release.set()


def test_a_local_cluster_ignores_ray_address_and_stays_on_loopback(monkeypatch):
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    monkeypatch.setattr(Cluster, "_init", lambda cluster, **options: asked.append(options))
    with Cluster(None) as cluster:
        cluster.join()
    assert asked[0]["address"] == "local"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


# --- the first line of a sweep ---

SWEEP = """
import sys
from meltpoint.sweeps.on_ray.cluster import Cluster
def begin(self):
    print("heavy:", sorted({"torch", "ray", "mlflow", "transformers"} & set(sys.modules)), file=sys.stderr)
    sys.exit(3)
Cluster.begin = begin
from meltpoint.launch import main
main()
"""


def said(*words: str) -> subprocess.CompletedProcess[str]:
    """A sweep of two cells that ends where Ray would start."""
    words = (
        "sweep", "--name", "first", "--encoder", "minilm", "--mode", "feature_extraction,fine_tuning", "--task",
        "demo_sentiment", *words,
    )  # fmt: skip
    return subprocess.run([sys.executable, "-c", SWEEP, *words], capture_output=True, encoding="utf-8", check=False)


def test_a_sweep_says_what_it_does_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    done = said("--storage", str(tmp_path))
    first, second = done.stderr.splitlines()
    assert first.startswith("first: opening 2 cells; ")
    assert second == "heavy: []"


def test_bad_input_is_one_line_before_ray_starts(tmp_path: Path) -> None:
    done = said("--storage", str(tmp_path), "--set", "learning_rat=1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("meltpoint: ")


# --- the watch ---

WATCH_SECONDS = 30.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", 0))
        made.listen(50)
        yield made


class Heard:
    """What the watch has told."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.came = threading.Event()

    def __call__(self, lost: str) -> None:
        self.lost.append(lost)
        self.came.set()


def test_a_part_that_is_gone_is_told_once_with_its_name_and_only_after_its_time(listener):
    heard, address = Heard(), listener.getsockname()
    with watched({"Ray's head": address}, heard, lost_seconds=1.0):
        listener.close()
        closed = time.monotonic()
        assert heard.came.wait(WATCH_SECONDS)
        assert time.monotonic() - closed >= 0.7
    (lost,) = heard.lost
    assert re.fullmatch(r"Ray's head did not answer for [1-9]\d* s", lost)


def test_a_part_that_comes_back_in_time_is_not_missed(listener):
    heard, address = Heard(), listener.getsockname()
    looks = 0
    with watched({"Ray's head": address}, heard, lost_seconds=2.0):
        listener.close()
        time.sleep(1.0)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(address)
            again.listen(50)
            again.settimeout(WATCH_SECONDS)
            while looks < 6:
                connection, _ = again.accept()
                connection.close()
                looks += 1
            assert heard.lost == []


def test_nothing_is_told_of_a_cluster_that_is_left_in_order(listener):
    heard = Heard()
    with watched({"Ray's head": listener.getsockname()}, heard, lost_seconds=0.2):
        pass
    listener.close()
    assert not heard.came.wait(0.6)
