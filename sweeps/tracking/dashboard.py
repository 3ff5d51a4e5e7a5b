"""MLflow's dashboard for a storage's store: an MLflow server as a child process, until Ctrl-C or its parent's end.

For other machines, it requires a sign-in: MLflow's basic authentication with one user."""

from __future__ import annotations

import http.client
import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from meltpoint.sweeps.machine.services import tracking_store
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.specification.tracking_uri import default_uri, sqlite_file, without_sign_in
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder

PASSWORD, USERNAME, CONFIG = "MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_AUTH_ADMIN_USERNAME", "MLFLOW_AUTH_CONFIG_PATH"
"""MLflow's own variables: the administrator's password and name (`admin` if not set), and the file of a custom sign-in,
which then names its user database."""
MIN_PASSWORD_LENGTH = 12
"""MLflow also refuses shorter passwords."""
CONFIG_TEXT = """\
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{database}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


def is_loopback(host: str) -> bool:
    """True if a server that listens on this host is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_sign_in(host: str, environment: Mapping[str, str] = os.environ) -> None:
    """Check that access to a host from other machines requires a sign-in.

    Raises:
        ValueError: it would not, or the sign-in is not available; one line with the remedy.
    """
    if is_loopback(host):
        return
    tunnel = "or keep 127.0.0.1 and use a tunnel: ssh -L 5000:localhost:5000 HOST"
    if not environment.get(CONFIG) and not environment.get(PASSWORD):
        raise ValueError(
            f"--host {host} shows the dashboard to everyone who can reach this machine; export {PASSWORD}=… "
            f"(user 'admin', or {USERNAME}) to require a sign-in, {tunnel}."
        )
    if not environment.get(CONFIG) and len(environment[PASSWORD]) < MIN_PASSWORD_LENGTH:
        raise ValueError(f"{PASSWORD} has fewer than {MIN_PASSWORD_LENGTH} characters; choose a longer password.")
    if find_spec("flask_wtf") is None:
        raise ValueError(
            f"--host {host}: MLflow's sign-in needs Flask-WTF; run pip install 'meltpoint[cluster]', {tunnel}."
        )


@contextmanager
def sign_in(host: str, environment: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """The environment variables of a server with sign-in; none for a loopback host.

    The user database is in a private folder that is removed after the block, so that the current environment always
    determines the password.
    """
    if is_loopback(host):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="meltpoint-sign-in-") as folder:
        own = Path(folder) / "basic_auth.ini"
        own.write_text(CONFIG_TEXT.format(database=Path(folder) / "users.db"), encoding="utf-8")
        yield {
            CONFIG: environment.get(CONFIG) or str(own),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": environment.get("MLFLOW_FLASK_SERVER_SECRET_KEY")
            or secrets.token_hex(32),
        }


START_SECONDS = 120.0
"""The longest wait for the server's first response, which took 10 to 30 s on two cores."""

STOP_SECONDS = 10.0
"""The longest wait between SIGTERM and SIGKILL."""

POLL_SECONDS = 0.25

NEWEST = 5
"""The number of sweeps to list if the user names none."""

STANDARD_ERROR = 2

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Wildcard listening address → the loopback address for a browser on this machine."""


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The signals that end the dashboard like Ctrl-C; a terminal sends SIGHUP when it closes."""

GUARD = """exec 3<&0 </dev/null
{ read -r _ <&3; trap '' TERM; kill -TERM 0; sleep 10; kill -KILL 0; } &
exec 3<&-
exec "$@"
"""
"""A shell script that runs the command in its arguments, with a guard that ends the process group once standard input
is closed: the kernel closes it when the parent process ends, even by SIGKILL."""


class Terminated(KeyboardInterrupt):
    """The exception for a signal in `ENDING`."""


def serve(storage: StoragePath, tracking_uri: str | None, host: str, port: int, name: str | None = None) -> int:
    """Show a store in MLflow's dashboard until the user ends it; for a tracking server, only print its URL.

    The URL of each sweep opens its view of cells.

    Args:
        storage: the folder of all sweeps.
        tracking_uri: an MLflow server or a store, or None for the SQLite store in `storage`.
        host: the address to listen on; other machines have to sign in.
        port: the port to listen on.
        name: the sweep to open; None for the newest ones.

    Returns:
        0 if it was ended by the user, 1 if the server did not start or ended by itself.

    Raises:
        ValueError: the store does not exist yet, cannot be read or does not have that sweep; the port is not available;
            or other machines could reach the dashboard without a sign-in; one line with the remedy.
    """
    if tracking_uri is not None and urlsplit(tracking_uri).scheme in ("http", "https"):
        for line in where(tracking_uri, without_sign_in(tracking_uri), name) if name else [_root(tracking_uri)]:
            _say(line)
        return 0
    uri = tracking_uri or default_uri(storage)
    check_sign_in(host)
    check_store(uri)
    check_port(host, port)
    lines = where(uri, address(host, port), name, end="  (press Ctrl-C to stop)")
    with _terminable(), sign_in(host) as variables:
        return _run(command(storage, host, port), environment(uri, host, port) | variables, host, port, lines)


def _root(uri: str) -> str:
    return f"Dashboard  {without_sign_in(uri)}"


