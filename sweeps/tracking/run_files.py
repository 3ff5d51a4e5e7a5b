"""The artifacts of MLflow runs (a cell's space, the reports): location and writing.

MLflow stores an artifact URI for each run. An absolute folder would be wrong after the storage was moved, and would
point to the original after it was copied. So runs in a database get `mlflow-artifacts:/SWEEP`, which MLflow's server
resolves under its `--artifacts-destination`. `meltpoint ui` sets that to `STORAGE/mlartifacts`, and the driver writes
the files there itself.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.tracking_uri import is_database
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder, local_copy, storing, write

SERVED = "mlflow-artifacts"


def location(uri: str, sweep: str) -> str | None:
    """The artifact location of a new experiment; None if the tracking server chooses it."""
    return f"{SERVED}:/{sweep}" if is_database(uri) else None


class RunFiles:
    """Writes the artifacts of runs, but never outside the storage folder.

    Attributes:
        elsewhere: a run's folder outside the storage folder, where no file was written; "" if there is none.
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
        folder = self._folder(address)
        if folder is None:
            self.client.log_text(run, text, name)
        elif self._may_write(folder):
            write(folder.path / name, text)

    def copy(self, run: str, address: str, name: str, file: StoragePath) -> None:
        """Copy a file to an artifact, or replace one; do nothing if the file does not exist.

        Args:
            run, address, name: as for `write`.
            file: the file.
        """
        folder = self._folder(address)
        if not file.exists() or (folder is not None and not self._may_write(folder)):
            return
        with local_copy(file) as local:
            if folder is None:
                self._upload(run, name, local)
                return
            with storing(folder.path / name) as temporary:
                shutil.copyfile(local, temporary)

    def copy_folder(self, run: str, address: str, name: str, source: Path) -> None:
        """Copy every file of a local folder to an artifact below `name`."""
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            self.copy(run, address, f"{name}/{file.relative_to(source).as_posix()}", file)

    def _upload(self, run: str, name: str, file: Path) -> None:
        """Send a file to MLflow's server; the client uses the file's name as the artifact's name."""
        with TemporaryDirectory(prefix="meltpoint-") as scratch:
            named = Path(scratch) / Path(name).name
            shutil.copyfile(file, named)
            self.client.log_artifact(run, str(named), name.rpartition("/")[0] or None)

    def _folder(self, address: str) -> _Folder | None:
        """A run's folder; None if MLflow's server writes its files."""
        parts = urlsplit(address)
        if parts.scheme == SERVED and not parts.netloc and is_database(self.uri):
            bound = artifacts_folder(self.storage)
            return _Folder(bound / parts.path.lstrip("/"), bound)
        if parts.scheme in ("", "file"):  # from versions with absolute folders, or a server without a proxy
            return _Folder(Path(url2pathname(parts.path)), self.storage)
        return None

    def _may_write(self, folder: _Folder) -> bool:
        is_inside = _is_inside(folder.path, folder.bound)
        self.elsewhere = self.elsewhere if is_inside else str(folder.path)
        return is_inside


@dataclass(frozen=True)
class _Folder:
    """A run's folder, and the folder that must contain it."""

    path: StoragePath
    bound: StoragePath


def _is_inside(path: StoragePath, folder: StoragePath) -> bool:
    """True if a path is in a folder, literally or after resolving symbolic links."""
    if not isinstance(path, Path) or not isinstance(folder, Path):
        return folder in path.parents and ".." not in str(path).split("/")
    named = Path(os.path.normpath(path)).is_relative_to(folder)
    return named or path.resolve().is_relative_to(folder.resolve())
