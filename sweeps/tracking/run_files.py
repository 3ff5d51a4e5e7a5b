"""The files of a run in MLflow (a cell's space, the reports): where they lie, and who writes them.

MLflow keeps an address for each run's files. An absolute folder would be wrong in a storage that was moved, and in a
copied one it would be the original's. So a database gets `mlflow-artifacts:/SWEEP`, which MLflow's server looks up
under its `--artifacts-destination`. `meltpoint ui` names `STORAGE/mlartifacts` there, and the driver writes the files
where that server finds them.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import write_atomically
from meltpoint.sweeps.ledger.ledger import artifacts_folder
from meltpoint.sweeps.specification.tracking_uri import is_database

SERVED = "mlflow-artifacts"


def location(uri: str, sweep: str) -> str | None:
    """The address of a new experiment's files; None where a server chooses it."""
    return f"{SERVED}:/{sweep}" if is_database(uri) else None


class RunFiles:
    """Writes the files of runs, and none outside the storage folder.

    Attributes:
        elsewhere: an address outside it, at which nothing was written; "" where there was none.
    """

    def __init__(self, uri: str, storage: Path, client: MlflowClient) -> None:
        self.uri, self.storage, self.client = uri, storage, client
        self.elsewhere = ""

    def write(self, run: str, address: str, name: str, text: str) -> None:
        """Write or replace a file of a run.

        Args:
            address: the run's own, as MLflow has it (`artifact_uri`).
        """
        parts = urlsplit(address)
        is_served = parts.scheme == SERVED and not parts.netloc and is_database(self.uri)
        if is_served:
            folder, bound = artifacts_folder(self.storage) / parts.path.lstrip("/"), artifacts_folder(self.storage)
        elif parts.scheme in ("", "file"):  # of versions that kept absolute folders, or of a server without a proxy
            folder, bound = Path(url2pathname(parts.path)), self.storage
        else:
            self.client.log_text(run, text, name)
            return
        if _is_inside(folder, bound):
            write_atomically(folder / name, text)
        else:
            self.elsewhere = address


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder, by its name or by where links lead."""
    named = Path(os.path.normpath(path)).is_relative_to(folder)
    return named or path.resolve().is_relative_to(folder.resolve())
