"""A cluster whose head is lost, or whose raylet on the driver's machine is: the sweep saves and ends with one line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray.cluster import LOST_SECONDS
from meltpoint.tests.local_servers import free_ports
from meltpoint.tests.marked_processes import Marked, titled
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, assert_whole, command, mlflow_runs, records, run

ENDS_SECONDS = LOST_SECONDS + 30
HEAD, RAYLET = ("gcs_server", "Ray's head"), ("raylet/raylet", "the raylet of this machine")
"""A part: words of its command line, and how it is named."""


@contextmanager
def one_node(marked: Marked) -> Iterator[list[str]]:
    """`ray start` on this machine; yields the options of a sweep that joins."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    words = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2",
        f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", "--include-dashboard=false",
        "--disable-usage-stats",
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("r+") as log:
        environment = ray_nodes.environment(**marked.environment)
        subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Ray runtime started" not in (said := Path(log.name).read_text()):
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield ["--address", address]


@contextmanager
def two_nodes(marked: Marked) -> Iterator[list[str]]:
    """Two raylets on this machine; the driver's is the head's."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        running = ray_nodes.started(Path(folder), **marked.environment)
        try:
            yield ["--address", running.add(RayNode(), RayNode()).address]
        finally:
            marked.kill()
            running.process.wait()


@contextmanager
def none(marked: Marked) -> Iterator[list[str]]:
    """No cluster: the sweep starts its own."""
    yield []


CASES = {
    "head": (one_node, *HEAD), "raylet": (one_node, *RAYLET), "raylet of two": (two_nodes, *RAYLET),
    "head of its own": (none, *HEAD), "raylet of its own": (none, *RAYLET),
}  # fmt: skip


def kill(marked: Marked, title: str) -> None:
    """SIGKILL a part of the node that the driver is on."""
    victims = [one for one in marked.processes(title) if title in HEAD or "--head" in titled(one).split()]
    assert len(victims) == 1
    victims[0].kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_sweep_whose_cluster_is_lost_saves_shows_its_table_and_says_what_was_lost(spec, tmp_path, case):
    start, title, said = CASES[case]
    marked, storage, log = Marked(), tmp_path / "runs", tmp_path / "log"
    changes = {"modes": ("fine_tuning",)}
    try:
        with start(marked) as options, log.open("w") as file:
            words = command(spec, storage, *options, "--set", "epochs=300", **changes)
            environment = ray_nodes.environment(**marked.environment)
            process = subprocess.Popen(words, stdout=file, stderr=file, env=environment)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not marked.processes("ray::ImplicitFunc.train"):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            before = len(records(storage))
            kill(marked, title)
            lost = time.monotonic()
            assert process.wait(timeout=PATIENCE_SECONDS) == 1, log.read_text()
            assert time.monotonic() - lost < ENDS_SECONDS, log.read_text()
    finally:
        marked.kill()
    text = log.read_text()
    assert text.count(f"meltpoint: {said}") == 1, text
    assert "the same command resumes it" in text
    assert "Resume it with:" in text
    assert "Traceback" not in text
    assert (storage / "tiny" / "report.md").exists()
    assert len(records(storage)) >= before
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(storage)}
    finished = run(command(spec, storage, "--set", "epochs=300", **changes))
    assert finished.returncode == 0, finished.stderr
    assert_whole(storage, cells=1, trials=3, seeds=2)
