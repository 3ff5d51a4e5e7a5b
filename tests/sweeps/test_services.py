"""services: a tracking server that answers, refuses, or says nothing, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata

import pytest

from meltpoint.sweeps.machine import services

HERE = metadata.version("mlflow")


@contextmanager
def server(version: str = HERE, status: int = 200, sign_in: str = "") -> Iterator[str]:
    """A server that answers as MLflow's does: /version to all, experiments with `status`, or to who signs in."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.startswith("/api/2.0/mlflow/experiments/search")
            refused = sign_in and self.headers.get("Authorization") != sign_in
            self.send_response((401 if refused else status) if asked else 200)
            self.end_headers()
            self.wfile.write(b"{}" if asked else version.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        httpd.server_close()


@pytest.fixture(autouse=True)
def _no_sign_in_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


def test_a_server_of_the_same_version_is_fine() -> None:
    with server() as uri:
        assert services.tracking_store(f"{uri}/").ok


def test_a_server_of_another_major_version_is_refused() -> None:
    with server(version="2.22.0") as uri:
        check = services.tracking_store(uri)
    assert not check.ok
    assert "2.22.0" in check.detail


def test_a_server_whose_host_check_refuses_this_name_is_told_the_option_that_opens_it() -> None:
    with server(status=403) as uri:
        check = services.tracking_store(uri)
    assert not check.ok
    assert "--allowed-hosts" in check.remedy


@pytest.mark.parametrize(("name", "header"), [("USERNAME", "Basic YW5uYTpwdw=="), ("TOKEN", "Bearer anna")])
def test_a_server_that_wants_a_sign_in_gets_the_one_that_mlflows_client_would_send(
    monkeypatch: pytest.MonkeyPatch, name: str, header: str
) -> None:
    with server(sign_in=header) as uri:
        refused = services.tracking_store(uri)
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "anna")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pw")
        accepted = services.tracking_store(uri)
    assert "MLFLOW_TRACKING_USERNAME" in refused.remedy
    assert accepted.ok


def test_the_sign_in_in_an_address_is_used_and_not_shown() -> None:
    with server(sign_in="Basic YW5uYTpwJHc=") as uri:
        check = services.tracking_store(uri.replace("http://", "http://anna:p%24w@"))
    assert check.ok, check
    assert "anna" not in check.detail


def test_a_server_that_accepts_and_stays_silent_does_not_hang_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check = services.tracking_store(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert not check.ok
    assert "timed out" in check.detail


def test_what_is_no_http_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"\x00\x01 not http\r\n")

    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=answer, args=(other,), daemon=True).start()
        assert not services.tracking_store(f"http://127.0.0.1:{other.getsockname()[1]}").ok


def test_a_database_that_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as database:
        uri = f"postgresql+psycopg2://user:pw@127.0.0.1:{database.getsockname()[1]}/mlflow"
        check = services.tracking_store(uri)
    assert check.ok
    assert "pw" not in check.detail
