"""Which trial comes next: fair between cells, a study a cell, search before finals. Knows no Ray and no MLflow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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

STACK = 8  # trials of a cell in one worker at most: beyond it a step's cost grows with every trial (docs/log.md)

Wait = Literal["wait"]
Done = Literal["done"]


@dataclass(frozen=True)
class Proposal:
    """A trial that the planner wants run, before it is known where."""

    id: str
    number: int
    role: Role
    cell: OpenCell
    setting: dict[str, Value]
    seed: int


@dataclass
class CellProgress:
    """A cell's share of the sweep.

    Attributes:
        target: search trials planned: what was asked for, or the whole space where that is smaller.
        search, finals: what ended, by trial id.
        running: what began and has not ended.
        again: what began, was cut off or lost, and runs again before anything new.
        cut: True once the time budget ended the cell's search.
        work: how long one of its trials takes against other cells' (`work_of`).
        best: the best finished search trial so far; kept, since finding it among thousands takes a while.
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
        """A trial ended, or its record changed."""
        self.running.pop(record.id, None)
        if record.role == "search":
            is_new = record.id not in self.search
            self.search[record.id] = record
            # A new record can only beat the best one; one that changed may lose to any.
            rivals = filter(None, (record, self.best)) if is_new else self.search.values()
            self.best = best_of(rivals)
        else:
            self.finals[record.id] = record

    @property
    def begun(self) -> int:
        """Search trials that ended, run, or run again soon."""
        under_way = [*self.running.values(), *self.again]
        return len(self.search) + sum(proposal.role == "search" for proposal in under_way)

    @property
    def due_again(self) -> list[Proposal]:
        """What runs again; once the search is cut, no search trial does where the cell has a result."""
        is_over = self.cut and self.best is not None
        return [proposal for proposal in self.again if proposal.role == "final" or not is_over]

    @property
    def searched(self) -> bool:
        """Whether the search is over."""
        under_way = [*self.running.values(), *self.due_again]
        return not any(p.role == "search" for p in under_way) and (len(self.search) >= self.target or self.cut)


def stackable(cell: OpenCell) -> bool:
    """Whether trials of a cell can train side by side: one encoder for all, and none of them stopped on its own."""
    return not modes.get(cell.mode).trains_encoder and cell.space.early_stopping is None


def work_of(cell: OpenCell) -> float:
    """How long a trial of a cell takes against others of its encoder: the words that go through it, by how often.

    An encoder that trains goes forward once and back at twice the cost (Kaplan et al. 2020, section 2.1).
    """
    setting = complete(cell.space.first(), cell.mode, cell.head)
    phases = modes.get(cell.mode).phases(setting)
    passes = sum(p.epochs * (3 * cell.train_examples + cell.dev_examples) for p in phases if p.encoder_trains)
    return cell.mean_words * (passes or cell.train_examples + cell.dev_examples)


def planned_trials(cell: OpenCell, spec: SweepSpec) -> int:
    """How many search trials a cell gets: those asked for, or every point where there are fewer.

    Raises:
        ValueError: the grid searcher on a range without grid points.
    """
    if spec.searcher == "grid" or cell.space.size() is not None:
        return sum(1 for _ in itertools.islice(cell.space.points(), cell.trials))
    return cell.trials


