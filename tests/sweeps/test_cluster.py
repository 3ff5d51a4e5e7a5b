"""Starting Ray beside everything else: the driver waits for the launch alone, and hears of what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.on_ray import cluster as cluster_module
from meltpoint.sweeps.on_ray import patches
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.fork_server import ForkServer, machine_has_gpus


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


@pytest.mark.parametrize("device", ["nvidia0", "kfd", "dxg", "accel/accel0", None])
def test_a_machine_with_gpus_is_known_by_its_device_files(tmp_path: Path, device: str | None):
    (tmp_path / "accel").mkdir()
    for name in ("nvidiactl", "null", *([device] if device else [])):
        (tmp_path / name).touch()
    assert machine_has_gpus(tmp_path) is (device is not None)


@pytest.mark.parametrize(("has_gpus", "switch", "forks"), [(False, "1", True), (True, "1", False), (False, "0", False)])
def test_workers_are_forked_only_without_gpus_and_with_the_patch(monkeypatch, has_gpus, switch, forks):
    opened: list[tuple[str, str]] = []
    monkeypatch.setattr(cluster_module, "machine_has_gpus", lambda: has_gpus)
    monkeypatch.setenv(patches.SWITCH, switch)
    monkeypatch.setattr(ForkServer, "open", lambda self, *words: opened.append(words))
    monkeypatch.setattr(Cluster, "_init", failing)
    with Cluster(None, encoder=("minilm", "sentence_classification")) as cluster:
        cluster.begin()
    assert opened == [("minilm", "sentence_classification")] * forks


@pytest.mark.parametrize(("resources", "stays"), [({"CPU": 2.0}, True), ({"CPU": 2.0, "GPU": 1.0}, False)])
def test_the_fork_server_is_closed_where_ray_finds_gpus_after_all(monkeypatch, resources, stays):
    monkeypatch.setattr("ray.cluster_resources", lambda: resources)
    cluster = Cluster(None)
    cluster.fork_server.open("minilm-that-is-not-there", "sentence_classification")
    cluster._fork_without_gpus_only()
    assert cluster.fork_server.is_open is stays
    cluster.fork_server.close()


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("Unauthenticated: RPC error: InvalidAuthToken", "the cluster wants a token (RAY_AUTH_"),
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
    with Cluster("10.0.0.1:6379") as cluster, pytest.raises(ValueError, match=r"it answers, but lets no driver join"):
        cluster.join()
    release.set()


def test_a_local_cluster_ignores_ray_address_and_stays_on_loopback(monkeypatch):
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    monkeypatch.setattr(cluster_module, "machine_has_gpus", lambda: True)
    monkeypatch.setattr(Cluster, "_init", lambda cluster, **options: asked.append(options))
    monkeypatch.setattr(Cluster, "_fork_without_gpus_only", lambda cluster: None)
    with Cluster(None) as cluster:
        cluster.join()
    assert asked[0]["address"] == "local"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


@pytest.mark.slow
def test_a_local_cluster_starts_though_rays_own_switch_names_a_dead_proxy():
    starts = (
        "from meltpoint.sweeps.on_ray.cluster import Cluster\nwith Cluster(None) as one: one.join(); print(one.unused)"
    )
    dead = {"RAY_grpc_enable_http_proxy": "1", "http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", starts], env={**os.environ, **dead}, capture_output=True, encoding="utf-8", timeout=90,
        check=False,
    )  # fmt: skip
    assert "is set and not used" in done.stdout, done.stderr
    assert (done.returncode, done.stderr) == (0, "")
