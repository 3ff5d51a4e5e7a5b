"""Opening MLflow's store of a sweep; imported late, because MLflow takes seconds to import."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire, give_usual_mode
from meltpoint.sweeps.machine.services import DATABASE_PORTS, connection_fault
from meltpoint.sweeps.specification.tracking_uri import is_database, sqlite_file

SPECIFICATION = "mlflow.meltpoint.specification"
"""The tag that identifies an experiment as a sweep; the dashboard hides tags that begin with `mlflow.`."""
STORE_CODES = {401, 403, 408, 429}
"""The HTTP statuses below 500 that do not concern the request itself: sign-in, time-outs, and rate limits."""


def configure_client() -> None:
    """Set time-outs, turn off retries, which the tracker does itself, and turn off telemetry and logs.

    MLflow's own retries repeat a `create_run` that succeeded without an answer, which creates a second run.
    """
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # an overloaded server takes more than 15
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # for libpq, when MLflow connects to the database directly
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # logs every created table, and tracebacks
    logging.getLogger("alembic").setLevel(logging.WARNING)


def is_about_the_store(error: Exception) -> bool:
    """True if an error means that the store is unavailable or denies access, rather than refuses one request."""
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
        return status >= 500 or status in STORE_CODES
    return isinstance(error, OSError)


def open_client(uri: str) -> MlflowClient:
    """Open MLflow's client; one process at a time first creates the tables of a new SQLite store."""
    path = sqlite_file(uri)
    _check_database(uri)
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("a") as lock:
            acquire(lock, shared=False, wait=True)
            if not path.exists():
                _make_store(uri, path)
    return MlflowClient(uri)


def _check_database(uri: str) -> None:
    """Check that a database server listens, because MLflow's client would retry for an hour.

    Raises:
        OSError: it does not listen.
    """
    parts = urlsplit(uri)
    if is_database(uri) and parts.hostname:
        fault = connection_fault(parts.hostname, parts.port or DATABASE_PORTS[parts.scheme.partition("+")[0].lower()])
        if fault:
            raise OSError(fault)


def _make_store(uri: str, path: Path) -> None:
    """Let MLflow create a SQLite store's tables in a temporary file, and rename it.

    If MLflow is killed during one of its dozens of migrations, it cannot open the store again. The permissions follow
    the umask, because SQLite makes its files writable only for their owner.
    """
    for leftover in path.parent.glob(f".{path.name}.*.tmp*"):  # from a killed process, with its journal
        leftover.unlink()
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    address, mark, options = uri.partition("?")
    MlflowClient(f"{address.rpartition('/')[0]}/{temporary.name}{mark}{options}").search_experiments(max_results=1)
    give_usual_mode(temporary)
    temporary.rename(path)
