"""Contents of MLflow runs: parameters, metrics and tags of cells and trials, with times from the ledger's records; and
their artifacts (a cell's space, the reports).

MLflow stores an artifact URI for each run. An absolute folder would be wrong after the storage was moved, and would
point to the original after it was copied. So runs in a database get `mlflow-artifacts:/SWEEP`, which MLflow's server
resolves under its `--artifacts-destination`. `meltpoint ui` sets that to `STORAGE/mlartifacts`, and the driver writes
the files there itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import CELL, Trial, TrialRecord, cell_key
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.tracking_uri import is_database
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder, local_copy, storing, write
from meltpoint.sweeps.tracking.dashboard import FINAL_OF, colour, curve, setting_label

Key = tuple[str, ...]
"""The identity of a run in MLflow: a cell's key, or (a trial's id, the version of the code that runs it)."""

STATUS = "meltpoint.status"
CODE = "meltpoint.code_version"
SUGGESTED_BY = "meltpoint.suggested_by"
COLOUR = "mlflow.runColor"
"""The tag in which MLflow's dashboard stores a run's colour."""
NOTE = "mlflow.note.content"
"""The tag that MLflow's dashboard shows as a run's description, in Markdown."""
LAST_METRIC = "dev_seconds"
"""The last metric of an epoch. A run that has it has the full epoch, because a batch's metrics are written in order."""
FINISHED = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}


def milliseconds(seconds: float) -> int:
    """A time in MLflow's unit: milliseconds since 1970."""
    return int(seconds * 1000)


def identity(run: Run) -> Key | None:
    """The key of a cell's or a trial's run; None for runs that others created."""
    tags = run.data.tags
    if tags.get("meltpoint.role") == "cell":
        return cell_key(*(tags.get(f"meltpoint.{word}", "") for word in CELL))
    if "meltpoint.trial" in tags:
        return (tags["meltpoint.trial"], tags.get(CODE, ""))
    return None


def is_complete(run: Run | None, record: TrialRecord) -> bool:
    """True if a run has all data of an ended trial: setting, last epoch, end, and test scores."""
    if run is None or run.info.status != FINISHED[record.status] or run.data.tags.get(STATUS) != record.status:
        return False
    metrics = run.data.metrics
    tested = sum(name.startswith("test/") for name in metrics)
    last_epoch = record.epochs[-1].epoch if record.epochs else 0
    has_epochs = metrics.get("epoch", 0) >= last_epoch  # an interrupted attempt may have got further
    return bool(run.data.params) and has_epochs and tested >= len(record.test or {})


