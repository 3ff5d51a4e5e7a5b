"""MLflow's store of a sweep: how it is opened, and the addresses of sweeps and views in its dashboard.

Imported late, because MLflow takes seconds to import.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire, give_usual_mode
from meltpoint.sweeps.machine.services import DATABASE_PORTS, connection_fault, server_version
from meltpoint.sweeps.specification.tracking_uri import is_database, redacted, sqlite_file, without_sign_in
from meltpoint.sweeps.tracking.saved_views import TAG, fragment, is_verified, named_fragments
from meltpoint.sweeps.tracking.views import cells_view

SPECIFICATION = "mlflow.meltpoint.specification"
"""The tag by which an experiment is known to be a sweep; the dashboard shows no tag that begins with `mlflow.`."""
STORE_CODES = {401, 403, 408, 429}
"""The HTTP statuses below 500 that say nothing about the request: the sign-in, time-outs, and rate limits."""


def configure_client() -> None:
    """Set bounded time-outs and no retries, which the tracker does itself; turn telemetry and logs off.

    MLflow's own retries repeat a `create_run` that has succeeded without an answer, which makes a second run.
    """
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # an overloaded server takes more than 15
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # libpq's, for databases without a server
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # logs every created table, and tracebacks
    logging.getLogger("alembic").setLevel(logging.WARNING)


def is_about_the_store(error: Exception) -> bool:
    """True if an error says that the store is away, or lets nobody in, rather than that it refuses one request."""
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
        return status >= 500 or status in STORE_CODES
    return isinstance(error, OSError)


def open_client(uri: str) -> MlflowClient:
    """MLflow's client; the tables of a new SQLite store are created first, by one process at a time."""
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
    """Check that a database server listens; MLflow's client would try it for an hour, with ever longer pauses.

    Raises:
        OSError: it does not.
    """
    parts = urlsplit(uri)
    if is_database(uri) and parts.hostname:
        fault = connection_fault(parts.hostname, parts.port or DATABASE_PORTS[parts.scheme.partition("+")[0].lower()])
        if fault:
            raise OSError(fault)


def _make_store(uri: str, path: Path) -> None:
    """Let MLflow create a SQLite store's tables in a temporary file, and rename it.

    If MLflow is killed in one of its dozens of migrations, it cannot open the store again. The permissions are set to
    those of the umask, since SQLite makes its files writable for their owner only.
    """
    for leftover in path.parent.glob(f".{path.name}.*.tmp*"):  # of a killed process, with its journal
        leftover.unlink()
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    address, mark, options = uri.partition("?")
    MlflowClient(f"{address.rpartition('/')[0]}/{temporary.name}{mark}{options}").search_experiments(max_results=1)
    give_usual_mode(temporary)
    temporary.rename(path)


OF_SWEEPS = {SPECIFICATION, "meltpoint.specification"}
"""Tags of experiments that are sweeps: today's, and the one of versions up to 0.1."""


def sweep_fragments(uri: str) -> dict[str, str]:
    """Sweep → the address of its cells, behind the server's; the newest sweep first.

    Raises:
        ValueError: MLflow does not answer; one line with the remedy.
    """
    version = server_version(uri)
    return {name: cells_fragment(experiment, version) for name, experiment in _sweeps(uri).items()}


def view_fragments(uri: str, name: str) -> dict[str, str]:
    """View → its address, behind the server's, of one sweep; its cells first.

    Raises:
        ValueError: there is no such sweep, or MLflow does not answer; one line with the remedy.
    """
    sweeps = _sweeps(uri)
    if name not in sweeps:
        known = ", ".join(list(sweeps)[:10]) or "none yet"
        raise ValueError(f"MLflow at {without_sign_in(uri)} has no sweep '{name}'. There is: {known}.")
    experiment, version = sweeps[name], server_version(uri)
    views = named_fragments(experiment.experiment_id, experiment.tags) if is_verified(version) else {}
    cells = cells_view([])
    return {cells.name: cells_fragment(experiment, version)} | views


def _sweeps(uri: str) -> dict[str, Experiment]:
    """Name → experiment of every sweep, the newest first."""
    configure_client()
    try:
        found = list(open_client(uri).search_experiments(order_by=["creation_time DESC"], max_results=1000))
    except (MlflowException, OSError) as error:
        reason = redacted((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ValueError(f"MLflow at {redacted(uri)} does not answer ({reason}); see `meltpoint doctor`.") from None
    return {experiment.name: experiment for experiment in found if OF_SWEEPS & experiment.tags.keys()}


def cells_fragment(experiment: Experiment, version: str) -> str:
    """The address of an experiment's view of cells; by filter and order where that view was not written."""
    view = cells_view([])
    is_there = f"{TAG}{view.id}" in experiment.tags
    return fragment(experiment.experiment_id, view, version if is_there else "")
