"""A sweep's runs in MLflow: experiment = sweep, parent run = cell, child run = trial.

Imported in the writer thread only, because MLflow takes seconds to import.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from mlflow.entities import Dataset as DatasetEntity
from mlflow.entities import DatasetInput, Experiment, InputTag, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from meltpoint.adapters.files import acquire, give_usual_mode
from meltpoint.sweeps.ledger.records import CELL, CellKey, EpochRecord, TrialRecord, cell_key
from meltpoint.sweeps.search.planner import Proposal
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.tracking_uri import sqlite_file
from meltpoint.sweeps.tracking import run_files

STATUS = "meltpoint.status"
CODE = "meltpoint.code_version"
METRIC_OF_EVERY_EPOCH = "train/loss"
NEWEST_FIRST = ["attributes.start_time DESC"]
FINISHED = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}


def _configure_client() -> None:
    """Set few retries and short timeouts, so that a dead server does not delay the sweep; turn telemetry off."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # logs every created table
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _client(uri: str) -> MlflowClient:
    """MLflow's client; the tables of a new SQLite store are created first, by one process at a time."""
    path = sqlite_file(uri)
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("a") as lock:
            acquire(lock, shared=False, wait=True)
            if not path.exists():
                _make_store(uri, path)
    return MlflowClient(uri)


def _make_store(uri: str, path: Path) -> None:
    """Let MLflow create a SQLite store's tables in a temporary file, and rename it.

    If MLflow is killed in one of its dozens of migrations, it cannot open the store again. The permissions are set to
    those of the umask, since SQLite makes its files writable for their owner only.
    """
    for leftover in path.parent.glob(f".{path.name}.*.tmp*"):  # of a killed process, with its journal
        leftover.unlink()
    beside = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    address, mark, options = uri.partition("?")
    MlflowClient(f"{address.rpartition('/')[0]}/{beside.name}{mark}{options}").search_experiments(max_results=1)
    give_usual_mode(beside)
    beside.rename(path)


