"""The runs of a sweep's cells in MLflow: opened before the first trial, ended with the cell's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow.entities import DatasetInput, Metric, Run, RunTag
from mlflow.exceptions import MlflowException

from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.tracking import saved_views
from meltpoint.sweeps.tracking.run_contents import (
    COLOUR,
    NOTE,
    STATUS,
    RunWriter,
    cell_params,
    cell_tags,
    data_input,
    ended_at,
    milliseconds,
    setting_params,
)
from meltpoint.sweeps.tracking.run_files import RunFiles
from meltpoint.sweeps.tracking.views import (
    FINAL_OF,
    IS_BEST,
    ORDER,
    ROLE,
    CellEnding,
    cell_labels,
    cell_view,
    cells_view,
    colour,
    finals_view,
    former_label,
)

MODEL = "model"
"""The folder of a run's artifacts that contains its model."""
ALIAS, TRIAL = "best", "meltpoint.trial"
"""The alias of the registered version, and the tag that names each version's finalist."""
Scores = tuple[CellKey, dict[str, float]]


class CellRuns:
    """The runs of a sweep's cells.

    Attributes:
        experiment: the experiment's id.
        version: the version of the server's MLflow, for links between runs and views.
        cells: the cells by key.
        labels: cell name → label.
        parents: cell → run id.
        addresses: run id → artifact URI.
        best: cell → (dev, run id) of its best trial so far.
    """

    def __init__(self, sweep: str, writer: RunWriter, files: RunFiles) -> None:
        self.sweep, self.writer, self.client, self.files = sweep, writer, writer.client, files
        self.experiment, self.version = "", ""
        self.cells: dict[CellKey, OpenCell] = {}
        self.labels: dict[str, str] = {}
        self.parents: dict[CellKey, str] = {}
        self.addresses: dict[str, str] = {}
        self.best: dict[CellKey, tuple[float, str]] = {}
        self._renewed: dict[CellKey, Run | None] = {}  # cell → the run that will replace its run

    def open(
        self, experiment: str, cells: Sequence[OpenCell], found: Mapping[tuple[str, ...], Run], now: int,
        is_over: bool = False,
    ) -> None:  # fmt: skip
        """Find or create each cell's run, and write its missing contents.

        Args:
            experiment: the experiment's id.
            found: the existing runs.
            now: when the sweep was opened, in milliseconds since 1970.
            is_over: whether all training is done, so that an ended run stays ended.
        """
        self.experiment = experiment
        self.cells = {cell.key: cell for cell in cells}
        self.labels = cell_labels(cells)
        for run in found.values():
            self._recall_best(run)
        for cell in cells:
            self._open(cell, found.get(cell.key), now, is_over)

    def _recall_best(self, run: Run) -> None:
        """Restore `best` from a trial's run that is marked as its cell's best."""
        if run.data.tags.get(IS_BEST) == "true" and "best_dev" in run.data.metrics:
            key = next((c.key for c in self.cells.values() if c.name == run.data.tags.get("meltpoint.cell")), None)
            if key is not None:
                self.best[key] = (run.data.metrics["best_dev"], run.info.run_id)

    def _open(self, cell: OpenCell, run: Run | None, now: int, is_over: bool) -> None:
        if run is None:
            run = self._create(cell, now)
        elif not is_over:
            self.client.update_run(run.info.run_id, status="RUNNING")
        self._know(cell, run)
        if not run.data.params:
            self._fill(cell, run.info.run_id)

    def _create(self, cell: OpenCell, now: int, role: str = "cell") -> Run:
        tags = cell_tags(self.sweep, cell, trial="", role=role, status="running")
        tags |= {COLOUR: colour(cell.mode), ORDER: cell.task_name}
        run: Run = self.client.create_run(
            self.experiment, start_time=now, tags=tags, run_name=self.labels[cell.name]
        )  # fmt: skip
        return run

    def _know(self, cell: OpenCell, run: Run) -> None:
        run_id: str = run.info.run_id
        self.parents[cell.key], self.addresses[run_id] = run_id, run.info.artifact_uri
        self.writer.begun[run_id] = run.info.start_time

    def _fill(self, cell: OpenCell, run_id: str) -> None:
        self.files.write(run_id, self.addresses[run_id], "space.yaml", cell.space.dump())
        self.client.log_inputs(run_id, [DatasetInput(*data_input(cell))])
        self.client.log_batch(run_id, params=cell_params(cell), synchronous=True)  # last: it marks a complete run

    def note_best(self, record: TrialRecord, run_id: str) -> None:
        """Log a trial's score to its cell's run, if it is the best so far.

        `close` later writes the sweep's choice, which is the shorter trial among equal scores.
        """
        known = self.best.get(record.cell)
        if not self.is_best_so_far(record) or record.dev is None or record.cell not in self.parents:
            return
        score = Metric("best_dev", record.dev, ended_at(record), 0)
        self.client.log_batch(self.parents[record.cell], metrics=[score], synchronous=True)
        if known is not None and known[1] != run_id:
            self._unmark(known[1])
        self.best[record.cell] = (record.dev, run_id)

    def is_best_so_far(self, record: TrialRecord) -> bool:
        """True if an ended trial is the best of its cell's search so far."""
        known = self.best.get(record.cell)
        counts = record.role == "search" and record.status == "finished" and record.dev is not None
        return counts and (known is None or (record.dev or 0.0) > known[0])

    def _unmark(self, run_id: str) -> None:
        if IS_BEST in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, IS_BEST)

    # The end.

    def close(
        self,
        cells: Sequence[Scores],
        done: bool,
        artifacts: Mapping[str, str],
        tags: Mapping[CellKey, Mapping[str, str]],
        closed_at: float,
        endings: Mapping[CellKey, CellEnding],
        runs: Mapping[str, str],
    ) -> None:
        """End the cells' runs, and write new summary metrics, tags, artifacts and results.

        Args:
            artifacts: file name → text, for every cell.
            closed_at: when the sweep ended, in seconds since 1970.
            endings: the results of some cells.
            runs: trial id → run id.
        """
        now, status = milliseconds(closed_at), "finished" if done else "interrupted"
        for key, figures in cells:
            ending = endings.get(key, CellEnding())
            run = self._with_room_for(key, ending)
            run_id, kept = run.info.run_id, run.data
            said = [RunTag(name, value) for name, value in {STATUS: status, **tags.get(key, {})}.items()]
            said = [
                tag for tag in [*said, *self._note(key, run_id, ending, runs)] if kept.tags.get(tag.key) != tag.value
            ]
            metrics = [
                Metric(name, value, now, 0) for name, value in figures.items() if kept.metrics.get(name) != value
            ]
            params = [param for param in setting_params(ending.setting) if param.key not in kept.params]
            is_new = bool(metrics or params or said)
            if is_new:
                self.writer.log(run_id, metrics, params, said)
            self._files(run_id, {**artifacts, **ending.texts}, ending)
            self._mark(key, ending, runs)
            if ending.model is not None:
                self._register(key, run_id, ending)
            end = "FINISHED" if done else "KILLED"
            if is_new or run.info.status != end:
                self.writer.end(run_id, end, now)

    def _with_room_for(self, key: CellKey, ending: CellEnding) -> Run:
        """The cell's run; a replacement if its setting differs, because MLflow cannot change a parameter."""
        run_id, cell = self.parents[key], self.cells[key]
        kept: Run = self.client.get_run(run_id)
        wanted = {param.key: param.value for param in [*cell_params(cell), *setting_params(ending.setting)]}
        if all(wanted.get(name) == value for name, value in kept.data.params.items()):
            return kept
        return self._replace(cell, kept)

    def _replace(self, cell: OpenCell, kept: Run) -> Run:
        """Replace a cell's run by a new one, which counts as the cell's run once it has the trials."""
        new = self._renewed.setdefault(cell.key, None) or self._create(cell, kept.info.start_time, role="renewed")
        self._renewed[cell.key] = new
        run_id: str = new.info.run_id
        self.addresses[run_id] = new.info.artifact_uri
        self._fill(cell, run_id)
        for child in self.writer.search(self.experiment, f"tags.`mlflow.parentRunId` = '{kept.info.run_id}'"):
            self.client.set_tag(child.info.run_id, "mlflow.parentRunId", run_id)
        self.client.set_tag(run_id, ROLE, "cell")
        self.client.delete_run(kept.info.run_id)
        self._know(cell, new)
        del self._renewed[cell.key]
        return new

    def _files(self, run_id: str, texts: Mapping[str, str], ending: CellEnding) -> None:
        address = self.addresses[run_id]
        for name, text in texts.items():
            self.files.write(run_id, address, name, text)
        for name, file in ending.files.items():
            self.files.copy(run_id, address, name, file)
        if ending.model is not None:
            self.files.copy_folder(run_id, address, MODEL, ending.model)

    def _register(self, key: CellKey, run_id: str, ending: CellEnding) -> None:
        """Register a cell's model as `SWEEP.CELL`, once per finalist; the alias `best` names its version."""
        cell = self.cells[key]
        name = f"{self.sweep}.{cell.name}"
        try:
            self.client.create_registered_model(name, description=f"The best finalist of {self.labels[cell.name]}.")
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        known = [version for version in self.client.search_model_versions(f"name = '{name}'") if (
            version.run_id == run_id and version.tags.get(TRIAL) == ending.finalist
        )]  # fmt: skip
        made = known[0] if known else self.client.create_model_version(
            name, source=f"{self.addresses[run_id]}/{MODEL}", run_id=run_id, tags={TRIAL: ending.finalist},
            description=ending.card or None,
        )  # fmt: skip
        self.client.set_registered_model_alias(name, ALIAS, made.version)

    def _mark(self, key: CellKey, ending: CellEnding, runs: Mapping[str, str]) -> None:
        """Mark only the best trial of a cell, and the finals of a former best setting."""
        chosen = runs.get(ending.best)
        if chosen is None:
            return
        cell = self.cells[key]
        marked = self.writer.search(
            self.experiment, f"tags.`meltpoint.cell` = '{cell.name}' and tags.`{IS_BEST}` = 'true'"
        )
        for run in marked:
            if run.info.run_id != chosen:
                self.client.delete_tag(run.info.run_id, IS_BEST)
        if chosen not in {run.info.run_id for run in marked}:
            self.client.set_tag(chosen, IS_BEST, "true")
        for trial in ending.former:
            if trial in runs:
                self.client.set_tag(runs[trial], FINAL_OF, former_label(self.labels[cell.name]))

    def _note(self, key: CellKey, run_id: str, ending: CellEnding, runs: Mapping[str, str]) -> list[RunTag]:
        """The description: scores, links, the rest. MLflow would fold away links that start on a third line."""
        if not ending.note:
            return []
        best = runs.get(ending.best)
        links = [f"[{name}]({address})" for name, address in self._links(self.cells[key], run_id, best, ending)]
        scores, _, rest = ending.note.partition("\n\n")
        return [RunTag(NOTE, f"{scores}  \n{' · '.join(links)}\n\n{rest}")]

    def _links(
        self, cell: OpenCell, run_id: str, best: str | None, ending: CellEnding
    ) -> list[tuple[str, str]]:  # fmt: skip
        view, page = cell_view(cell), saved_views.run_fragment
        every = list(self.cells.values())
        links = [
            ("Learning curves and hyperparameters", saved_views.fragment(self.experiment, view, self.version)),
            ("all trials", saved_views.fragment(self.experiment, view, self.version, table=True)),
        ]
        links += [("best trial", page(self.experiment, best))] if best else []
        links += [("model", page(self.experiment, run_id, f"artifacts/{MODEL}"))] if ending.model else []
        links += [("files", page(self.experiment, run_id, "artifacts"))]
        links += [("finals", saved_views.fragment(self.experiment, finals_view(every), self.version))]
        return [*links, ("all cells", saved_views.fragment(self.experiment, cells_view(every), self.version))]
