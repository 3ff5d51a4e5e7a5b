"""A cluster starts in the background and reports what goes wrong; a lost part is noticed; the first line is quick."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.on_ray import cluster as cluster_module
from meltpoint.sweeps.on_ray.cluster import Cluster, Lost, watched


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

PATIENCE_SECONDS = 30.0


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
        self.lost: list[Lost] = []
        self.came = threading.Event()

    def __call__(self, lost: Lost) -> None:
        self.lost.append(lost)
        self.came.set()


def test_a_part_that_is_gone_is_told_once_with_its_name_and_only_after_its_time(listener):
    heard, address = Heard(), listener.getsockname()
    with watched({"Ray's head": address}, heard, lost_seconds=1.0):
        listener.close()
        closed = time.monotonic()
        assert heard.came.wait(PATIENCE_SECONDS)
        assert time.monotonic() - closed >= 0.7
    (lost,) = heard.lost
    assert str(lost) == f"Ray's head did not answer for {lost.seconds:.0f} s"
    assert lost.seconds >= 1.0


def test_parts_that_are_gone_together_are_told_together_the_first_one_first(listener):
    heard = Heard()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(50)
        parts = {"the raylet": other.getsockname(), "Ray's head": listener.getsockname()}
        with watched(parts, heard, lost_seconds=1.0):
            other.close()
            listener.close()
            assert heard.came.wait(PATIENCE_SECONDS)
    assert [lost.part for lost in heard.lost] == ["the raylet and Ray's head"]


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
            again.settimeout(PATIENCE_SECONDS)
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
