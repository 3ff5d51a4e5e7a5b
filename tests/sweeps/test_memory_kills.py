"""A worker that Ray's memory monitor kills: its trial is lost, the others begin anew, and the sweep continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from pathlib import Path
import psutil

SPARE = 3.5e9
memory = psutil.virtual_memory()
os.environ["RAY_memory_monitor_refresh_ms"] = "100"
os.environ["RAY_memory_usage_threshold"] = str((memory.total - memory.available + SPARE) / memory.total)
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import SETTINGS, Cluster
from meltpoint.sweeps.on_ray.trainable import result_of
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import Order, from_config
from meltpoint.tasks.core.task import DataSpec

os.environ.update(SETTINGS)
MARK = Path(sys.argv[1])


def order(number):
    return Order(
        id=str(number), number=number, role="search", encoder="e", mode="m", task="t", head="h", seed=0, setting={},
        data=DataSpec("t"), data_fingerprint="", encoder_fingerprint="", checkpoint="nowhere", cpus=1, gpus=0,
    )


def train(config):
    from ray import tune

    first = from_config(config)[0]
    tune.report(result_of([]))
    hog = []
    while first.id == "0" and not Path(f"{MARK}.killed").exists():
        time.sleep(0.01)  # until the other one is about to be killed
    while first.id == "1" and len(hog) < 500:
        if Path(f"{MARK}.killed").exists():
            break
        hog.append(os.urandom(1000) * 20_000)
        time.sleep(0.01)
        if sum(map(len, hog)) > SPARE / 2:
            Path(f"{MARK}.killed").touch()
            hog.append(b"x" * int(2 * SPARE))
            time.sleep(30)
    time.sleep(15 if first.id == "0" else 0)
    tune.report(result_of([TrialEvent(trial=first.id, outcome=TrialOutcome(status="finished"))]))


class Driver:
    failure, slots = None, 2

    def __init__(self):
        self.orders, self.under_way, self.said = [(order(n),) for n in range(2)], set(), []

    def next_order(self):
        if self.orders:
            work = self.orders.pop(0)
            self.under_way.add(work[0].id)
            return work
        return "wait" if self.under_way else "done"

    def on_event(self, event):
        self.under_way.discard(event.trial)
        self.said.append("ended " + event.trial)

    def on_order_end(self, work, outcome):
        if work[0].id in self.under_way:
            self.said.append(f"{outcome.cause or outcome.status} {work[0].id}")
            self.orders.append(work)

    def on_start(self, work): pass
    def wants_stop(self, work): return False
    def early_stopping(self, work): return None
    def tick(self): pass
    def has_enough(self): return False


if __name__ == "__main__":
    driver = Driver()
    with Cluster(None, 2) as cluster:
        cluster.join()
        experiment.run_on_tune(driver, train)
    print(", ".join(sorted(driver.said)))
"""


@pytest.mark.slow
def test_a_worker_killed_for_memory_is_lost_and_every_trial_ends(tmp_path: Path) -> None:
    script = tmp_path / "kill.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "mark")], capture_output=True, encoding="utf-8", timeout=200,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["ended 0, ended 1, memory 1, restarted 0"], done.stderr[-3000:]
