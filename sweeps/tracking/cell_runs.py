"""The runs of a sweep's cells in MLflow: opened before the first trial, ended with the cell's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow.entities import Metric, Run, RunTag

from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.tracking.run_contents import (
    COLOUR,
    NOTE,
    STATUS,
    RunWriter,
    cell_params,
    cell_tags,
    ended_at,
    milliseconds,
)
from meltpoint.sweeps.tracking.run_files import RunFiles
from meltpoint.sweeps.tracking.views import (
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
from meltpoint.tasks.core.metrics import gain


class CellRuns:
    """The runs of a sweep's cells.

    Attributes:
        experiment: the experiment's id.
        cells: the cells by key.
        labels: cell name → label.
        parents: cell → run id.
        addresses: run id → artifact URI.
        best: cell → dev of its best trial so far.
    """

    def __init__(self, sweep: str, writer: RunWriter, files: RunFiles) -> None:
        self.sweep, self.writer, self.client, self.files = sweep, writer, writer.client, files
        self.experiment = ""
        self.cells: dict[CellKey, OpenCell] = {}
        self.labels: dict[str, str] = {}
        self.parents: dict[CellKey, str] = {}
        self.addresses: dict[str, str] = {}
        self.best: dict[CellKey, float] = {}

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
        for cell in cells:
            self._open(cell, found.get(cell.key), now, is_over)

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
            self.files.write(run_id, self.addresses[run_id], "space.yaml", cell.space.dump())
            self.writer.log(run_id, [], cell_params(cell), [])  # last: it marks a complete run

    def note_best(self, record: TrialRecord) -> None:
        """Log a trial's score to its cell's run, if it is the best of the search so far."""
        if record.role != "search" or record.status != "finished" or record.dev is None:
            return
        known = self.best.get(record.cell)
        if record.cell in self.parents and (
            known is None or gain(record.metric, record.dev) > gain(record.metric, known)
        ):
            self.writer.log(self.parents[record.cell], [Metric("best_dev", record.dev, ended_at(record), 0)], [], [])
            self.best[record.cell] = record.dev

    # The end.

    def close(
        self,
        key: CellKey,
        figures: Mapping[str, float],
        done: bool,
        texts: Mapping[str, str],
        tags: Mapping[str, str],
        closed_at: float,
        ending: CellEnding,
        runs: Mapping[str, str],
    ) -> None:
        """End a cell's run, and write new summary metrics, tags, artifacts and results.

        Args:
            texts: file name → text.
            closed_at: when the sweep ended, in seconds since 1970.
            runs: trial id → run id.
        """
        now, run_id = milliseconds(closed_at), self.parents[key]
        kept: Run = self.client.get_run(run_id)
        said = {STATUS: "finished" if done else "interrupted", **tags, **self._note(key, run_id, ending, runs)}
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
            self.files.write(run_id, address, name, text)
        for name, file in ending.files.items():
            self.files.copy(run_id, address, name, file)
        self._mark(key, ending, runs)
        end = "FINISHED" if done else "KILLED"
        if metrics or new_tags or kept.info.status != end:
            self.writer.end(run_id, end, now)

    def _mark(self, key: CellKey, ending: CellEnding, runs: Mapping[str, str]) -> None:
        """Mark only the best trial of a cell, and the finals of a former best setting."""
        chosen = runs.get(ending.best)
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
            if trial in runs:
                self.client.set_tag(runs[trial], FINAL_OF, former_label(self.labels[cell.name]))

    def _note(self, key: CellKey, run_id: str, ending: CellEnding, runs: Mapping[str, str]) -> dict[str, str]:
        """The description: scores, links, the rest. MLflow would fold away links that start on a third line."""
        if not ending.note:
            return {}
        best, cell = runs.get(ending.best), self.cells[key].name
        links = {
            "Learning curves": trials_page(self.experiment, cell, charts=True),
            "all trials": trials_page(self.experiment, cell),
            **({"best trial": run_page(self.experiment, best)} if best else {}),
            "files": run_page(self.experiment, run_id, "artifacts"),
            "finals": finals_page(self.experiment),
            "all cells": cells_page(self.experiment),
        }
        scores, _, rest = ending.note.partition("\n\n")
        return {NOTE: f"{scores}  \n{' · '.join(f'[{name}]({page})' for name, page in links.items())}\n\n{rest}"}
