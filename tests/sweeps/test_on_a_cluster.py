"""Joining a cluster of two raylets, and the preflight of its nodes: what cluster users get wrong is refused at once.

The second raylet of `uneven` has a copy of the package with another number in it, and another working directory, where
`/proc/self/cwd/runs` is not there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.machine import cluster_checks
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120

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
    with ray_nodes.cluster(head, second) as address:
        yield address


DRIVER = """
import json, sys
from pathlib import Path
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.preflight import Question, check_nodes

address, *storages = sys.argv[1:]
with Cluster(address) as cluster:
    cluster.join()
    for storage in storages:
        checks = check_nodes(Question(Path(storage), cpus=1.0, seconds=60.0))
        print(json.dumps([vars(check) for check in checks]), flush=True)
"""


def driver(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=ray_nodes.environment(**variables), capture_output=True,
        encoding="utf-8", timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def test_the_preflight_names_the_node_with_other_code_and_the_one_without_the_storage(uneven, head_folder) -> None:
    seen, unseen = str(head_folder / "runs"), "/proc/self/cwd/runs"
    done = driver(head_folder, "-c", DRIVER, uneven, seen, unseen)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [{check["name"]: check["detail"] for check in checks if not check["ok"]} for checks in answers]
    assert set(faults[0]) == {cluster_checks.CODE}
    assert faults[0][cluster_checks.CODE].startswith("127.0.0.1 (node ")
    assert set(faults[1]) == {cluster_checks.CODE, cluster_checks.STORAGE}
    assert "does not see /proc/self/cwd/runs" in faults[1][cluster_checks.STORAGE]
    (node,) = {said.partition(" has ")[0] for said in (faults[0][cluster_checks.CODE], faults[1][cluster_checks.CODE])}
    assert faults[1][cluster_checks.STORAGE].startswith(node)
    assert not list((head_folder / "runs").iterdir()), "nothing is left behind"