class Planner:
    """The state of a sweep's search, built from the ledger's records and moved on by `begin` and `end`.

    Attributes:
        strays: records that are of no cell as it is now (another metric, other data or code); they never compete.
        codes: the versions of the code whose records count (`SweepFile.codes`); by default the one that runs. The first
            is part of trials' identities, so that a sweep that goes on by other code knows what it has trained.
    """

    def __init__(
        self,
        spec: SweepSpec,
        cells: Iterable[OpenCell],
        records: Iterable[TrialRecord],
        retry_failed: bool = False,
        codes: Sequence[str] = (),
    ) -> None:
        self.spec, self.retry_failed = spec, retry_failed
        self.codes = tuple(codes) or (code_version(),)
        cells = list(cells)
        past, self.strays = by_cell(records, cells, self.codes)
        self.cells = {cell.key: self._open(cell, past[cell.key]) for cell in cells}
        self.closed_for_search = False
        self.alone: set[str] = set()  # trials that are not trained beside others any more

    def counted(self) -> list[TrialRecord]:
        """The records of every cell, without those of trials that run again."""
        return [r for p in self.cells.values() for r in (*p.search.values(), *p.finals.values())]

    def _open(self, cell: OpenCell, past: list[TrialRecord]) -> CellProgress:
        target = planned_trials(cell, self.spec)
        # A cell whose test split was opened is closed: searching on could only pick a setting by its test score.
        closed = is_closed(record for record in past if record.role == "final")
        again = {r.id: r for r in past if self._runs_again(r) and (r.role == "final" or not closed)}
        kept = [record for record in past if record.id not in again]
        search = {record.id: record for record in kept if record.role == "search"}
        finals = {record.id: record for record in kept if record.role == "final"}
        study = Study(cell.space, self.spec.searcher, (self.spec.seed, *cell.key), list(search.values()))
        progress = CellProgress(cell, target, study, work_of(cell), search, finals, cut=closed)
        for record in again.values():
            if record.role == "search":  # a final is asked for anew, if its setting is the best one still
                self._expect(progress, record.id, record.number, record.setting, record.seed)
        return progress

    def _runs_again(self, record: TrialRecord) -> bool:
        """Whether a trial that ended without a result runs again; its record stays until it has another."""
        return record.is_lost or (self.retry_failed and record.status == "failed")

    def _expect(self, progress: CellProgress, trial: str, number: int, setting: dict[str, Value], seed: int) -> None:
        """Let a search trial run again."""
        progress.study.expect(trial, setting)
        progress.again.append(Proposal(trial, number, "search", progress.cell, setting, seed))

    def trial_id(self, cell: OpenCell, setting: Setting, seed: int, role: Role) -> str:
        """The identity of a trial: all that decides its numbers, and the metric that says what they are."""
        return identity({
            "encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name, "variant": cell.variant,
            **{fact: getattr(cell, fact) for fact in FACTS},
            "setting": dict(setting), "seed": seed, "role": role, "code": self.codes[0],
        })  # fmt: skip

    def recall(self, orders: Iterable[dict[str, object]]) -> None:
        """Take up trials that began before the sweep was cut off: the same settings come first again."""
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
        """The next trial; "wait" while only running trials can tell; "done" when there is nothing left."""
        for progress in self.cells.values():
            if progress.due_again:
                return self._take_again(progress, progress.due_again[0])
        return self._next_final() or self._next_search() or ("wait" if self._is_busy() else "done")

    def _take_again(self, progress: CellProgress, proposal: Proposal) -> Proposal:
        progress.again.remove(proposal)
        return proposal

    def next_together(self, slots: int, mixes_seeds: bool = False) -> list[Proposal] | Wait | Done:
        """The next trial, and those of its cell that train beside it in one worker; all of them begin.

        Args:
            slots: how many workers there are; a cell is not put on one of them where others would idle.
            mixes_seeds: whether trials of several seeds gain by training together, as they do on a GPU.
        """
        first = self.next()
        if isinstance(first, str):
            return first
        self.begin(first)
        together = [first]
        finals = STACK if mixes_seeds and stackable(first.cell) else 1
        size = finals if first.role == "final" else self.search_stack(first.cell, slots)
        size = 1 if first.id in self.alone else size
        while len(together) < size:
            other = self._next_beside(first)
            if other is None:
                break
            self.begin(other)
            together.append(other)
        return together

    def search_stack(self, cell: OpenCell, slots: int) -> int:
        """How many search trials of a cell may train together.

        TPE is told results between stacks: a quarter of the cell's trials at a time leaves it three times to learn.
        """
        if not stackable(cell):
            return 1
        target = self.cells[cell.key].target
        open_cells = sum(stackable(p.cell) and p.begun < p.target for p in self.cells.values())
        even = -(-target * max(1, open_cells) // slots)
        learning = max(STACK // 2, -(-target // 4)) if self.spec.searcher == "tpe" else STACK
        return min(STACK, even, learning)

    def _next_beside(self, first: Proposal) -> Proposal | None:
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
        """Whether nothing is left to train or to score, so that no worker need start."""
        return not self.unfinished()

    def unfinished(self) -> list[CellProgress]:
        """The cells with something left to train or to score."""
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
        """Whether a trial that was lost or damaged waits to run again."""
        return any(progress.due_again for progress in self.cells.values())

    def _is_busy(self) -> bool:
        return any(progress.running for progress in self.cells.values())

    def _next_final(self) -> Proposal | None:
        for progress in sorted(self.cells.values(), key=lambda p: -p.work):
            for proposal in self.missing_finals(progress):
                return proposal
        return None

    def missing_finals(self, progress: CellProgress) -> list[Proposal]:
        """The finals that a searched cell still lacks: its best setting, once a seed."""
        best = progress.best
        if best is None or not progress.searched:
            return []
        missing = []
        for number in range(progress.cell.seeds):
            seed = self.spec.seed + number
            trial = self.trial_id(progress.cell, best.setting, seed, "final")
            waits = any(trial == proposal.id for proposal in progress.again)
            if trial not in progress.finals and trial not in progress.running and not waits:
                missing.append(Proposal(trial, number, "final", progress.cell, dict(best.setting), seed))
        return missing

    def answer(self, progress: CellProgress, proposal: Proposal) -> TrialRecord | None:
        """The search trial that is the same run as a missing final: same setting, same seed."""
        best = progress.best
        same = best is not None and proposal.role == "final" and best.seed == proposal.seed
        return best if same else None

    def _next_search(self) -> Proposal | None:
        if self.closed_for_search:
            return None
        open_cells = [p for p in self.cells.values() if not p.cut and p.begun < p.target]
        # Fair: the least served cell first; among those the longest trials, so that none is left to the end.
        for progress in sorted(open_cells, key=lambda p: (p.begun / p.target, -p.work)):
            proposal = self._propose(progress)
            if proposal is not None:
                return proposal
        return None

    def _propose(self, progress: CellProgress) -> Proposal | None:
        cell = progress.cell

        def identify(setting: Setting) -> tuple[str, dict[str, Value]]:
            full = complete(setting, cell.mode, cell.head)
            return self.trial_id(cell, full, self.spec.seed, "search"), full

        asked = self._borrow(progress, identify) or progress.study.ask(identify)
        if asked is None:  # every point of the space has been tried
            progress.target = progress.begun
            return None
        trial, setting = asked
        return Proposal(trial, progress.begun, "search", cell, setting, self.spec.seed)

    def _borrow(self, progress: CellProgress, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        """A sibling cell's best setting, if this cell has it not tried: at most a quarter of its trials are such.

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
        """A proposal was taken up."""
        self.cells[proposal.cell.key].running[proposal.id] = proposal

    def end(self, record: TrialRecord) -> None:
        """A trial ended, however it ended."""
        progress = self.cells[record.cell]
        progress.ended(record)
        if record.role == "search":
            progress.study.tell(record)

    def abandon(self, trial: str) -> None:
        """A trial was cut off without a result; it will run again when the sweep goes on."""
        for progress in self.cells.values():
            progress.running.pop(trial, None)

    def retry(self, proposal: Proposal, alone: bool) -> None:
        """A trial was lost: it runs again, before anything new.

        Args:
            alone: whether no other trial may train beside it.
        """
        self.abandon(proposal.id)
        self.cells[proposal.cell.key].again.append(proposal)
        if alone:
            self.alone.add(proposal.id)

    def retrain(self, final: TrialRecord) -> Proposal:
        """A final's result does not count any more: it runs again, as the proposal that is given back."""
        proposal = self.proposal_of(final)
        self.cells[final.cell].finals.pop(final.id, None)
        self.retry(proposal, alone=False)
        return proposal

    def proposal_of(self, record: TrialRecord) -> Proposal:
        """The proposal that a record came of."""
        cell = self.cells[record.cell].cell
        return Proposal(record.id, record.number, record.role, cell, record.setting, record.seed)

    def close_search(self) -> None:
        """The time budget is spent: no new search trial begins, and cells with a finished trial go to their finals."""
        self.closed_for_search = True
        for progress in self.cells.values():
            if len(progress.search) < progress.target:
                progress.cut = True
