"""The planner of a sweep: chooses the next trial fairly between cells, from one study per cell, then finals over seeds.

It imports neither Ray nor MLflow.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.ledger.records import CELL, FACTS, Role, TrialRecord, by_cell, cell_key, identity
from meltpoint.sweeps.search.closing import is_closed
from meltpoint.sweeps.search.selection import best_of
from meltpoint.sweeps.search.study import Identify, Study
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

LARGEST_BUNDLE = 8  # most trials in one bundle: beyond, a step's cost grows with each trial (docs/log.md)

Wait = Literal["wait"]
Done = Literal["done"]


@dataclass(frozen=True)
class Proposal:
    """A trial that the planner proposes: `id` is its identity, `number` counts the cell's trials of its role."""

    id: str
    number: int
    role: Role
    cell: OpenCell
    setting: dict[str, Value]
    seed: int


@dataclass
class CellProgress:
    """The progress of a cell.

    Attributes:
        cell: the cell.
        target: number of planned search trials: `--trials`, or the number of points of a smaller space.
        study: the cell's searcher.
        work: relative duration of one of its trials (`work_of`).
        search, finals: trial id → record, of trials that ended.
        running: trial id → proposal, of trials that have begun and not ended.
        again: interrupted or lost trials, which run again before any new one.
        cut: whether the search ended before `target`, by the time budget or because the cell is closed.
        best: the best finished search trial so far; stored, since searching thousands of records for it takes time.
    """

    cell: OpenCell
    target: int
    study: Study
    work: float
    search: dict[str, TrialRecord] = field(default_factory=dict)
    finals: dict[str, TrialRecord] = field(default_factory=dict)
    running: dict[str, Proposal] = field(default_factory=dict)
    again: list[Proposal] = field(default_factory=list)
    cut: bool = False
    best: TrialRecord | None = field(init=False)

    def __post_init__(self) -> None:
        self.best = best_of(self.search.values())

    def ended(self, record: TrialRecord) -> None:
        """Add the record of a trial that ended, or replace a changed one."""
        self.running.pop(record.id, None)
        if record.role == "search":
            is_new = record.id not in self.search
            self.search[record.id] = record
            # A new record is compared with the best one only; after a change, any other record may be the best.
            rivals = filter(None, (record, self.best)) if is_new else self.search.values()
            self.best = best_of(rivals)
        else:
            self.finals[record.id] = record

    @property
    def begun(self) -> int:
        """The number of search trials that have ended, are running, or will run again."""
        under_way = [*self.running.values(), *self.again]
        return len(self.search) + sum(proposal.role == "search" for proposal in under_way)

    @property
    def due_again(self) -> list[Proposal]:
        """The trials that run again. Search trials do not, once the search is cut and the cell has a result."""
        is_over = self.cut and self.best is not None
        return [proposal for proposal in self.again if proposal.role == "final" or not is_over]

    @property
    def searched(self) -> bool:
        """True if the search is over."""
        under_way = [*self.running.values(), *self.due_again]
        return not any(p.role == "search" for p in under_way) and (len(self.search) >= self.target or self.cut)


def can_bundle(cell: OpenCell) -> bool:
    """True if trials of a cell can train as a bundle: the encoder is frozen, and there is no early stopping."""
    return not modes.get(cell.mode).trains_encoder and cell.space.early_stopping is None


def work_of(cell: OpenCell) -> float:
    """The relative duration of a cell's trial among cells of one encoder: pieces × passes through the encoder.

    A training step counts as three forward passes, since a backward pass costs twice as much as a forward pass (Kaplan
    et al. 2020, section 2.1).
    """
    setting = complete(cell.space.first(), cell.mode, cell.head)
    phases = modes.get(cell.mode).phases(setting)
    passes = sum(p.epochs * (3 * cell.train_examples + cell.dev_examples) for p in phases if p.encoder_trains)
    return cell.length.mean * (passes or cell.train_examples + cell.dev_examples)


