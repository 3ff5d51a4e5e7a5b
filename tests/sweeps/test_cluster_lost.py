"""A cluster whose head is lost, or whose raylet on the driver's machine is: the sweep saves and ends with one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray.cluster_watch import LOST_SECONDS
from meltpoint.tests.local_servers import free_ports
from meltpoint.tests.marked_processes import Marked
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, assert_whole, command, mlflow_runs, run

ENDS_SECONDS = LOST_SECONDS + 30
PARTS = {"head": ("gcs_server", "Ray's head"), "raylet": ("raylet/raylet", "the raylet of this machine")}


class OneNode:
    """A Ray cluster of one machine, whose processes are known by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marked = folder, Marked()
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        words = [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2",
            f"--port={self.address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", "--include-dashboard=false",
            "--disable-usage-stats",
        ]  # fmt: skip
        self.environment = {**os.environ, **self.marked.environment, "RAY_AUTH_MODE": "disabled"}
        log = folder / "head"
        with log.open("w") as file:
            subprocess.Popen(words, env=self.environment, stdout=file, stderr=file, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path)
    yield made
    made.marked.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)
def test_a_sweep_whose_cluster_is_lost_saves_shows_its_table_and_says_what_was_lost(spec, tmp_path, cluster, part):
    storage, log = tmp_path / "runs", tmp_path / "log"
    changes = {"modes": ("fine_tuning",)}
    words = command(spec, storage, "--address", cluster.address, "--set", "epochs=300", **changes)
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=cluster.environment)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not cluster.marked.processes("ray::ImplicitFunc.train"):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    title, said = PARTS[part]
    cluster.marked.kill(title)
    lost = time.monotonic()
    assert process.wait(timeout=PATIENCE_SECONDS) == 1, log.read_text()
    assert time.monotonic() - lost < ENDS_SECONDS
    text = log.read_text()
    assert f"meltpoint: {said}" in text
    assert "the same command goes on" in text
    assert "It goes on with:" in text
    assert (storage / "tiny" / "report.md").exists()
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(storage)}
    finished = run(command(spec, storage, "--set", "epochs=300", **changes))
    assert finished.returncode == 0, finished.stderr
    assert_whole(storage, cells=1, trials=3, seeds=2)
