"""The artifacts of runs in MLflow (a cell's space, the reports): their location and their writing.

MLflow stores an artifact URI for each run. An absolute folder would be wrong in a storage that was moved, and would
point to the original in a copied one. So runs in a database get `mlflow-artifacts:/SWEEP`, which MLflow's server
resolves under its `--artifacts-destination`. `meltpoint ui` sets that to `STORAGE/mlartifacts`, and the driver writes
the files there itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.tracking_uri import is_database
from meltpoint.sweeps.storage.files import StoragePath, write
from meltpoint.sweeps.storage.layout import artifacts_folder

SERVED = "mlflow-artifacts"


def location(uri: str, sweep: str) -> str | None:
    """The artifact location of a new experiment; None if the tracking server chooses it."""
    return f"{SERVED}:/{sweep}" if is_database(uri) else None


class RunFiles:
    """Writes the artifacts of runs, but none outside the storage folder.

    Attributes:
        elsewhere: a run's folder outside the storage folder, where nothing was written; "" if there is none.
    """

    def __init__(self, uri: str, storage: StoragePath, client: MlflowClient) -> None:
        self.uri, self.storage, self.client = uri, storage, client
        self.elsewhere = ""

    def write(self, run: str, address: str, name: str, text: str) -> None:
        """Write or replace an artifact.

        Args:
            run: the run's id.
            address: the run's `artifact_uri`.
            name: the file's name.
            text: the file's contents.
        """
        parts = urlsplit(address)
        is_served = parts.scheme == SERVED and not parts.netloc and is_database(self.uri)
        folder: StoragePath
        if is_served:
            folder, bound = artifacts_folder(self.storage) / parts.path.lstrip("/"), artifacts_folder(self.storage)
        elif parts.scheme in ("", "file"):  # of versions with absolute folders, or of a server without proxy
            folder, bound = Path(url2pathname(parts.path)), self.storage
        else:
            self.client.log_text(run, text, name)
            return
        if _is_inside(folder, bound):
            write(folder / name, text)
        else:
            self.elsewhere = str(folder)


def _is_inside(path: StoragePath, folder: StoragePath) -> bool:
    """True if a path is in a folder, literally or after resolving symbolic links."""
    if not isinstance(path, Path) or not isinstance(folder, Path):
        return folder in path.parents and ".." not in str(path).split("/")
    named = Path(os.path.normpath(path)).is_relative_to(folder)
    return named or path.resolve().is_relative_to(folder.resolve())