def planned_trials(cell: OpenCell, spec: SweepSpec) -> int:
    """The number of search trials of a cell: `--trials`, or the number of points of a smaller space.

    Raises:
        ValueError: the grid searcher is used with a range without grid points.
    """
    if spec.searcher == "grid" or cell.space.size() is not None:
        return sum(1 for _ in itertools.islice(cell.space.points(), cell.trials))
    return cell.trials


class Planner:
    """The state of a sweep's search, built from the ledger's records and updated by `begin` and `end`.

    Attributes:
        strays: records that belong to no cell as it is now (another metric, other data or code); they are ignored.
        closed_for_search: whether the time budget is spent.
        alone: ids of trials that no longer train in a bundle.
        codes: the versions of the code whose records count; the first of them is part of trials' identities.
        opened: ids of the finals for which a test split was opened; their cells are closed.
    """

    def __init__(
        self, spec: SweepSpec, cells: Iterable[OpenCell], records: Iterable[TrialRecord], retry_failed: bool = False,
        codes: Sequence[str] = (), opened: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.spec, self.retry_failed, self.opened = spec, retry_failed, opened
        self.codes = tuple(codes) or (code_version(),)
        past, self.strays = by_cell(records, cells := list(cells), self.codes)
        self.cells = {cell.key: self._open(cell, past[cell.key]) for cell in cells}
        self.closed_for_search = False
        self.alone: set[str] = set()

    def counted(self) -> list[TrialRecord]:
        """The records of every cell, without those of trials that run again."""
        return [r for p in self.cells.values() for r in (*p.search.values(), *p.finals.values())]

    def _open(self, cell: OpenCell, past: list[TrialRecord]) -> CellProgress:
        """The progress of a cell according to its records."""
        target = planned_trials(cell, self.spec)
        closed = is_closed([record for record in past if record.role == "final"], self.opened)
        again = {r.id: r for r in past if self._runs_again(r) and (r.role == "final" or not closed)}
        kept = [record for record in past if record.id not in again]
        search = {record.id: record for record in kept if record.role == "search"}
        finals = {record.id: record for record in kept if record.role == "final"}
        study = Study(cell.space, self.spec.searcher, (self.spec.seed, *cell.key), list(search.values()))
        progress = CellProgress(cell, target, study, work_of(cell), search, finals, cut=closed)
        for record in again.values():
            if record.role == "search":  # `missing_finals` proposes finals again if their setting is still the best
                self._expect(progress, record.id, record.number, record.setting, record.seed)
        return progress

    def _runs_again(self, record: TrialRecord) -> bool:
        """True if a trial that ended without a result runs again; its record is kept until a new one replaces it."""
        return record.is_lost or (self.retry_failed and record.status == "failed")

    def _expect(self, progress: CellProgress, trial: str, number: int, setting: dict[str, Value], seed: int) -> None:
        """Queue a search trial to run again."""
        progress.study.expect(trial, setting)
        progress.again.append(Proposal(trial, number, "search", progress.cell, setting, seed))

    def trial_id(self, cell: OpenCell, setting: Setting, seed: int, role: Role) -> str:
        """The identity of a trial: a digest of everything that determines its numbers, and of the metric."""
        return identity({
            "encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name, "variant": cell.variant,
            **{fact: getattr(cell, fact) for fact in FACTS},
            "setting": dict(setting), "seed": seed, "role": role, "code": self.codes[0],
        })  # fmt: skip

    def recall(self, orders: Iterable[dict[str, object]]) -> None:
        """Queue the search trials that began before the sweep was interrupted, so that they run first."""
        for order in orders:
            progress = self.cells.get(cell_key(*(str(order.get(word, "")) for word in CELL)))
            setting = dict(order["setting"])  # type: ignore[call-overload]
            seed, role = int(str(order["seed"])), "final" if order["role"] == "final" else "search"
            if progress is None or self.trial_id(progress.cell, setting, seed, role) != order["id"]:  # type: ignore[arg-type]
                continue
            trial, is_closed = str(order["id"]), progress.cut
            known = trial in progress.search or any(trial == proposal.id for proposal in progress.again)
            if role == "search" and not known and not is_closed:
                self._expect(progress, trial, int(str(order["number"])), setting, seed)

    def next(self) -> Proposal | Wait | Done:
        """The next trial; "wait" if it depends on running trials; "done" if there is none left."""
        for progress in self.cells.values():
            if progress.due_again:
                return self._take_again(progress, progress.due_again[0])
        return self._next_final() or self._next_search() or ("wait" if self._is_busy() else "done")

    def _take_again(self, progress: CellProgress, proposal: Proposal) -> Proposal:
        """Remove a trial from the queue of those that run again, and return it."""
        progress.again.remove(proposal)
        return proposal

    def next_together(self, slots: int, mixes_seeds: bool = False) -> list[Proposal] | Wait | Done:
        """The next trial and further trials of its cell that train with it as a bundle; marks all of them as begun.

        Args:
            slots: number of workers; bundles are kept small enough that no worker idles.
            mixes_seeds: whether bundles of different seeds are faster than single trials, as on a GPU.
        """
        first = self.next()
        if isinstance(first, str):
            return first
        self.begin(first)
        together = [first]
        finals = LARGEST_BUNDLE if mixes_seeds and can_bundle(first.cell) else 1
        size = finals if first.role == "final" else self.search_bundle(first.cell, slots)
        size = 1 if first.id in self.alone else size
        while len(together) < size:
            other = self._next_beside(first)
            if other is None:
                break
            self.begin(other)
            together.append(other)
        return together

    def search_bundle(self, cell: OpenCell, slots: int) -> int:
        """The largest number of search trials of a cell in one bundle.

        TPE learns of results only between bundles. With a quarter of the cell's trials per bundle, it does three times.
        """
        if not can_bundle(cell):
            return 1
        target = self.cells[cell.key].target
        open_cells = sum(can_bundle(p.cell) and p.begun < p.target for p in self.cells.values())
        even = -(-target * max(1, open_cells) // slots)
        learning = max(LARGEST_BUNDLE // 2, -(-target // 4)) if self.spec.searcher == "tpe" else LARGEST_BUNDLE
        return min(LARGEST_BUNDLE, even, learning)

    def _next_beside(self, first: Proposal) -> Proposal | None:
        """The next trial of the same cell and role, to train in a bundle with `first`; None if there is none."""
        progress = self.cells[first.cell.key]
        due = (p for p in progress.due_again if p.role == first.role and p.id not in self.alone)
        again = next(due, None)
        if again is not None:
            return self._take_again(progress, again)
        if first.role == "final":
            return next(iter(self.missing_finals(progress)), None)
        if self.closed_for_search or progress.cut or progress.begun >= progress.target:
            return None
        return self._propose(progress)

    def is_complete(self) -> bool:
        """True if nothing is left to train or to score, so that no worker needs to start."""
        return not self.unfinished()

    def unfinished(self) -> list[CellProgress]:
        """The cells with trials left to train or to score."""
        return [progress for progress in self.cells.values() if not self._is_finished(progress)]

    def _is_finished(self, progress: CellProgress) -> bool:
        return (
            progress.searched
            and not progress.running
            and not progress.due_again
            and not self.missing_finals(progress)
            and all(f.test is not None for f in progress.finals.values() if f.status == "finished")
        )

    def has_work_again(self) -> bool:
        """True if a lost or interrupted trial is queued to run again."""
        return any(progress.due_again for progress in self.cells.values())

    def _is_busy(self) -> bool:
        return any(progress.running for progress in self.cells.values())

    def _next_final(self) -> Proposal | None:
        """The next final, of the cell with the longest trials."""
        for progress in sorted(self.cells.values(), key=lambda p: -p.work):
            for proposal in self.missing_finals(progress):
                return proposal
        return None

    def missing_finals(self, progress: CellProgress) -> list[Proposal]:
        """The finals that a searched cell still lacks: its best setting, once per seed."""
        best = progress.best
        if best is None or not progress.searched:
            return []
        missing = []
        for number in range(progress.cell.seeds):
            seed = self.spec.seed + number
            trial = self.trial_id(progress.cell, best.setting, seed, "final")
            is_queued = any(trial == proposal.id for proposal in progress.again)
            if trial not in progress.finals and trial not in progress.running and not is_queued:
                missing.append(Proposal(trial, number, "final", progress.cell, dict(best.setting), seed))
        return missing

    def answer(self, progress: CellProgress, proposal: Proposal) -> TrialRecord | None:
        """The search trial with the same setting and seed as a final, which then need not run; else None."""
        best = progress.best
        same = best is not None and proposal.role == "final" and best.seed == proposal.seed
        return best if same else None

    def _next_search(self) -> Proposal | None:
        """The next search trial, of the cell with the smallest share of its trials begun."""
        if self.closed_for_search:
            return None
        open_cells = [p for p in self.cells.values() if not p.cut and p.begun < p.target]
        # Among cells with equal shares the longest trials come first, so that none of them is left for the end.
        for progress in sorted(open_cells, key=lambda p: (p.begun / p.target, -p.work)):
            proposal = self._propose(progress)
            if proposal is not None:
                return proposal
        return None

    def _propose(self, progress: CellProgress) -> Proposal | None:
        """A new search trial of a cell; None if every point of its space was tried."""
        cell = progress.cell

        def identify(setting: Setting) -> tuple[str, dict[str, Value]]:
            full = complete(setting, cell.mode, cell.head)
            return self.trial_id(cell, full, self.spec.seed, "search"), full

        asked = self._borrow(progress, identify) or progress.study.ask(identify)
        if asked is None:
            progress.target = progress.begun
            return None
        trial, setting = asked
        return Proposal(trial, progress.begun, "search", cell, setting, self.spec.seed)

    def _borrow(self, progress: CellProgress, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        """The best setting of a cell with the same encoder, mode and head, if it was not tried in this cell; or None.

        At most a quarter of a cell's trials are borrowed.
        Peters, Ruder & Smith 2019, section 5: "once tuned for one task, other tasks have similar hyper-parameters".
        """
        study, cell = progress.study, progress.cell
        if self.spec.searcher == "grid" or not study.seen or study.borrowed >= progress.target // 4:
            return None
        like = (cell.encoder, cell.mode, cell.head)
        siblings = [p for p in self.cells.values() if (p.cell.encoder, p.cell.mode, p.cell.head) == like]
        winners = [p.best.setting for p in siblings if p is not progress and p.best is not None]
        return next((taken for setting in winners if (taken := study.borrow(setting, identify)) is not None), None)

    def begin(self, proposal: Proposal) -> None:
        """Mark a proposal as running."""
        self.cells[proposal.cell.key].running[proposal.id] = proposal

    def end(self, record: TrialRecord) -> None:
        """Record the end of a trial, with or without a result; the record stays in memory."""
        progress = self.cells[record.cell]
        progress.ended(record)
        if record.role == "search":
            progress.study.tell(record)

    def abandon(self, trial: str) -> None:
        """Unmark a trial that was interrupted without a result; it runs again when the sweep continues."""
        for progress in self.cells.values():
            progress.running.pop(trial, None)

    def retry(self, proposal: Proposal, alone: bool) -> None:
        """Queue a lost trial to run again, before any new one.

        Args:
            proposal: the trial.
            alone: whether it may no longer train in a bundle.
        """
        self.abandon(proposal.id)
        self.cells[proposal.cell.key].again.append(proposal)
        if alone:
            self.alone.add(proposal.id)

    def retrain(self, final: TrialRecord) -> Proposal:
        """Discard a final's result and queue it to run again; returns its proposal."""
        proposal = self.proposal_of(final)
        self.cells[final.cell].finals.pop(final.id, None)
        self.retry(proposal, alone=False)
        return proposal

    def proposal_of(self, record: TrialRecord) -> Proposal:
        """The proposal of the trial that a record describes."""
        cell = self.cells[record.cell].cell
        return Proposal(record.id, record.number, record.role, cell, record.setting, record.seed)

    def close_search(self) -> None:
        """End the search when the time budget is spent; cells with a finished trial continue with their finals."""
        self.closed_for_search = True
        for progress in self.cells.values():
            if len(progress.search) < progress.target:
                progress.cut = True