def where(uri: str, server: str, name: str | None, end: str = "") -> list[str]:
    """The lines with the dashboard's URLs: the cells of one sweep; or the root, and the newest sweeps.

    Args:
        uri: the store's URI.
        server: the URL of the server that shows it.
        name: the sweep, or None.
        end: the end of the first line.

    Raises:
        ValueError: the sweep does not exist, or the store does not answer.
    """
    from meltpoint.sweeps.tracking.store import sweep_fragments, view_fragments  # slow: imports MLflow

    found = list((sweep_fragments(uri) if name is None else view_fragments(uri, name)).items())
    pages = [(title, f"{server.rstrip('/')}/{part}") for title, part in found]
    if name is None:
        return [f"Dashboard  {server}{end}", *(f"{title}  {page}" for title, page in pages[:NEWEST])]
    return [f"Dashboard  {pages[0][1]}{end}"]


def check_store(uri: str) -> None:
    """Check that a store exists with the tables of the installed MLflow.

    All of the server's workers would create a missing store at once, which fails, so it is refused here.

    Raises:
        ValueError: it does not exist, or has tables of another version.
    """
    path = sqlite_file(uri)
    if path is not None and (not path.is_file() or path.stat().st_size == 0):
        raise ValueError(f"The MLflow store {path} does not exist yet; run a sweep first, or name another --storage.")
    store = tracking_store(uri)
    if not store.ok:
        raise ValueError(f"{store.detail}; {store.remedy}.")


def check_port(host: str, port: int) -> None:
    """Check that a server can listen on an address and port.

    Raises:
        ValueError: the address is unknown or the port not available; one line with the remedy.
    """
    if not 0 < port < 65536:
        raise ValueError(f"--port {port}: write a port from 1 to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise ValueError(f"--host {host}: unknown address ({error.strerror}); 127.0.0.1 is this machine.") from None
    except OSError as error:
        raise ValueError(
            f"Port {port} on {host} is not available ({error.strerror}); name another one with --port."
        ) from None


def command(storage: StoragePath, host: str, port: int) -> list[str]:
    """The server's command line, without the store's URI, which may contain a password."""
    return [
        sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port),
        "--workers", "1",  # enough for one user; each additional worker costs seconds and half a gigabyte
        "--artifacts-destination", _uri_of(artifacts_folder(storage)),
        "--uvicorn-opts", "--log-level warning",
        *(() if is_loopback(host) else ("--app-name", "basic-auth")),
    ]  # fmt: skip


def _uri_of(folder: StoragePath) -> str:
    return folder.as_uri() if isinstance(folder, Path) else str(folder)


def environment(uri: str, host: str, port: int) -> dict[str, str]:
    """The server's environment: the store and the allowed hosts, without background jobs, telemetry and warnings.

    By default, MLflow only accepts requests to localhost and private addresses (its protection against DNS rebinding),
    so the host name to listen on is added to the allowed hosts. MLflow also reads its own files in the locale's
    encoding and answers every search with an error in an ASCII locale, so UTF-8 is set.
    """
    added = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONUTF8": "1"}
    defaults = {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    if not _is_address(host):
        defaults["MLFLOW_SERVER_ALLOWED_HOSTS"] = f"{host}:{port},localhost:{port},127.0.0.1:{port}"
    return defaults | dict(os.environ) | added


def _is_address(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _run(
    arguments: list[str], variables: dict[str, str], host: str, port: int, lines: Sequence[str] = ()
) -> int:  # fmt: skip
    """Run the server until it ends or is interrupted; its output goes to standard error.

    Args:
        lines: the lines to print once it answers.
    """
    guarded = ["/bin/sh", "-c", GUARD, "sh", *arguments]
    child = subprocess.Popen(
        guarded, env=variables, stdin=subprocess.PIPE, stdout=STANDARD_ERROR, start_new_session=True
    )
    try:
        if not _wait_for_answer(child, host, port):
            return 1
        for line in lines:
            _say(line)
        code = child.wait()
        _say(f"The dashboard ended unexpectedly with status {code}; its output is above.")
    except KeyboardInterrupt:
        return 0
    finally:
        _end(child)
    return 1


def _wait_for_answer(child: subprocess.Popen[bytes], host: str, port: int) -> bool:
    """Wait until the server is healthy; returns False if it ends first or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(timeout=POLL_SECONDS)
            _say(f"The dashboard did not start (status {code}); its output is above.")
            return False
        if is_healthy(host, port):
            return True
    _say(f"The dashboard did not answer within {START_SECONDS:.0f} s.")
    return False


def is_healthy(host: str, port: int) -> bool:
    """True if an MLflow server answers at this address; the request bypasses any proxy."""
    connection = http.client.HTTPConnection(ANYWHERE.get(host, host), port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def address(host: str, port: int) -> str:
    """The URL to open in a browser."""
    shown = ANYWHERE.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which form a process group with the server's process id."""
    _signal_group(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=STOP_SECONDS)
    _signal_group(child.pid, signal.SIGKILL)  # processes that ignored SIGTERM
    child.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group has ended (macOS: PermissionError)
        os.killpg(group, number)


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn signals in `ENDING` into an exception while the server runs, to end it; with `nohup`, SIGHUP is ignored."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    heeded = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    tell(text, err=True)
