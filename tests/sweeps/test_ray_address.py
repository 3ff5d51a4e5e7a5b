"""services: what `--address` and RAY_ADDRESS name, and what answers there, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meltpoint.sweeps.machine import services
from meltpoint.sweeps.machine.services import (
    cluster_address,
    join_fault,
    ray_cluster,
    token_state,
    unused_variable,
)
from meltpoint.sweeps.on_ray.cluster import Cluster

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0x7F, 0xFF, 0xFF, 0xFF])  # a server's first frame (RFC 9113, 6.5)


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """`HOST:PORT` of a server that answers each connection with these bytes; None never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_ones: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                open_ones.append(connection)
                connection.recv(1000)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in open_ones:
            connection.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# --- names ---


def test_auto_is_ray_address_then_what_ray_start_wrote_down(tmp_path: Path) -> None:
    note = tmp_path / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    note.write_text("10.0.0.1:6379\n")
    assert cluster_address("auto", {"RAY_TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    assert cluster_address("auto", {"RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": "10.0.0.2:6379"}) == "10.0.0.2:6379"
    assert cluster_address("10.0.0.3:6379", {"RAY_ADDRESS": "10.0.0.2:6379"}) == "10.0.0.3:6379"


def test_auto_without_a_cluster_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--address auto: no cluster is running here; start one \(ray start --head"):
        cluster_address("auto", {"RAY_TMPDIR": str(tmp_path)})


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265"])
def test_an_address_that_no_driver_joins_is_refused_with_the_way_to_submit(address: str) -> None:
    with pytest.raises(ValueError, match=rf"^--address {address}: .*`ray job submit`"):
        cluster_address(address, {})
    with pytest.raises(ValueError, match=rf"^--address auto \(RAY_ADDRESS={address}\): .*`ray job submit`"):
        cluster_address("auto", {"RAY_ADDRESS": address})


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:", ":6379", "10.0.0.1:x", "10.0.0.1:70000", "10.0.0.1:0"])
def test_what_is_no_address_is_told_its_form(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        cluster_address(address, {})


def test_ray_address_is_said_where_a_sweep_does_not_use_it() -> None:
    assert unused_variable({"RAY_ADDRESS": "10.0.0.1:6379"}).startswith("RAY_ADDRESS=10.0.0.1:6379 is set but ig")
    assert unused_variable({}) == unused_variable({"RAY_ADDRESS": ""}) == ""
    check = ray_cluster(None, {"RAY_ADDRESS": "10.0.0.1:6379"})
    assert check.ok
    assert "--address auto joins" in check.detail


# --- answers ---


def test_what_speaks_http2_may_be_a_cluster() -> None:
    with answering(SETTINGS) as address:
        assert join_fault(address, {}) == ""
        assert ray_cluster(address, {}).ok


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_what_answers_something_else_is_no_cluster(answer: bytes) -> None:
    with answering(answer) as address:
        fault = join_fault(address, {})
    assert fault == "the server there is not Ray" or "reset" in fault  # where the connection ends before it is read


def test_a_port_that_takes_connections_and_says_nothing_is_given_up_in_seconds(monkeypatch) -> None:
    monkeypatch.setattr(services, "TIMEOUT_SECONDS", 0.3)
    with answering(None) as address:
        assert join_fault(address, {}) == "no answer in 0.3 s"


def test_a_cluster_behind_tls_is_only_connected_to() -> None:
    with answering(None) as address:
        assert join_fault(address, {"RAY_USE_TLS": "1"}) == ""
    assert "refused" in join_fault(closed_port(), {"RAY_USE_TLS": "1"})


def test_an_unreachable_cluster_is_refused_at_once_in_one_line() -> None:
    address, began = closed_port(), time.monotonic()
    with Cluster(address) as cluster, pytest.raises(ValueError, match="no Ray cluster answers there") as told:
        cluster.join()
    assert time.monotonic() - began < 10
    assert str(told.value).startswith(f"--address {address}: ")
    assert "ray start --head" in str(told.value)
    assert "\n" not in str(told.value)


# --- tokens ---


def test_the_state_of_the_token_is_said_without_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / "token"
    token.write_text("s3cret")
    states = [
        token_state(environment)
        for environment in (
            {}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token"},
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "s3cret"},
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
        )
    ]  # fmt: skip
    assert states[:2] == ["RAY_AUTH_MODE is not set here", "RAY_AUTH_MODE is disabled here"]
    assert states[2].startswith("there is none in ")
    assert all(state.endswith("is not the cluster's") for state in states[3:])
    assert "s3cret" not in repr(states)
