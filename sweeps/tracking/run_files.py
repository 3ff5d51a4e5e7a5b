"""The artifacts of MLflow runs (a cell's space, the reports): location and writing.

MLflow stores an artifact URI for each run. An absolute folder would be wrong after the storage was moved, and would
point to the original after it was copied. So runs in a database get `mlflow-artifacts:/SWEEP`, which MLflow's server
resolves under its `--artifacts-destination`. `meltpoint ui` sets that to `STORAGE/mlartifacts`, and the driver writes
the files there itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.tracking_uri import is_database
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder, local_copy, storing, write

SERVED = "mlflow-artifacts"


def location(uri: str, sweep: str) -> str | None:
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
