"""The services of a sweep: whether MLflow's store and a Ray cluster answer, and the address of that cluster.

A check changes nothing in a store. Imports neither MLflow nor Ray.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import tempfile
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from meltpoint.sweeps.specification.tracking_uri import redacted, sqlite_file, without_sign_in

if TYPE_CHECKING:
    from sqlalchemy import URL


TIMEOUT_SECONDS = 3.0
"""Timeout of each check; a service in the same network answers in milliseconds."""

NOTIFY_SECONDS = 10.0
"""Timeout of a message to the address of `--notify`."""

DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}

DRIVER_PACKAGES = {"psycopg2": "psycopg2-binary", "psycopg": "psycopg[binary]", "MySQLdb": "mysqlclient"}
"""Module of a database driver → the package to install, if its name differs."""

DATABASE_REFUSALS = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|does not exist|"
    r"Access denied|Unknown database|Login failed",
    re.IGNORECASE,
)
"""Errors of a database that refuses this user; any other error may be temporary ("the system is starting up")."""

REFUSALS = {
    401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN) to a known user",
    403: 'its host check refuses this name: start it with mlflow server --allowed-hosts "HOST:*,localhost:*"',
}

STORE = "MLflow store"


@dataclass(frozen=True)
class Check:
    """The result of checking one requirement of a sweep.

    Attributes:
        name: the requirement, in a word or two.
        ok: whether a sweep can run.
        detail: the state of the requirement.
        remedy: what to do if it is not met; empty if it is.
        is_away: whether it is a service that does not answer now but may later.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    is_away: bool = False


def tracking_store(uri: str) -> Check:
    """Check that MLflow's store is reachable and that its tables match the installed MLflow.

    Args:
        uri: a tracking URI of MLflow. A password in it never appears in the result.
    """
    scheme = uri.partition(":")[0].lower() if re.match(r"[A-Za-z][\w+.-]+:|databricks$", uri) else "file"
    kind = scheme.partition("+")[0]
    if kind == "sqlite":
        return _sqlite_store(uri)
    if kind in {"http", "https"}:
        return _server(uri)
    if kind in DATABASE_PORTS:
        return _database(uri)
    if kind == "file":
        detail = f"{redacted(uri)} is a folder of files, which MLflow has refused since 3.13"
        return Check(STORE, False, detail, "name sqlite:///FILE or a server; `mlflow migrate-filestore` moves old runs")
    return Check(STORE, True, f"a store of kind {kind}; it cannot be checked from here")


def _sqlite_store(uri: str) -> Check:
    path = sqlite_file(uri)
    if path is None:
        return Check(
            STORE, False, f"{uri} names no file, so its runs would be lost", "name one: sqlite:///runs/mlflow.db"
        )
    if not path.exists() or path.stat().st_size == 0:
        parent = existing(path.parent)
        if parent.is_dir() and os.access(parent, os.W_OK):
            return Check(STORE, True, f"{path} does not exist yet; the first sweep creates it")
        detail = f"{path} cannot be created: {parent} is not a folder that this user can write"
        return Check(STORE, False, detail, "name another with --tracking-uri or --storage")
    from sqlalchemy.exc import DBAPIError

    try:
        revisions = _revisions(sqlite_url(path), {"timeout": TIMEOUT_SECONDS})
    except DBAPIError as error:
        if "locked" in str(error.orig):
            return Check(STORE, False, f"{path} is locked", "wait for the process that holds it", is_away=True)
        remedy = "move that file away, or name another with --tracking-uri"
        return Check(STORE, False, f"{path} is not an MLflow store ({error.orig})", remedy)
    return _schema(str(path), uri, revisions)


def sqlite_url(path: Path) -> URL:
    """The URL that opens an existing store, without creating one."""
    from sqlalchemy import URL

    file = path.absolute().as_uri().removeprefix("file://")
    return URL.create("sqlite", database=f"file:{file}", query={"mode": "rw", "uri": "true"})


def _revisions(url: str | URL, options: Mapping[str, float]) -> list[str]:
    """Read the revisions of a store's tables; none if it has no tables yet.

    Args:
        options: for the database driver's `connect`.
    """
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import create_engine

    engine = create_engine(url, connect_args=dict(options))
    try:
        with engine.connect() as connection:
            return list(MigrationContext.configure(connection).get_current_heads())
    finally:
        engine.dispose()


