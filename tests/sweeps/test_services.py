"""services: what answers at the address of a tracking server or a Ray cluster, over real sockets."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from meltpoint.sweeps.machine import services
from meltpoint.sweeps.machine.services import cluster_address, join_fault, ray_cluster, token_state, unused_variable
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.tracking.tracker import check_before_start
from meltpoint.tests.local_servers import QuietHandler, free_ports, served_by

HERE = metadata.version("mlflow")


@contextmanager
def server(version: str = HERE, status: int = 200, sign_in: str = "") -> Iterator[str]:
    """A server that answers as MLflow's does: /version to all, experiments with `status`, or to who signs in."""

    class Handler(QuietHandler):
        def get(self) -> None:
            asked = self.path.startswith("/api/2.0/mlflow/experiments/search")
            refused = sign_in and self.headers.get("Authorization") != sign_in
            self.answer((401 if refused else status) if asked else 200, "{}" if asked else version)

    with served_by(Handler) as uri:
        yield uri


@pytest.fixture(autouse=True)
def _no_sign_in_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


def test_a_server_of_another_major_version_is_refused() -> None:
    with server(version="2.22.0") as uri:
        check = services.tracking_store(uri)
    assert not check.ok
    assert "2.22.0" in check.detail


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


@pytest.fixture
def database() -> str:
    """The URI of a database."""
    return "postgresql+psycopg2://user:pw@127.0.0.1:5432/mlflow"


def revisions(monkeypatch: pytest.MonkeyPatch, *found: str, error: str = "") -> None:
    """Let the database have tables of these revisions, or refuse the connection."""

    def read(*_: object) -> list[str]:
        if error:
            raise OperationalError("", {}, Exception(error))
        return list(found)

    monkeypatch.setattr(services, "_revisions", read)


def test_a_database_without_tables_is_fine_since_the_first_sweep_makes_them(database, monkeypatch) -> None:
    revisions(monkeypatch)
    check = services.tracking_store(database)
    assert check.ok
    assert "pw" not in check.detail


def test_a_database_with_older_tables_is_told_how_to_move_up_without_its_password(database, monkeypatch) -> None:
    revisions(monkeypatch, "451aebb31d03")
    check = services.tracking_store(database)
    assert not check.ok
    assert "mlflow db upgrade postgresql+psycopg2://user:***@" in check.remedy


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        ('FATAL:  password authentication failed for user "user"', False),
        ('FATAL:  database "mlflow" does not exist', False),
        ("FATAL:  the database system is starting up", True),
        ("server closed the connection unexpectedly", True),
    ],
)
def test_a_database_that_lets_nobody_in_is_told_from_one_that_may_later(database, monkeypatch, error, is_away) -> None:
    revisions(monkeypatch, error=error)
    check = services.tracking_store(database)
    assert not check.ok
    assert check.is_away is is_away
    assert error.split(":")[-1].strip() in check.detail


@pytest.mark.parametrize(
    ("scheme", "module", "package"),
    [
        ("postgresql+psycopg2", "psycopg2", "psycopg2-binary"),
        ("postgresql+psycopg", "psycopg", "psycopg[binary]"),
        ("mysql+pymysql", "pymysql", "pymysql"),
    ],
)
def test_a_database_whose_driver_is_not_installed_is_told_the_package(monkeypatch, scheme, module, package) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    check = services.tracking_store(f"{scheme}://user:pw@127.0.0.1:1/mlflow")
    assert not check.ok
    assert not check.is_away
    assert check.remedy == f"pip install '{package}'"
    assert "pw" not in check.detail


@pytest.mark.parametrize(("status", "is_away"), [(401, False), (403, False), (404, False), (429, True), (503, True)])
def test_a_server_that_refuses_is_told_from_one_that_may_answer_later(status: int, is_away: bool) -> None:
    with server(status=status) as uri:
        assert services.tracking_store(uri).is_away is is_away


# --- before the first trial ---


def test_a_new_sweep_is_refused_where_its_store_does_not_answer_and_one_that_was_started_goes_on() -> None:
    uri = f"http://user:pw@127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(ValueError, match=r"^MLflow: .* does not answer .*; start it .*--tracking-uri\.$"):
        check_before_start(uri, has_begun=False)
    line = check_before_start(uri, has_begun=True)
    assert line is not None
    assert "the sweep continues" in line
    assert "pw" not in line


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "MLFLOW_TRACKING_USERNAME"), (403, "--allowed-hosts"), (404, "address is MLflow's")]
)
def test_a_server_that_lets_this_user_not_in_ends_the_command_also_when_it_goes_on(status, remedy, has_begun) -> None:
    with server(status=status) as uri, pytest.raises(ValueError, match=f"answers {status}.*{remedy}"):
        check_before_start(uri, has_begun)


def test_a_store_that_is_fine_is_not_worth_a_line(tmp_path) -> None:
    assert check_before_start(f"sqlite:///{tmp_path}/mlflow.db", has_begun=False) is None


SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0x7F, 0xFF, 0xFF, 0xFF])  # a server's first frame (RFC 9113, 6.5)


KILLED_WITHIN_A_TRANSACTION = """
import os, signal, sqlite3, sys
store = sqlite3.connect(sys.argv[1])
store.execute("pragma cache_size = 5")  # so that the transaction reaches the file before its end
store.execute("begin")
store.execute("update filler set text = 'b'")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_store_whose_writer_was_killed_within_a_transaction_is_the_store_that_it_was(tmp_path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("create table alembic_version (version_num text)")
        store.execute("insert into alembic_version values ('abc')")
        store.execute("create table filler (text text)")
        store.executemany("insert into filler values (?)", [("a" * 500,)] * 2000)
    subprocess.run([sys.executable, "-c", KILLED_WITHIN_A_TRANSACTION, str(path)], check=False)
    assert (tmp_path / "mlflow.db-journal").exists(), "else there is nothing to take back"
    assert services._revisions(services.sqlite_url(path), {}) == ["abc"]
    with closing(sqlite3.connect(path)) as store:
        assert store.execute("select distinct substr(text, 1, 1) from filler").fetchall() == [("a",)]


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
    with pytest.raises(ValueError, match=rf"^--address {address}: .*`meltpoint submit`"):
        cluster_address(address, {})
    with pytest.raises(ValueError, match=rf"^--address auto \(RAY_ADDRESS={address}\): .*`meltpoint submit`"):
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
    assert "refused" in join_fault(f"127.0.0.1:{free_ports(1)[0]}", {"RAY_USE_TLS": "1"})


def test_an_unreachable_cluster_is_refused_at_once_in_one_line() -> None:
    address, began = f"127.0.0.1:{free_ports(1)[0]}", time.monotonic()
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
