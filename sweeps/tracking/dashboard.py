"""MLflow's dashboard for a storage's store: an MLflow server as a child process, until Ctrl-C.

It listens on this machine alone."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from meltpoint.sweeps.machine.services import tracking_store
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.specification.tracking_uri import default_uri, sqlite_file, without_sign_in
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder

HOST = "127.0.0.1"
"""The address to listen on: every user of this machine reaches it, and no other machine."""

STOP_SECONDS = 10.0
"""The longest wait between SIGTERM and SIGKILL."""

POLL_SECONDS = 0.25

NEWEST = 5
"""The number of sweeps to list if the user names none."""

STANDARD_ERROR = 2


def serve(storage: StoragePath, tracking_uri: str | None, port: int, name: str | None = None) -> int:
    """Show a store in MLflow's dashboard until the user ends it; for a tracking server, only print its URL.

    The URL of each sweep opens its view of cells.

    Args:
        storage: the folder of all sweeps.
        tracking_uri: an MLflow server or a store, or None for the SQLite store in `storage`.
        port: the port to listen on.
        name: the sweep to open; None for the newest ones.

    Returns:
        0 if it was ended by the user, 1 if the server did not start or ended by itself.

    Raises:
        ValueError: the store does not exist yet, cannot be read or does not have that sweep, or the port is not
            available; one line with the remedy.
    """
    if tracking_uri is not None and urlsplit(tracking_uri).scheme in ("http", "https"):
        shown = without_sign_in(tracking_uri)
        for line in where(tracking_uri, shown, name) if name else [f"Dashboard  {shown}"]:
            tell(line, err=True)
        return 0
    uri = tracking_uri or default_uri(storage)
    check_store(uri)
    check_port(port)
    lines = where(uri, f"http://{HOST}:{port}", name, end="  (press Ctrl-C to stop)")
    for number in (signal.SIGTERM, signal.SIGHUP):  # a terminal sends SIGHUP when it closes
        if signal.getsignal(number) != signal.SIG_IGN:  # with `nohup`, SIGHUP is ignored
            signal.signal(number, signal.default_int_handler)
    return _run(command(storage, port), environment(uri), port, lines)


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
    from meltpoint.sweeps.tracking.store import sweep_fragments  # slow: imports MLflow

    pages = {sweep: f"{server.rstrip('/')}/{part}" for sweep, part in sweep_fragments(uri, name).items()}
    if name is not None:
        return [f"Dashboard  {pages[name]}{end}"]
    return [f"Dashboard  {server}{end}", *(f"{sweep}  {page}" for sweep, page in list(pages.items())[:NEWEST])]


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


def check_port(port: int) -> None:
    """Check that a server can listen on a port.

    Raises:
        ValueError: it cannot; one line with the remedy.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        raise ValueError(f"Port {port} is not available ({error}); name another one with --port.") from None


def command(storage: StoragePath, port: int) -> list[str]:
    """The server's command line, without the store's URI, which may contain a password."""
    artifacts = artifacts_folder(storage)
    return [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port),
        "--workers", "1",  # enough for one user; each additional worker costs seconds and half a gigabyte
        "--artifacts-destination", artifacts.as_uri() if isinstance(artifacts, Path) else str(artifacts),
        "--uvicorn-opts", "--log-level warning",
    ]  # fmt: skip


def environment(uri: str) -> dict[str, str]:
    """The server's environment: the store, without background jobs, telemetry and warnings.

    MLflow reads its own files in the locale's encoding and answers every search with an error in an ASCII locale, so
    UTF-8 is set.
    """
    added = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONUTF8": "1"}
    return {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"} | dict(os.environ) | added


def _run(arguments: list[str], variables: dict[str, str], port: int, lines: Sequence[str] = ()) -> int:
    """Run the server until it ends or is interrupted; its output goes to standard error.

    Args:
        lines: the lines to print once it answers.
    """
    child = subprocess.Popen(arguments, env=variables, stdout=STANDARD_ERROR, start_new_session=True)
    try:
        while not is_healthy(port):
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=POLL_SECONDS)
                tell(f"The dashboard did not start (status {code}); its output is above.", err=True)
                return 1
        for line in lines:
            tell(line, err=True)
        tell(f"The dashboard ended unexpectedly with status {child.wait()}; its output is above.", err=True)
    except KeyboardInterrupt:
        return 0
    finally:
        _end(child)
    return 1


def is_healthy(port: int) -> bool:
    """True if an MLflow server answers there; the request bypasses any proxy."""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{HOST}:{port}/health", timeout=2):
            return True
    except (OSError, http.client.HTTPException):
        return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which form a process group with the server's process id."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # SIGKILL for processes that ignored SIGTERM
        with suppress(ProcessLookupError, PermissionError):  # the group has ended (macOS: PermissionError)
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=STOP_SECONDS)