class Runs:
    """The MLflow runs of one sweep; every method is synchronous.

    Every method raises `MlflowException` or `OSError` if MLflow fails.

    Attributes:
        experiment: the experiment's id.
        parents: cell → run id.
        addresses: run id of a cell → artifact URI.
        runs: trial id → run id.
        logged_epochs: trial id → number of epochs that MLflow has.
        unsent_params: trial id → parameters that MLflow does not have yet.
    """

    def __init__(self, sweep: str, uri: str, storage: Path) -> None:
        _configure_client()
        self.sweep, self.uri, self.storage = sweep, uri, storage
        self.client = _client(uri)
        self.files = run_files.RunFiles(uri, storage, self.client)
        self.experiment: str = ""
        self.parents: dict[CellKey, str] = {}
        self.addresses: dict[str, str] = {}
        self.runs: dict[str, str] = {}
        self.codes: dict[str, str] = {}  # trial id → the version of the code that its run is of
        self.logged_epochs: dict[str, int] = {}
        self.unsent_params: dict[str, list[Param]] = {}

    def open(self, cells: Iterable[OpenCell], specification: str) -> None:
        """Find or create the experiment and the cells' runs, and look up the runs of earlier trials."""
        experiment = self.client.get_experiment_by_name(self.sweep)
        self.experiment = experiment.experiment_id if experiment else self._create_experiment(specification)
        for run in self._existing(experiment):
            tags = run.data.tags
            key = cell_key(*(tags.get(f"meltpoint.{word}", "") for word in CELL))
            if tags.get("meltpoint.role") == "cell":
                self.parents[key] = run.info.run_id
                self.addresses[run.info.run_id] = run.info.artifact_uri
                self.client.update_run(run.info.run_id, status="RUNNING")
            elif "meltpoint.trial" in tags:
                self.runs.setdefault(tags["meltpoint.trial"], run.info.run_id)
                self.codes.setdefault(tags["meltpoint.trial"], tags.get(CODE, ""))
        for cell in cells:
            if cell.key not in self.parents:
                self.parents[cell.key] = self._create_parent(cell)

    def _existing(self, experiment: Experiment | None) -> list[Run]:
        """All runs, the newest first: after a retried call, the newest is the one whose id MLflow returned."""
        if experiment is None:
            return []
        runs, token = [], None
        while True:
            page = self.client.search_runs([self.experiment], max_results=1000, order_by=NEWEST_FIRST, page_token=token)
            runs += list(page)
            token = page.token
            if not token:
                return runs

    def _create_experiment(self, specification: str) -> str:
        location = run_files.location(self.uri, self.sweep)
        # With this kind the dashboard shows runs and curves first, instead of traces.
        tags = {"meltpoint.specification": specification[:5000], "mlflow.experimentKind": "custom_model_development"}
        created: str = self.client.create_experiment(self.sweep, artifact_location=location, tags=tags)
        return created

    def _create_parent(self, cell: OpenCell) -> str:
        tags = self._tags(cell, trial="", role="cell", status="running")
        run = self.client.create_run(self.experiment, tags=tags, run_name=cell.name)
        run_id: str = run.info.run_id
        self.addresses[run_id] = run.info.artifact_uri
        self.client.log_batch(run_id, params=_cell_params(cell), synchronous=True)
        self.files.write(run_id, self.addresses[run_id], "space.yaml", cell.space.dump())
        self._log_data(run_id, cell)
        return run_id

    def _log_data(self, run_id: str, cell: OpenCell) -> None:
        """Log the data set as an input, by name, digest and size; its texts are not sent to MLflow."""
        profile = json.dumps({"train_examples": cell.train_examples, "dev_examples": cell.dev_examples})
        data = DatasetEntity(
            name=cell.task_name, digest=cell.data_fingerprint, source_type="meltpoint",
            source=json.dumps({"data_dir": cell.data.data_dir, "notes": list(cell.notes)}), profile=profile,
        )  # fmt: skip
        context = [InputTag("mlflow.data.context", "train and dev")]
        self.client.log_inputs(run_id, datasets=[DatasetInput(data, context)])

    def _tags(self, cell: OpenCell, trial: str, role: str, status: str) -> dict[str, str]:
        tags = {"sweep": self.sweep, "encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name}
        tags |= {"head": cell.head, "role": role, "status": status, "data_fingerprint": cell.data_fingerprint}
        tags |= {"trial": trial} if trial else {}
        tags |= {"variant": cell.variant} if cell.variant else {}
        return {f"meltpoint.{key}": value for key, value in tags.items()}

    def begin(self, proposal: Proposal, code: str) -> None:
        """Create a trial's run, or reopen the one that it had before an interruption.

        A run holds the epochs of one version of the code: by another one, the trial gets a run of its own.
        """
        known = self.runs.get(proposal.id)
        if known is not None and self.codes.get(proposal.id) == code:
            self._reopen(proposal, known)
            return
        self.logged_epochs.pop(proposal.id, None)
        tags = self._tags(proposal.cell, proposal.id, proposal.role, "running")
        tags |= {"mlflow.parentRunId": self.parents[proposal.cell.key], CODE: code}
        label = f"seed {proposal.seed}" if proposal.role == "final" else f"trial {proposal.number}"
        run = self.client.create_run(self.experiment, tags=tags, run_name=f"{proposal.cell.name} {label}")
        self.unsent_params[proposal.id] = _params(proposal)
        self.runs[proposal.id], self.codes[proposal.id] = run.info.run_id, code

    def _reopen(self, proposal: Proposal, run_id: str) -> None:
        """Set a trial's run to RUNNING, and look up what it already contains, so that only the rest is written."""
        self.client.update_run(run_id, status="RUNNING")
        self.client.set_tag(run_id, STATUS, "running")
        past = self.client.get_metric_history(run_id, METRIC_OF_EVERY_EPOCH)
        self.logged_epochs[proposal.id] = len({metric.step for metric in past})
        if not self.client.get_run(run_id).data.params:
            self.unsent_params[proposal.id] = _params(proposal)

    def write(self, trial: str, epochs: list[EpochRecord], record: TrialRecord | None) -> None:
        """Write a trial's updates in one call (with its setting, if it is new), and its end in another.

        Args:
            trial: the trial's id.
            epochs: its epochs; those that MLflow already has are skipped.
            record: the trial's record if it ended, else None.
        """
        done = self.logged_epochs.get(trial, 0)
        metrics = [metric for epoch in epochs if epoch.epoch > done for metric in epoch_metrics(epoch)]
        values, tags = ([], []) if record is None else _ending(record)
        end = None if record is None else FINISHED[record.status]
        self._log(self.runs[trial], metrics + values, self.unsent_params.get(trial, []), tags, end)
        self.unsent_params.pop(trial, None)
        self.logged_epochs[trial] = max([done, *(epoch.epoch for epoch in epochs)])

    def _log(
        self, run_id: str, metrics: list[Metric], params: list[Param], tags: list[RunTag], end: str | None
    ) -> None:
        """Write to a run, and set its final status if it ended; the client splits batches that are too large."""
        self.client.log_batch(run_id, metrics=metrics, params=params, tags=tags, synchronous=True)
        if end is not None:
            self.client.set_terminated(run_id, end)

    def abandon(self, trial: str) -> None:
        """Mark the run of an interrupted trial; it is reopened when the sweep continues."""
        if trial in self.runs:
            self._kill(self.runs[trial])

    def _kill(self, run_id: str) -> None:
        self._log(run_id, [], [], [RunTag(STATUS, "interrupted")], "KILLED")

    def reconcile(self, records: list[TrialRecord], proposals: Callable[[TrialRecord], Proposal]) -> None:
        """Write all records that MLflow lacks, and close running runs without a record."""
        existing = {run.info.run_id: run for run in self._all_runs()}
        state = {trial: existing[run_id] for trial, run_id in self.runs.items() if run_id in existing}
        self._fill_in(records, state, proposals)
        kept = {self.runs[record.id] for record in records}
        for run_id, run in existing.items():
            if "meltpoint.trial" in run.data.tags and run_id not in kept and run.info.status == "RUNNING":
                self._kill(run_id)

    def _fill_in(
        self, records: list[TrialRecord], state: dict[str, Run], proposals: Callable[[TrialRecord], Proposal]
    ) -> None:
        """Write the records that MLflow lacks, or has incomplete."""
        for record in records:
            run = state.get(record.id)
            ended = run is not None and run.info.status == FINISHED[record.status]
            if (
                ended
                and run is not None
                and len(record.test or {}) == sum(k.startswith("test/") for k in run.data.metrics)
            ):
                continue
            self.begin(proposals(record), record.code_version)
            self.write(record.id, record.epochs, record)

    def _all_runs(self) -> list[Run]:
        return self._existing(self.client.get_experiment(self.experiment))

    def close(
        self,
        cells: list[tuple[CellKey, dict[str, float]]],
        done: bool,
        artifacts: dict[str, str],
        tags: Mapping[CellKey, Mapping[str, str]],
    ) -> None:
        """End the cells' runs with their summary metrics, tags and artifacts."""
        now = int(time.time() * 1000)
        for key, figures in cells:
            run_id = self.parents[key]
            own = {STATUS: "finished" if done else "interrupted", **tags.get(key, {})}
            said = [RunTag(name, value) for name, value in own.items()]
            self._log(run_id, [Metric(k, v, now, 0) for k, v in figures.items()], [], said, None)
            for name, text in artifacts.items():
                self.files.write(run_id, self.addresses[run_id], name, text)
            self.client.set_terminated(run_id, "FINISHED" if done else "KILLED")


def _cell_params(cell: OpenCell) -> list[Param]:
    """A cell's parameters: the columns and filters of the dashboard."""
    words = {"encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name, "head": cell.head}
    words |= {"variant": cell.variant} if cell.variant else {}
    return [Param(key, value) for key, value in {**words, "metric": cell.task.metric}.items()]


def _params(proposal: Proposal) -> list[Param]:
    """A trial's parameters: those of its cell, its setting, and its seed."""
    setting = {**proposal.setting, "seed": proposal.seed}
    return _cell_params(proposal.cell) + [Param(name, str(value)) for name, value in setting.items()]


def epoch_metrics(epoch: EpochRecord) -> list[Metric]:
    """An epoch's MLflow metrics: `train/loss`, `dev/…`, `train/…` if they were computed, learning rate, times."""
    values: dict[str, Any] = {"train/loss": epoch.train_loss, "learning_rate_now": epoch.learning_rate}
    values |= {f"train/{name}": value for name, value in epoch.train.items()}
    values |= {f"dev/{name}": value for name, value in epoch.dev.items()}
    values |= {"epoch": epoch.epoch, "train_seconds": epoch.train_seconds, "dev_seconds": epoch.dev_seconds}
    when = int(epoch.finished_at * 1000)
    return [Metric(name, float(value), when, epoch.step) for name, value in values.items()]


def _ending(record: TrialRecord) -> tuple[list[Metric], list[RunTag]]:
    """The metrics and tags of an ended trial."""
    last = record.epochs[-1] if record.epochs else None
    when = int((last.finished_at if last else time.time()) * 1000)
    step = last.step if last else 0
    values = {"seconds": record.seconds} | ({} if record.dev is None else {"best_dev": record.dev})
    values |= {f"test/{name}": value for name, value in (record.test or {}).items()}
    if record.best_epoch is not None:
        values["best_epoch"] = float(record.best_epoch)
    tags: dict[str, str] = {STATUS: record.status}
    if record.hardware is not None:
        tags |= {f"meltpoint.hardware.{k}": str(v) for k, v in record.hardware.model_dump().items()}
    if record.error:
        tags["mlflow.note.content"] = record.error
    if record.answered_by:
        tags["meltpoint.answered_by"] = record.answered_by
    metrics = [Metric(name, value, when, step) for name, value in values.items()]
    return metrics, [RunTag(name, value) for name, value in tags.items()]
