"""services: a tracking server that answers, refuses, or says nothing, over real sockets."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata

import pytest
from sqlalchemy.exc import OperationalError

from meltpoint.sweeps.machine import services
from meltpoint.sweeps.tracking.tracker import check_before_start
from meltpoint.tests.local_servers import QuietHandler, served_by

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


def test_a_server_of_the_same_version_is_fine() -> None:
    with server() as uri:
        assert services.tracking_store(f"{uri}/").ok


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


def test_what_is_no_http_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"\x00\x01 not http\r\n")

    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=answer, args=(other,), daemon=True).start()
        assert not services.tracking_store(f"http://127.0.0.1:{other.getsockname()[1]}").ok


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


def test_a_database_of_a_kind_that_nobody_knows_is_refused() -> None:
    check = services.tracking_store("postgresql+nobody://user:pw@127.0.0.1:1/mlflow")
    assert not check.ok
    assert not check.is_away
    assert "pw" not in repr(check)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.mark.parametrize(("status", "is_away"), [(401, False), (403, False), (404, False), (429, True), (503, True)])
def test_a_server_that_refuses_is_told_from_one_that_may_answer_later(status: int, is_away: bool) -> None:
    with server(status=status) as uri:
        assert services.tracking_store(uri).is_away is is_away


# --- before the first trial ---


def test_a_new_sweep_is_refused_where_its_store_does_not_answer_and_one_that_was_started_goes_on() -> None:
    uri = f"http://user:pw@127.0.0.1:{closed_port()}"
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
