"""A sweep's runs in MLflow: experiment = sweep, parent run = cell, child run = trial.

Only the writer thread imports this module, because MLflow takes seconds to import.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from mlflow.entities import Metric, Run, RunTag
from mlflow.exceptions import MlflowException

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import CellKey, Trial, TrialRecord, trial_label
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.tracking.dashboard import (
    FINAL_OF,
    IS_BEST,
    ORDER,
    PLACE,
    CellEnding,
    cell_labels,
    cells_page,
    colour,
    finals_page,
    former_label,
    run_page,
    trials_page,
)
from meltpoint.sweeps.tracking.run_contents import (
    COLOUR,
    FINISHED,
    LAST_METRIC,
    NOTE,
    STATUS,
    Key,
    RunWriter,
    artifact_location,
    cell_tags,
    ended_at,
    ending,
    epoch_metrics,
    identity,
    is_complete,
    milliseconds,
    params,
    trial_tags,
)
from meltpoint.sweeps.tracking.store import (
    SPECIFICATION,
    configure_client,
    is_about_the_store,
    open_client,
)
from meltpoint.tasks.core.metrics import gain


class Runs:
    """The MLflow runs of one sweep; every method is synchronous.

    Every method raises `MlflowException` or `OSError` if MLflow fails, and can then be called again with the same
    arguments. Data that MLflow already has are looked up, or written again with the same times, and then stored once.

    Attributes:
        experiment: the experiment's id.
        cells: the cells by key.
        labels: cell name → label.
        parents: cell → run id.
        addresses: run id → artifact URI, for the cells' runs.
        best: cell → dev of its best trial so far.
        known: (trial id, version of the code) → run id; each run belongs to one version of the code.
        runs: trial id → run id, for the version that started last.
        doubtful: keys as in `known`, for runs whose creation failed but may have succeeded without an answer.
        cell_of: trial id → its cell.
        logged: trial id → the steps of the epochs that MLflow has.
        unsent: trial id → the trial, if MLflow does not have its parameters.
    """

    def __init__(self, sweep: str, uri: str, storage: StoragePath) -> None:
        configure_client()
        self.sweep, self.uri = sweep, uri
        self.client = open_client(uri)
        self.writer = RunWriter(uri, storage, self.client)
        self.experiment = ""
        self.cells: dict[CellKey, OpenCell] = {}
        self.labels: dict[str, str] = {}
        self.parents: dict[CellKey, str] = {}
        self.addresses: dict[str, str] = {}
        self.best: dict[CellKey, float] = {}
        self.known: dict[Key, str] = {}
        self.runs: dict[str, str] = {}
        self.doubtful: set[Key] = set()
        self.cell_of: dict[str, OpenCell] = {}
        self.logged: dict[str, set[int]] = {}
        self.unsent: dict[str, Trial] = {}

    # The experiment and the cells' runs.

    def open(
        self, cells: Iterable[OpenCell], specification: str, opened_at: float, is_over: bool = False
    ) -> None:  # fmt: skip
        """Find or create the experiment and the cells' runs, and look up the runs of earlier trials.

        Args:
            specification: the sweep's specification, for the experiment's tags.
            opened_at: when the sweep was opened, in seconds since 1970.
            is_over: whether all training is done.
        """
        self.experiment = self._find_experiment() or self._create_experiment(specification)
        self.cells = {cell.key: cell for cell in cells}
        self.labels = cell_labels(self.cells.values())
        found = self._take_stock()
        for key, cell in self.cells.items():
            self._open(cell, found.get(key), milliseconds(opened_at), is_over)

    def answers(self) -> bool:
        """True if MLflow answers, even with the error that the experiment is gone."""
        try:
            self.client.get_experiment(self.experiment)
        except Exception as error:  # noqa: BLE001 - any other kind of error is not an answer
            return isinstance(error, MlflowException) and not is_about_the_store(error)
        return True

    def _find_experiment(self) -> str | None:
        experiment = self.client.get_experiment_by_name(self.sweep)
        if experiment is None:
            return None
        experiment_id: str = experiment.experiment_id
        if experiment.lifecycle_stage != "active":
            raise MlflowException(
                f"its experiment {self.sweep} was deleted; mlflow experiments restore --experiment-id {experiment_id} "
                "restores it"
            )
        return experiment_id

    def _create_experiment(self, specification: str) -> str:
        location = artifact_location(self.uri, self.sweep)
        # With this kind, the dashboard first shows runs and curves instead of traces.
        tags = {SPECIFICATION: specification[:5000], "mlflow.experimentKind": "custom_model_development"}
        created: str = self.client.create_experiment(self.sweep, artifact_location=location, tags=tags)
        return created

    # All runs.

    def _take_stock(self) -> dict[Key, Run]:
        """Look up all runs: cell, or trial and version of the code → its only run; duplicates are removed."""
        groups: dict[Key, list[Run]] = defaultdict(list)
        for run in self.writer.search(self.experiment):
            key = identity(run)
            if key is not None:
                groups[key].append(run)
        found = {key: self._only(key, runs) for key, runs in groups.items()}
        for key, run in found.items():
            if run.data.tags.get("meltpoint.role") != "cell":
                self.known[key] = run.info.run_id
                self.runs.setdefault(key[0], run.info.run_id)
        return found

    def _only(self, key: Key, runs: list[Run]) -> Run:
        """The run to keep among several with the same identity: the run in use, or the run with the most data.

        If MLflow creates a run after its caller has stopped waiting, a second run remains. It is empty, because its id
        is unknown, and it is deleted.
        """
        own = self.known.get(key) or self.parents.get(key)
        kept = max(runs, key=lambda run: (run.info.run_id == own, len(run.data.params) + len(run.data.metrics)))
        for run in runs:
            if run is not kept:
                with suppress(MlflowException):  # `end_lost` ends what this user may not delete
                    self.client.delete_run(run.info.run_id)
        return kept

    def lacking(self, records: list[TrialRecord]) -> list[TrialRecord]:
        """The records that MLflow lacks or has only in part."""
        found = self._take_stock()
        complete = {
            record.id: found[record.id, record.code_version].info.run_id for record in records
            if is_complete(found.get((record.id, record.code_version)), record)
        }  # fmt: skip
        self.runs |= complete
        return [record for record in records if record.id not in complete]

    def end_lost(self, records: list[TrialRecord]) -> None:
        """End running runs whose trials have no record."""
        ended = {self.known.get((record.id, record.code_version)) for record in records}
        for run in self.writer.search(self.experiment, "attributes.status = 'RUNNING'"):
            if "meltpoint.trial" in run.data.tags and run.info.run_id not in ended:
                self.writer.kill(run.info.run_id, milliseconds(time.time()))

    # A trial's run.

    def begin(self, trial: Trial, code: str, started_at: float) -> None:
        """Create a trial's run, or reopen its run from before an interruption.

        A run contains the epochs of one version of the code: another version gets a separate run for the same trial.

        Args:
            code: the version of the code that runs it.
            started_at: when it started, in seconds since 1970.
        """
        key = (trial.id, code)
        self.cell_of[trial.id] = self.cells[trial.cell]
        if key in self.doubtful:
            self._take_stock()
        run_id = self.known.get(key)
        if run_id is None:
            run_id = self._create(trial, code, milliseconds(started_at))
        else:
            self._reopen(trial, run_id)
        self.known[key] = self.runs[trial.id] = run_id
        self.doubtful.discard(key)

    def _create(self, trial: Trial, code: str, started_at: int) -> str:
        cell = self.cell_of[trial.id]
        label = self.labels[cell.name]
        tags = trial_tags(self.sweep, trial, cell, code, label)
        tags["mlflow.parentRunId"] = self.parents[trial.cell]
        self.doubtful.add((trial.id, code))
        run = self.client.create_run(
            self.experiment, start_time=started_at, tags=tags, run_name=f"{label} · {trial_label(trial)}"
        )
        self.unsent[trial.id] = trial
        self.logged[trial.id] = set()
        run_id: str = run.info.run_id
        self.writer.begun[run_id] = started_at
        return run_id

    def _reopen(self, trial: Trial, run_id: str) -> None:
        """Set a trial's run to RUNNING, and look up its contents, so that only the rest is written."""
        self.client.update_run(run_id, status="RUNNING")
        self.client.set_tag(run_id, STATUS, "running")
        self.logged[trial.id] = self._steps(run_id)
        if not self.client.get_run(run_id).data.params:
            self.unsent[trial.id] = trial

    def _steps(self, run_id: str) -> set[int]:
        """The steps of the epochs that MLflow has for a run."""
        return {metric.step for metric in self.client.get_metric_history(run_id, LAST_METRIC)}

    def write(self, trial: str, epochs: list[EpochResult], record: TrialRecord | None) -> None:
        """Write a trial's updates in one call (with its setting, if it is new), and its end in another.

        Args:
            trial: the trial's id.
            epochs: its epochs so far, or the latest ones; epochs that MLflow already has are skipped.
            record: the trial's record if it ended, otherwise None.
        """
        if trial not in self.cell_of:
            if record is None:  # interrupted before it started
                return
            self.cell_of[trial] = self.cells[record.cell]
        run_id, cell = self.runs[trial], self.cell_of[trial]
        if trial not in self.logged:  # a final that an earlier driver trained and this one scored
            self.logged[trial] = self._steps(run_id)
        logged = self.logged[trial]
        new = self.unsent.get(trial)
        metrics = [metric for epoch in epochs if epoch.step not in logged for metric in epoch_metrics(epoch, cell)]
        values, tags = ([], []) if record is None else ending(record)
        self.writer.log(run_id, metrics + values, [] if new is None else params(cell, new), tags)
        self.unsent.pop(trial, None)
        logged |= {epoch.step for epoch in epochs}
        if record is not None:
            self.writer.end(run_id, FINISHED[record.status], ended_at(record))
            self._note_best(record)
            del self.logged[trial]

    def abandon(self, trial: str, at: float) -> None:
        """Mark the run of an interrupted trial; it is reopened when the sweep resumes.

        Args:
            at: when it was interrupted, in seconds since 1970.
        """
        if trial in self.runs:
            self.writer.kill(self.runs[trial], milliseconds(at))

    def describe(self, note: str) -> None:
        """Set the experiment's note."""
        self.client.set_experiment_tag(self.experiment, NOTE, note)

    # The runs of the cells.

    def _open(self, cell: OpenCell, run: Run | None, now: int, is_over: bool) -> None:
        if run is None:
            tags = cell_tags(self.sweep, cell, trial="", role="cell", status="running")
            tags |= {COLOUR: colour(cell.mode), ORDER: cell.task_name}
            run = self.client.create_run(self.experiment, start_time=now, tags=tags, run_name=self.labels[cell.name])
        elif not is_over:
            self.client.update_run(run.info.run_id, status="RUNNING")
        run_id: str = run.info.run_id
        if (dev := run.data.metrics.get("best_dev")) is not None:
            self.best[cell.key] = dev
        self.parents[cell.key], self.addresses[run_id] = run_id, run.info.artifact_uri
        self.writer.begun[run_id] = run.info.start_time
        if not run.data.params:
            self.writer.write(run_id, self.addresses[run_id], "space.yaml", cell.space.dump())
            self.writer.log(run_id, [], params(cell), [])  # last: it marks a complete run

    def _note_best(self, record: TrialRecord) -> None:
        """Log a trial's score to its cell's run, if it is the best of the search so far."""
        if record.role != "search" or record.status != "finished" or record.dev is None:
            return
        known = self.best.get(record.cell)
        if record.cell in self.parents and (
            known is None or gain(record.metric, record.dev) > gain(record.metric, known)
        ):
            self.writer.log(self.parents[record.cell], [Metric("best_dev", record.dev, ended_at(record), 0)], [], [])
            self.best[record.cell] = record.dev

    def close(
        self,
        key: CellKey,
        figures: Mapping[str, float],
        done: bool,
        texts: Mapping[str, str],
        tags: Mapping[str, str],
        closed_at: float,
        ending: CellEnding,
    ) -> None:
        """End a cell's run, and write new summary metrics, tags, artifacts and results.

        Args:
            texts: file name → text.
            closed_at: when the sweep ended, in seconds since 1970.
        """
        now, run_id = milliseconds(closed_at), self.parents[key]
        kept: Run = self.client.get_run(run_id)
        said = {STATUS: "finished" if done else "interrupted", **tags, **self._note(key, run_id, ending)}
        new_tags = [RunTag(name, value) for name, value in said.items() if kept.data.tags.get(name) != value]
        metrics = [
            Metric(name, value, now, 0) for name, value in figures.items() if kept.data.metrics.get(name) != value
        ]
        if metrics or new_tags:
            self.writer.log(run_id, metrics, [], new_tags)
        label = self.labels[self.cells[key].name]
        ranked = f"{tags[PLACE]} · {label}" if PLACE in tags else label  # in the first column of MLflow's table
        if kept.info.run_name != ranked:
            self.client.update_run(run_id, name=ranked)
        address = self.addresses[run_id]
        for name, text in texts.items():
            self.writer.write(run_id, address, name, text)
        for name, file in ending.files.items():
            self.writer.copy(run_id, address, name, file)
        self._mark(key, ending)
        end = "FINISHED" if done else "KILLED"
        if metrics or new_tags or kept.info.status != end:
            self.writer.end(run_id, end, now)

    def _mark(self, key: CellKey, ending: CellEnding) -> None:
        """Mark only the best trial of a cell, and the finals of a former best setting."""
        chosen = self.runs.get(ending.best)
        if chosen is None:
            return
        cell = self.cells[key]
        where = f"tags.`meltpoint.cell` = '{cell.name}' and tags.`{IS_BEST}` = 'true'"
        marked = {run.info.run_id for run in self.writer.search(self.experiment, where)}
        for run_id in marked - {chosen}:
            self.client.delete_tag(run_id, IS_BEST)
        if chosen not in marked:
            self.client.set_tag(chosen, IS_BEST, "true")
        for trial in ending.former:
            if trial in self.runs:
                self.client.set_tag(self.runs[trial], FINAL_OF, former_label(self.labels[cell.name]))

    def _note(self, key: CellKey, run_id: str, ending: CellEnding) -> dict[str, str]:
        """The description: scores, links, the rest. MLflow would fold away links that start on a third line."""
        if not ending.note:
            return {}
        best, cell, metric = self.runs.get(ending.best), self.cells[key].name, self.cells[key].metric
        links = {
            "Learning curves": trials_page(self.experiment, cell, metric, charts=True),
            "all trials": trials_page(self.experiment, cell, metric),
            **({"best trial": run_page(self.experiment, best)} if best else {}),
            "files": run_page(self.experiment, run_id, "artifacts"),
            "finals": finals_page(self.experiment),
            "all cells": cells_page(self.experiment),
        }
        scores, _, rest = ending.note.partition("\n\n")
        return {NOTE: f"{scores}  \n{' · '.join(f'[{name}]({page})' for name, page in links.items())}\n\n{rest}"}
