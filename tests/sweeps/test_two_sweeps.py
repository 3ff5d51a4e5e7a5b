"""Two sweeps on one real cluster: the second one gets its part though the first wants all, and no trial is ended."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode, said_by
from meltpoint.tests.sweeps.ray_nodes import sweep_on as sweep
from meltpoint.tests.sweeps.whole_sweeps import records

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
    assert "shares the cluster with second: 1 of 2 trials at a time" in said_by(early)
    assert "shares the cluster with first: 1 of 2 trials at a time" in said_by(late)
    every = [*records(early / "runs", "first"), *records(late / "runs", "second")]
    assert {(record["status"], record["attempts"]) for record in every} == {("finished", 1)}


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS)
def test_a_capped_sweep_never_runs_more_trials_at_once(frozen_spec, tmp_path) -> None:
    spec = frozen_spec.model_copy(update={"modes": ("fine_tuning",), "trials": 4, "seeds": 1})
    folder = tmp_path / "capped"
    with (
        ray_nodes.cluster(RayNode(cpus=2)) as running,
        sweep(spec, folder, running.address, "--max-workers", "1") as process,
    ):
        assert process.wait(PATIENCE_SECONDS) == 0, said_by(folder)
    trained = [one for one in records(folder / "runs", spec.name) if one["answered_by"] is None]
    spans = sorted((one["started_at"], one["started_at"] + one["seconds"]) for one in trained)
    assert len(spans) == spec.trials
    assert all(end <= start + 0.5 for (_, end), (start, _) in itertools.pairwise(spans))
    assert "1 of 2 trials at a time" in said_by(folder)


ANNOUNCING = """
import sys, ray
from meltpoint.sweeps.on_ray.room import Board, ClusterShare

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
first, second = Board(), Board()
share = ClusterShare("first", 1.0, 0.0, None, first)
print(share.part)
second.announce("second", 1000)
for wanted in (1, 2, 1, 2):  # each is an announcement of its own
    share.want(wanted)
    print(share.now())
print([name.split("|")[1] for name in second.others()])
"""


@pytest.mark.slow
def test_announcements_on_a_real_cluster_may_change_at_any_pace() -> None:
    with ray_nodes.cluster(RayNode(), RayNode()) as running:
        words = [sys.executable, "-c", ANNOUNCING, running.address]
        done = subprocess.run(words, env=ray_nodes.environment(), capture_output=True, encoding="utf-8", check=False)
    shared = "shares the cluster with second: 1 of 2 trials at a time"
    alone = "has the cluster to itself: 2 of 2 trials at a time"
    assert done.stdout.splitlines() == [alone, *[shared] * 4, "['first']"], done.stderr


GIVING_BACK = """
import os, sys, time
import ray
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import SETTINGS, Cluster
from meltpoint.sweeps.on_ray.trainable import result_of
from meltpoint.sweeps.worker.events import TrialEnded
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tasks.core.task import DataSpec

os.environ.update(SETTINGS)


def order(number):
    return Order(
        id=str(number), number=number, role="search", encoder="e", mode="m", task="t", head="h", seed=0, setting={},
        data=DataSpec("t"), data_fingerprint="", encoder_fingerprint="", checkpoint="nowhere", cpus=1, gpus=0,
    )


def train(config):
    from ray import tune

    first = WorkOrder.from_config(config).first
    tune.report(result_of([TrialEnded(trial=first.id, outcome=TrialOutcome(status="finished"))]))


class Driver:
    failure, slots = None, 1

    def __init__(self):
        self.orders, self.other, self.said = [WorkOrder(orders=(order(number),)) for number in range(2)], None, []
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
