"""Clusters of raylets: a busy one is waited for, a node with other code trains nothing, a lost part ends the sweep."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray.cluster import LOST_SECONDS
from meltpoint.tests.marked_processes import Marked
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode, said_by
from meltpoint.tests.sweeps.ray_nodes import sweep_on as sweep
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS as SWEEP_SECONDS
from meltpoint.tests.sweeps.whole_sweeps import assert_whole, command, mlflow_runs, records, run, wait_until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 400


@pytest.fixture(scope="module")
def other_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put on PYTHONPATH: this package, one number in it changed."""
    place = tmp_path_factory.mktemp("other")
    names = [name for name in ("adapters", "tasks", "search_spaces", "sweeps", "reports") if (ROOT / name).is_dir()]
    for name in names:
        shutil.copytree(ROOT / name, place / "meltpoint" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.py"):
        shutil.copy2(path, place / "meltpoint" / path.name)
    with (place / "meltpoint" / "adapters" / "head.py").open("a") as file:
        file.write("\nANOTHER_NUMBER = 1\n")
    return place


DRIVER = """
import sys
from meltpoint.sweeps.on_ray.cluster import Cluster

with Cluster(sys.argv[1]) as cluster:
    cluster.join()
"""


def driver(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=ray_nodes.environment(**variables), capture_output=True,
        encoding="utf-8", timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a storage in it."""
    (tmp_path / "runs").mkdir()
    return tmp_path


BUSY = """
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
held = ray.util.placement_group([{"CPU": 1}])
ray.get(held.ready())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_busy_cluster_is_waited_for_with_one_line(frozen_spec, folder) -> None:
    with ray_nodes.cluster(RayNode()) as running:
        other = subprocess.Popen(
            [sys.executable, "-c", BUSY, running.address], env=ray_nodes.environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with sweep(frozen_spec, folder, running.address) as process:
            wait_until(lambda: "Waiting for 1 CPU on one node" in said_by(folder), process)
            assert process.poll() is None
            assert records(folder / "runs") == []
            other.communicate()
            assert process.wait(PATIENCE_SECONDS) == 0, said_by(folder)
    assert said_by(folder).count("Waiting for") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_joins_later_with_other_code_trains_nothing(frozen_spec, folder, other_code) -> None:
    spec = frozen_spec.model_copy(update={"modes": ("fine_tuning",), "trials": 6})
    with ray_nodes.cluster(RayNode()) as running, sweep(spec, folder, running.address) as process:
        wait_until(lambda: "1 trial at a time" in said_by(folder), process)
        running.add(RayNode(environment={"PYTHONPATH": str(other_code)}))
        assert process.wait(PATIENCE_SECONDS) == 0, said_by(folder)
    assert {record["status"] for record in records(folder / "runs")} == {"finished"}
    assert said_by(folder).count("has Meltpoint's code") in {1, 2}  # a worker that trains says so, one that scores may


@pytest.mark.slow
def test_a_cluster_with_a_token_is_joined_with_it_and_its_lack_is_said(folder) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef"}
    with ray_nodes.cluster(RayNode(), **token) as running:
        without, wrong, right = (
            driver(folder, "-c", DRIVER, running.address, **variables)
            for variables in ({}, {**token, "RAY_AUTH_TOKEN": "fedcba9876543210"}, token)
        )
    assert right.returncode == 0, right.stderr
    assert "the cluster requires a token (RAY_AUTH_MODE is disabled here); export RAY_AUTH_MODE=token" in without.stderr
    assert "the cluster requires a token (the one in RAY_AUTH_TOKEN is not the cluster's)" in wrong.stderr
    assert "0123456789abcdef" not in without.stderr + wrong.stderr


ENDS_SECONDS = LOST_SECONDS + 30
PARTS = {"head": ("gcs_server", "Ray's head"), "raylet": ("raylet/raylet", "the raylet of this machine")}
"""A part → words of its command line, and how it is named."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)  # of the sweep's own cluster; `make chaos` loses one of two nodes
def test_a_sweep_whose_cluster_is_lost_saves_shows_its_table_and_says_what_was_lost(spec, tmp_path, part):
    title, said = PARTS[part]
    marked, storage, log = Marked(), tmp_path / "runs", tmp_path / "log"
    changes = {"modes": ("fine_tuning",)}
    try:
        with log.open("w") as file:
            words = command(spec, storage, "--set", "epochs=300", **changes)
            environment = ray_nodes.environment(**marked.environment)
            process = subprocess.Popen(words, stdout=file, stderr=file, env=environment)
            wait_until(lambda: marked.processes("ray::ImplicitFunc.train"), process)
            assert process.poll() is None, log.read_text()
            before = len(records(storage))
            (victim,) = marked.processes(title)
            victim.kill()
            lost = time.monotonic()
            assert process.wait(timeout=SWEEP_SECONDS) == 1, log.read_text()
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