def params(cell: OpenCell, trial: Trial | None = None) -> list[Param]:
    """A cell's parameters, for the dashboard's columns and filters; of a trial also its setting and its seed."""
    words = {"encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name, "head": cell.head}
    words |= {"variant": cell.variant} if cell.variant else {}
    setting = {} if trial is None else {**trial.setting, "seed": trial.seed}
    return [Param(name, str(value)) for name, value in {**words, "metric": cell.task.metric, **setting}.items()]


def cell_tags(sweep: str, cell: OpenCell, trial: str, role: str, status: str) -> dict[str, str]:
    """The tags of a cell's run, or of one of its trials' runs."""
    tags = {"sweep": sweep, "cell": cell.name, "encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name}
    tags |= {"head": cell.head, "role": role, "status": status, "data_fingerprint": cell.data_fingerprint}
    tags |= {"trial": trial} if trial else {}
    tags |= {"variant": cell.variant} if cell.variant else {}
    return {f"meltpoint.{key}": value for key, value in tags.items()}


def trial_tags(sweep: str, trial: Trial, cell: OpenCell, code: str, label: str) -> dict[str, str]:
    """The tags of a trial's new run.

    Args:
        code: the version of the code that runs it.
        label: its cell's label.
    """
    is_search = trial.role == "search"
    tags = cell_tags(sweep, cell, trial.id, trial.role, "running") | {CODE: code}
    tags[COLOUR] = colour(cell.mode, trial.number if is_search else trial.seed)
    tags |= {SUGGESTED_BY: trial.suggested_by} if trial.suggested_by else {}
    return tags | ({} if is_search else {FINAL_OF: setting_label(label, trial.role)})


def epoch_metrics(epoch: EpochResult, cell: OpenCell) -> list[Metric]:
    """An epoch's MLflow metrics: `train/loss`, `dev/…`, the task's curve, `train/…`, learning rate, times."""
    values: dict[str, Any] = {"train/loss": epoch.train_loss, "learning_rate_now": epoch.learning_rate}
    values |= {f"train/{name}": value for name, value in epoch.train.items()}
    values |= {f"dev/{name}": value for name, value in epoch.dev.items()}
    values |= {curve(cell.task_name): epoch.dev[cell.task.metric]} if cell.task.metric in epoch.dev else {}
    values |= {"epoch": epoch.epoch, "train_seconds": epoch.train_seconds, LAST_METRIC: epoch.dev_seconds}
    when = milliseconds(epoch.finished_at)
    return [Metric(name, float(value), when, epoch.step) for name, value in values.items()]


def ended_at(record: TrialRecord) -> int:
    """The time at which a trial ended, in milliseconds since 1970."""
    return milliseconds(record.started_at + record.seconds)


def ending(record: TrialRecord) -> tuple[list[Metric], list[RunTag]]:
    """The metrics and tags of an ended trial, the same at each call, so that MLflow stores them once."""
    last = record.epochs[-1] if record.epochs else None
    when = milliseconds(last.finished_at) if last else ended_at(record)
    step = last.step if last else 0
    values = {"seconds": record.seconds} | ({} if record.dev_of_epoch is None else {"best_dev": record.dev_of_epoch})
    if record.trained_parameters is not None:
        values["trained_parameters"] = float(record.trained_parameters)
    if record.peak_memory_bytes is not None:
        values["peak_memory_gb"] = record.peak_memory_bytes / 1e9
    values |= {f"test/{name}": value for name, value in (record.test or {}).items()}
    if record.dev is not None and record.dev_examples is not None:  # its epochs and `best_dev` use a sample
        values["dev_score"] = record.dev
    if record.test:  # empty: scored, but test has no labels
        values["test_score"] = record.test[record.metric]
    if record.best_epoch is not None:
        values["best_epoch"] = float(record.best_epoch)
    tags: dict[str, str] = {STATUS: record.status}
    if record.hardware is not None:
        tags |= {f"meltpoint.hardware.{k}": str(v) for k, v in record.hardware.model_dump().items()}
    if said := [*([record.error] if record.error else []), *record.result_notes()]:
        tags[NOTE] = "; ".join(said)
    if record.resumed_after_epochs:
        tags["meltpoint.resumed_after_epochs"] = str(record.resumed_after_epochs)
    if record.micro_batch_size is not None:
        tags["meltpoint.micro_batch_size"] = str(record.micro_batch_size)
    if record.gradient_checkpointing:
        tags["meltpoint.gradient_checkpointing"] = "True"
    if record.answered_by:
        tags["meltpoint.answered_by"] = record.answered_by
    metrics = [Metric(name, value, when, step) for name, value in values.items()]
    return metrics, [RunTag(name, value) for name, value in tags.items()]


SERVED = "mlflow-artifacts"


def artifact_location(uri: str, sweep: str) -> str | None:
    """The artifact location of a new experiment; None if the tracking server chooses it."""
    return f"{SERVED}:/{sweep}" if is_database(uri) else None


class RunWriter:
    """Reads and writes runs, their artifacts in the storage folder or through MLflow's client.

    Attributes:
        client: MLflow's client.
        begun: run id → when it started, in milliseconds since 1970.
    """

    def __init__(self, uri: str, storage: StoragePath, client: MlflowClient) -> None:
        self.uri, self.storage, self.client = uri, storage, client
        self.begun: dict[str, int] = {}

    def log(self, run_id: str, metrics: list[Metric], params: list[Param], tags: list[RunTag]) -> None:
        """Write to a run; the client splits large batches."""
        self.client.log_batch(run_id, metrics=metrics, params=params, tags=tags, synchronous=True)

    def search(self, experiment: str, condition: str = "") -> list[Run]:
        """The runs of an experiment that meet a condition, newest first."""
        runs, token = [], None
        while True:
            page = self.client.search_runs(
                [experiment], condition, max_results=1000, order_by=["attributes.start_time DESC"], page_token=token
            )
            runs += list(page)
            self.begun |= {run.info.run_id: run.info.start_time or 0 for run in page}
            token = page.token
            if not token:
                return runs

    def kill(self, run_id: str, at: int) -> None:
        """End a run whose trial did not end."""
        self.log(run_id, [], [], [RunTag(STATUS, "interrupted")])
        self.end(run_id, "KILLED", at)

    def end(self, run_id: str, status: str, at: int) -> None:
        """End a run, but not before its start: the clock may have been set back since."""
        self.client.set_terminated(run_id, status, max(at, self.begun.get(run_id, 0)))

    # Artifacts.

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
