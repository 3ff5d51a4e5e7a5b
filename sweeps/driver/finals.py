"""Finals of searched cells: reuse of identical search trials, scores on test, weights of the best one.

Test splits are checked before the first trial, so that hours of search do not end at a broken file. A separate process
opens them (`tasks.core.locked`) and reports only that a split is valid, or its first fault: the driver, which
chooses settings, learns nothing else about them. The check is logged in `test_checks.jsonl` and closes no cell.

Finals of the published setting come after those of the best one. They are treated alike, but their weights are not
kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from pydantic import BaseModel

from meltpoint.adapters import modes
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.driver.running_trial import write_record
from meltpoint.sweeps.ledger.ledger import Ledger, read_lines
from meltpoint.sweeps.ledger.records import FINAL_ROLES, Role, Trial, TrialRecord
from meltpoint.sweeps.on_ray.workers import Scorer
from meltpoint.sweeps.search.cell_progress import CellProgress, is_as_alone
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.selection import best_final, finals_of
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import append_line
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.task import DataSpec


class _Look(BaseModel):
    """A line of `test_checks.jsonl`."""

    task: str
    data_fingerprint: str


def require_test_splits(ledger: Ledger, cells: Iterable[OpenCell]) -> None:
    """Check the test splits that were not checked before, and log the valid ones.

    Raises:
        ValueError: a test split cannot be read; one line with the file, the position and the remedy.
    """
    wanted = unchecked(ledger, cells)
    if not wanted:
        return
    asked = "".join(json.dumps(asdict(cell.data)) + "\n" for cell in wanted)
    words = [sys.executable, "-m", "meltpoint.tasks.core.locked"]
    done = subprocess.run(words, input=asked, capture_output=True, encoding="utf-8", check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) < len(wanted):  # killed, for example for memory: the split itself may be valid
        why = (done.stderr.strip().splitlines() or ["killed"])[-1]
        raise ValueError(f"The check of the test splits ended early: {why}; run the command again.")
    for cell, fault in zip(wanted, answers, strict=True):
        if fault:
            raise ValueError(
                f"The test split of {cell.task_name} cannot be read: {fault} The check ran before the search, so no "
                "work is lost."
            )
        line = {"task": cell.task_name, "data_fingerprint": cell.data_fingerprint, "looked_at": time.time()}
        append_line(ledger.test_checks, {**line, "found": "valid"})


def unchecked(ledger: Ledger, cells: Iterable[OpenCell]) -> list[OpenCell]:
    """One cell per task whose test split lies in files and was not checked yet with its current train and dev data.

    A generated split cannot be broken; a split carved from train or dev was read with them.
    """
    known = {(look.task, look.data_fingerprint) for look in read_lines(ledger.test_checks, _Look)}
    by_data: dict[DataSpec, OpenCell] = {cell.data: cell for cell in cells}
    return [
        cell
        for data, cell in by_data.items()
        if (cell.task_name, cell.data_fingerprint) not in known
        and not cell.task.generated
        and (sources.check(data) in ("labelled", "hidden") or (cell.task.also_test and not data.is_test_closed))
    ]


class Finals:
    """Everything about finals except training: reuse of search trials, scoring on test, removal of weights.

    Args:
        make_order: a trial → a worker's order.

    Attributes:
        trained_again: finalists that were retrained because their weights were damaged.
    """

    def __init__(
        self, planner: Planner, ledger: Ledger, tracker: Tracker, progress: Progress, scorer: Scorer,
        make_order: Callable[[Trial], Order],
    ) -> None:  # fmt: skip
        self.planner, self.ledger, self.tracker = planner, ledger, tracker
        self.progress, self.scorer, self.make_order = progress, scorer, make_order
        self.trained_again: set[str] = set()

    # Before they are trained.

    def answer(self) -> None:
        """Reuse a search trial's result for the final with the same setting and seed, which would be the same run.

        The search trial's weights become the final's.
        """
        for progress in self.planner.cells.values():
            for trial in (*self.planner.missing_finals(progress), *self.planner.missing_defaults(progress)):
                source = self.planner.answer(progress, trial)
                if source is not None and self.ledger.checkpoint(source.id).exists():
                    self._answer(trial, source)

    def _answer(self, trial: Trial, source: TrialRecord) -> None:
        self.tracker.begin(trial, source.code_version, source.started_at)
        self.ledger.move_checkpoint(source.id, trial.id)
        changes = {"id": trial.id, "role": trial.role, "number": trial.number, "answered_by": source.id}
        record = source.model_copy(update={**changes, "mlflow_run_id": None, "suggested_by": None})
        write_record(self.ledger, self.tracker, record)
        self.planner.end(record)
        self.tracker.end(record)

    def drop_losers(self, progress: CellProgress, candidates: Sequence[TrialRecord]) -> None:
        """Delete weights that no final will use; those of the best and of the published setting may become a final's.

        Args:
            candidates: the trial that ended and the previous best; the others were dropped earlier.
        """
        for record in candidates:
            # A lost trial has no weights, but perhaps saved epochs to resume from.
            if record.role == "search" and not record.is_lost and not self._may_answer(progress, record):
                self.ledger.drop_checkpoint(record.id)

    def _may_answer(self, progress: CellProgress, record: TrialRecord) -> bool:
        """True if a search trial's weights may become a final's, and have not yet."""
        is_best = progress.best is not None and record.id == progress.best.id
        is_default = bool(progress.planned_defaults) and record.id == progress.published_trial
        answered = any(final.answered_by == record.id for final in progress.finalists)
        is_its_run = is_best or (is_default and record.status == "finished")
        return is_its_run and is_as_alone(record) and not answered

    # Once they are trained.

    def score(self, timeout_seconds: float) -> bool:
        """Submit finalists for scoring and keep the scores that arrived; True while any is pending."""
        self._submit()
        for record in self.scorer.collect(timeout_seconds):
            self.keep_score(record)
        while self.scorer.damaged:
            self.train_again(*self.scorer.damaged.pop())
        return self.scorer.pending

    def _submit(self) -> None:
        """Submit a cell's finals for scoring once all of them are trained: together if they share the encoder."""
        for progress in self.planner.cells.values():
            for role in FINAL_ROLES:
                new = [final for final in self._trained(progress, role) if final.id not in self.scorer.submitted]
                together = [new] if not modes.get(progress.cell.mode).trains_encoder else [[final] for final in new]
                for group in filter(None, together):
                    self.scorer.submit([self.order_of(final) for final in group], group)

    def _trained(self, progress: CellProgress, role: Role) -> list[TrialRecord]:
        """The finals of a role that await their scores; empty until all of them are trained."""
        under_way = [*progress.running.values(), *progress.again]
        if not progress.searched or any(p.role == role for p in under_way) or self.planner.missing(progress, role):
            return []
        setting = progress.published if role == "default" else progress.best and progress.best.setting
        unscored = [record for record in progress.unscored if record.role == role and record.setting == setting]
        return sorted(unscored, key=lambda record: record.seed)

    def order_of(self, final: TrialRecord) -> Order:
        """The order to score a final, on the same test split as the other finals of its task."""
        order = self.make_order(final)
        # Evaluate as in training, whatever memory limits were learned since.
        memory = {name: getattr(final, name) for name in ("micro_batch_size", "gradient_checkpointing")}
        known = {**memory, "ceilings": {}, "plain_ceilings": {}}
        return order.model_copy(update={"test_fingerprint": self._test_of(final), **known})

    def _test_of(self, record: TrialRecord) -> str:
        """The fingerprint of the test split that finals like this one were scored on; "" if none was yet."""
        alike = [p.finalists for p in self.planner.cells.values() if p.cell.task_name == record.task]
        known = (
            final.test_fingerprint for finals in alike for final in finals
            if final.id != record.id and bool(final.documents_fingerprint) == bool(record.documents_fingerprint)
        )  # fmt: skip
        return next(filter(None, known), "")

    def keep_score(self, record: TrialRecord) -> None:
        """Record a finalist that came back with its test scores; keep only the best final's weights."""
        before = self._test_of(record)
        if before and record.test_fingerprint not in (None, before):  # scored at the same time, so neither order had it
            self.scorer.troubles[record.id] = "the test split changed while finals were scored; restore the old one"
            return
        write_record(self.ledger, self.tracker, record)
        self.planner.end(record)
        self.tracker.end(record)
        if record.role == "default":
            self.ledger.drop_checkpoint(record.id)
            return
        progress = self.planner.cells[record.cell]
        finals = finals_of(progress.best, progress.finals.values())
        if all(final.test is not None for final in finals):
            keep = best_final(finals)
            for final in progress.finals.values():  # also those of a former best setting
                if (keep is None or final.id != keep.id) and not final.is_lost:  # which resumes from its saved epochs
                    self.ledger.drop_checkpoint(final.id)

    def train_again(self, final: TrialRecord, why: str) -> None:
        """Retrain a finalist whose weights do not match its record, once per command; it is scored afterwards."""
        if final.id in self.trained_again:
            self.scorer.troubles[final.id] = f"{why}, even after it was retrained"
            self.scorer.submitted.add(final.id)
            return
        self.trained_again.add(final.id)
        self.ledger.drop_checkpoint(final.id)
        self.planner.retrain(final)
        self.progress.lost(final, f"{why}; retraining it")
