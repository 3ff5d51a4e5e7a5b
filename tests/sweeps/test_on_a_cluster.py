"""Joining a cluster of two raylets, and the preflight of its nodes: what cluster users get wrong is refused at once.

The second raylet of `uneven` has a copy of the package with another number in it, and another working directory, where
`/proc/self/cwd/runs` is not there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.on_ray import preflight
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode, said_by
from meltpoint.tests.sweeps.ray_nodes import sweep_on as sweep
from meltpoint.tests.sweeps.whole_sweeps import records

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 400

pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="there is no /proc/self/cwd")


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


@pytest.fixture(scope="module")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the head and of drivers."""
    folder = tmp_path_factory.mktemp("head")
    (folder / "runs").mkdir()
    return folder


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory, head_folder: Path, other_code: Path) -> Iterator[str]:
    """The address of a cluster whose second node has other code and another working directory."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    head = RayNode(folder=str(head_folder))
    second = RayNode(folder=str(elsewhere), environment={"PYTHONPATH": str(other_code)})
    with ray_nodes.cluster(head, second) as running:
        yield running.address


DRIVER = """
import json, sys
from pathlib import Path
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.preflight import check_nodes

address, *storages = sys.argv[1:]
with Cluster(address) as cluster:
    cluster.join()
    for storage in storages:
        checks = check_nodes(Path(storage), 60.0, 1.0)
        print(json.dumps([vars(check) for check in checks]), flush=True)
"""


def driver(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=ray_nodes.environment(**variables), capture_output=True,
        encoding="utf-8", timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_preflight_names_the_node_with_other_code_and_the_one_without_the_storage(uneven, head_folder) -> None:
    seen, unseen = str(head_folder / "runs"), "/proc/self/cwd/runs"
    done = driver(head_folder, "-c", DRIVER, uneven, seen, unseen)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [{check["name"]: check["detail"] for check in checks if not check["ok"]} for checks in answers]
    assert set(faults[0]) == {preflight.CODE}
    assert faults[0][preflight.CODE].startswith("127.0.0.1 (node ")
    assert set(faults[1]) == {preflight.CODE, preflight.STORAGE}
    assert "/proc/self/cwd/runs is missing" in faults[1][preflight.STORAGE]
    (node,) = {said.partition(": ")[0] for said in (faults[0][preflight.CODE], faults[1][preflight.CODE])}
    assert faults[1][preflight.STORAGE].startswith(node)
    assert not list((head_folder / "runs").iterdir()), "nothing is left behind"


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until something holds, or the process ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds() and process.poll() is None:
        assert time.monotonic() < deadline, "the sweep does not get on"
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a storage in it."""
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.mark.slow
def test_a_sweep_stops_before_its_first_trial_where_a_node_has_other_code(uneven, frozen_spec, folder) -> None:
    with sweep(frozen_spec, folder, uneven) as process:
        assert process.wait(PATIENCE_SECONDS) == 2
    (line,) = [line for line in said_by(folder).splitlines() if line.startswith("meltpoint: ")]
    assert "code on the nodes: 127.0.0.1 (node " in line
    assert "(the driver: 0." in line
    assert records(folder / "runs") == []


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
    assert said_by(folder).count("has Meltpoint's code") == 1


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
