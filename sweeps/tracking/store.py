"""MLflow's store of a sweep: opening it, and writing the artifacts of runs (a cell's space, the reports).

MLflow stores an artifact URI for each run. An absolute folder would be wrong after the storage was moved, and would
point to the original after it was copied. So runs in a database get `mlflow-artifacts:/SWEEP`, which MLflow's server
resolves under its `--artifacts-destination`. `meltpoint ui` sets that to `STORAGE/mlartifacts`, and the driver writes
the files there itself.

Imported late, because MLflow takes seconds to import.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from uuid import uuid4

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire, give_usual_mode
from meltpoint.sweeps.machine.services import DATABASE_PORTS, connection_fault
from meltpoint.sweeps.specification.tracking_uri import is_database, sqlite_file
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder, local_copy, storing, write

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


# Artifacts.

SERVED = "mlflow-artifacts"


def artifact_location(uri: str, sweep: str) -> str | None:
    """The artifact location of a new experiment; None if the tracking server chooses it."""
    return f"{SERVED}:/{sweep}" if is_database(uri) else None


class RunFiles:
    """Writes the artifacts of runs: in the storage folder, or through MLflow's client."""

    def __init__(self, uri: str, storage: StoragePath, client: MlflowClient) -> None:
        self.uri, self.storage, self.client = uri, storage, client

    def write(self, run: str, address: str, name: str, text: str) -> None:
        """Write or replace an artifact.

        Args:
            run: the run's id.
            address: the run's `artifact_uri`.
            name: the file's name.
            text: the file's contents.
        """
        folder = self._folder(address)
        if folder is None:
            self.client.log_text(run, text, name)
        else:
            write(folder / name, text)

    def copy(self, run: str, address: str, name: str, file: StoragePath) -> None:
        """Copy a file to an artifact, or replace one; do nothing if the file does not exist.

        Args:
            run, address, name: as for `write`.
            file: the file.
        """
        if not file.exists():
            return
        folder = self._folder(address)
        with TemporaryDirectory(prefix="meltpoint-") as scratch, local_copy(file) as local:
            if folder is not None:
                with storing(folder / name) as temporary:
                    shutil.copyfile(local, temporary)
            else:  # the client uses the file's name as the artifact's name
                named = shutil.copyfile(local, Path(scratch) / Path(name).name)
                self.client.log_artifact(run, str(named), name.rpartition("/")[0] or None)

    def _folder(self, address: str) -> StoragePath | None:
        """A run's folder in the storage; None if MLflow's client writes its files."""
        parts = urlsplit(address)
        is_served = parts.scheme == SERVED and not parts.netloc and ".." not in parts.path.split("/")
        return artifacts_folder(self.storage) / parts.path.lstrip("/") if is_served and is_database(self.uri) else None