def _schema(shown: str, upgraded: str, revisions: list[str]) -> Check:
    """Check that a store's tables have the newest revision of the installed MLflow.

    Args:
        shown: the store's file or address.
        upgraded: its URI without a password.
    """
    known, newest = _known_revisions()
    version = metadata.version("mlflow")
    if revisions == [newest]:
        return Check(STORE, True, f"{shown}, tables of revision {newest}, current for MLflow {version}")
    if len(revisions) == 1 and revisions[0] in known:
        detail = f"{shown} has tables of an older MLflow ({revisions[0]}, MLflow {version} has {newest})"
        return Check(STORE, False, detail, f"back up the store, then: mlflow db upgrade {upgraded}")
    detail = f"{shown} has tables that MLflow {version} does not know ({', '.join(revisions) or 'no revision'})"
    return Check(STORE, False, detail, "install the MLflow that created it, or name another store with --tracking-uri")


def _known_revisions() -> tuple[set[str], str]:
    """All table revisions that the installed MLflow knows, and the newest; does not import MLflow, which takes 2 s."""
    from alembic.script import ScriptDirectory

    spec = find_spec("mlflow")
    assert spec is not None, "tracking_store looks for mlflow first"
    assert spec.origin is not None, "mlflow is not a namespace package"
    scripts = ScriptDirectory(str(Path(spec.origin).parent / "store" / "db_migrations"))
    newest = scripts.get_current_head()
    assert newest is not None, "MLflow's migrations have one head"
    return {script.revision for script in scripts.walk_revisions()}, newest


def _server(uri: str) -> Check:
    """Check that a tracking server runs, has the same major version, and lets this user list experiments.

    MLflow exempts /health and /version from its host check and authentication, so experiments are requested as well.
    """
    shown, version = without_sign_in(uri).rstrip("/"), metadata.version("mlflow")
    try:
        running = _get(f"{shown}/version", {}).strip()
        _get(f"{shown}/api/2.0/mlflow/experiments/search?max_results=1", _sign_in(uri, os.environ))
    except urllib.error.HTTPError as error:
        remedy = REFUSALS.get(error.code, "read that server's log, and check that the address is MLflow's")
        is_away = error.code >= 500 or error.code == http.client.TOO_MANY_REQUESTS
        return Check(STORE, False, f"{shown} answers {error.code} {error.reason}", remedy, is_away)
    except (OSError, http.client.HTTPException, ValueError) as error:
        remedy = "start it (mlflow server --backend-store-uri sqlite:///FILE), or name another with --tracking-uri"
        return Check(STORE, False, f"{shown} does not answer ({getattr(error, 'reason', error)})", remedy, is_away=True)
    if running.partition(".")[0] != version.partition(".")[0]:
        detail = f"{shown} runs MLflow {running[:20]}, here is {version}"
        return Check(STORE, False, detail, "install the same major version on both")
    return Check(STORE, True, f"{shown} answers, MLflow {running}, here is {version}")


def _sign_in(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The authorisation header of MLflow's client: from the URI, or from MLflow's environment variables."""
    parts = urlsplit(uri)
    user = parts.username or environment.get("MLFLOW_TRACKING_USERNAME")
    password = parts.password or environment.get("MLFLOW_TRACKING_PASSWORD", "")
    if user:
        pair = f"{unquote(user)}:{unquote(password)}" if parts.username else f"{user}:{password}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    token = environment.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _database(uri: str) -> Check:
    """Check that a database accepts this user, and that its tables match the installed MLflow."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    shown = without_sign_in(uri)
    try:
        has_timeout = make_url(uri).get_driver_name() in {"psycopg2", "psycopg", "mysqldb", "pymysql"}
        revisions = _revisions(uri, {"connect_timeout": int(TIMEOUT_SECONDS)} if has_timeout else {})
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        package = DRIVER_PACKAGES.get(module, module)
        return Check(STORE, False, f"{shown}: its driver is not installed", f"pip install '{package}'")
    except DBAPIError as error:
        fault = redacted(" ".join(str(error.orig).split()))
        if DATABASE_REFUSALS.search(fault):
            return Check(STORE, False, f"{shown} refuses this user ({fault})", "check its user, password and database")
        remedy = "start it, or name another with --tracking-uri"
        return Check(STORE, False, f"{shown} does not answer ({fault})", remedy, is_away=True)
    except (SQLAlchemyError, ValueError) as error:
        remedy = "write it as KIND+DRIVER://USER:PASSWORD@HOST:PORT/NAME"
        return Check(STORE, False, f"{shown} is not a database URI ({error})", remedy)
    if not revisions:
        return Check(STORE, True, f"{shown} answers; the first sweep creates its tables")
    return _schema(shown, redacted(uri), revisions)


def connection_fault(host: str, port: int) -> str:
    """The error of connecting to host:port; empty if the connection succeeds."""
    try:
        socket.create_connection((host, port), timeout=TIMEOUT_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""


def existing(path: Path) -> Path:
    """The path itself if it exists, otherwise its nearest existing parent."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def _get(url: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(url, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        return str(response.read(10_000).decode("utf-8", "replace"))


# Ray's cluster.

RAY = "Ray"

VARIABLE = "RAY_ADDRESS"

SUBMIT = "run the sweep on a node of the cluster with --address HOST:6379, or submit it with `meltpoint submit`"

TOKEN_REMEDY = (
    "export RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH=FILE with the cluster's token (~/.ray/auth_token of its head)"
)

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A client's first bytes of HTTP/2 (RFC 9113, section 3.4), which gRPC uses: the preface and empty settings."""

FRAME_HEAD_BYTES, SETTINGS_FRAME = 9, 4


def cluster_address(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """The `HOST:PORT` that a driver joins for `--address`.

    Args:
        address: `HOST:PORT`, or `auto`: RAY_ADDRESS, or the cluster that `ray start` last started on this machine.
        environment: the environment variables (RAY_ADDRESS, RAY_TMPDIR).

    Raises:
        ValueError: no cluster is running for `auto`, or a driver cannot join the address; one line.
    """
    asked = f"--address {address}"
    if address == "auto":
        named = environment.get(VARIABLE, "")
        address = named or _last_started(environment)
        asked = f"--address auto ({VARIABLE}={named})" if named else "--address auto"
    if not address:
        raise ValueError(f"{asked}: no cluster is running here; start one (ray start --head), or leave --address out.")
    if "://" in address:
        raise ValueError(f"{asked}: a sweep cannot join a cluster from outside; {SUBMIT}.")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{asked}: not the address of a cluster; write HOST:PORT, such as 10.0.0.1:6379.")
    return address


def _last_started(environment: Mapping[str, str]) -> str:
    """The address that the last `ray start` on this machine recorded; empty if there is none."""
    note = Path(environment.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    return note.read_text(encoding="utf-8").strip() if note.is_file() else ""


def unused_variable(environment: Mapping[str, str] = os.environ) -> str:
    """One line if RAY_ADDRESS is set, for a sweep without `--address`; empty otherwise."""
    if not (named := environment.get(VARIABLE)):
        return ""
    return f"{VARIABLE}={named} is set but ignored: a sweep starts its own cluster; --address auto joins that one."


def join_fault(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """The reason why no cluster can be joined at `HOST:PORT`, found in seconds; empty if one answers.

    Ray itself tries for minutes. A head's port speaks gRPC; a server with any other answer is not a head.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_SECONDS) as connection:
            if environment.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:  # it answers only after a handshake
                return ""
            connection.sendall(HELLO)
            head = connection.makefile("rb").read(FRAME_HEAD_BYTES)
    except TimeoutError:
        return f"no answer in {TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return str(error) or type(error).__name__
    is_grpc = len(head) == FRAME_HEAD_BYTES and head[3] == SETTINGS_FRAME
    return "" if is_grpc else "the server there is not Ray"


def token_state(environment: Mapping[str, str] = os.environ) -> str:
    """The state of this process's token in a few words, without the token itself."""
    mode = environment.get("RAY_AUTH_MODE")
    if (mode or "").lower() != "token":
        return f"RAY_AUTH_MODE is {mode} here" if mode else "RAY_AUTH_MODE is not set here"
    place = environment.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    if environment.get("RAY_AUTH_TOKEN"):
        return "the one in RAY_AUTH_TOKEN is not the cluster's"
    return f"the one in {place} is not the cluster's" if Path(place).is_file() else f"there is none in {place}"


def ray_cluster(address: str | None, environment: Mapping[str, str] = os.environ) -> Check:
    """Check that Ray is installed, and that the cluster at `address` is reachable.

    Args:
        address: `HOST:PORT`, `auto`, or None for a local cluster.
        environment: the environment variables (RAY_ADDRESS, RAY_TMPDIR).
    """
    version = metadata.version("ray")
    if address in {None, "local"}:
        unused = unused_variable(environment)
        own = f"Ray {version}; a sweep starts its own cluster here and stops it"
        return Check(RAY, True, f"{own}. {unused}".removesuffix(".") if unused else own)
    assert address is not None
    try:
        target = cluster_address(address, environment)
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return Check(RAY, False, fault, remedy)
    fault = join_fault(target, environment)
    if fault:
        remedy = "start it there (ray start --head --port 6379), open that port, or leave --address out"
        return Check(RAY, False, f"{target} does not answer ({fault})", remedy)
    return Check(RAY, True, f"{target} answers; Ray here is {version}")


def notify(address: str, message: Mapping[str, object]) -> str:
    """Send a message as JSON to a web address.

    Returns:
        A line for the user if it was not taken; otherwise "". It names the host alone: the path may be a secret.
    """
    body = json.dumps(message, ensure_ascii=False).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=NOTIFY_SECONDS):
            return ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return f"--notify: {urlsplit(address).hostname} did not take the message ({reason})."
