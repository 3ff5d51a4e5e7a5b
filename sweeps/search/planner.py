"""The planner of a sweep: chooses the next trial fairly between cells, from one study per cell, then finals over seeds.

Imports neither Ray nor MLflow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.ledger.records import (
    CELL,
    FACTS,
    Role,
    Trial,
    TrialRecord,
    by_cell,
    cell_key,
    facts_of,
    identity,
)
from meltpoint.sweeps.search.cell_progress import (
    CellProgress,
    can_bundle,
    default_seeds,
    is_as_alone,
    planned_trials,
    work_of,
)
from meltpoint.sweeps.search.early_ends import check_searches
from meltpoint.sweeps.search.locked_test import FIRST_ROUND, TestRounds, is_closed
from meltpoint.sweeps.search.study import Identify, Study, Suggestion
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import MODELS
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

LARGEST_BUNDLE = 8  # most trials in one bundle: beyond, a step's cost grows with each trial (docs/internals/log.md)

Wait = Literal["wait"]
Done = Literal["done"]


class Planner:
    """The state of a sweep's search, built from the ledger's records and updated by `begin` and `end`.

    Attributes:
        strays: records that belong to no current cell (different metric, data or code); they are ignored.
        closed_for_search: whether the time budget is spent.
        gpus: number of GPUs that trials run on (`on_ray.placement.place`).
        cheapest_first: whether cells with short trials come first, so that a short budget gives at least some results.
        alone: ids of trials that no longer train in a bundle.
        codes: the code versions whose records count; the first one is part of trials' identities.
        opened: ids of the finalists for which a test split was opened; their cells are closed.
        rounds: the test rounds, which reopen closed cells.
    """

    def __init__(
        self, spec: SweepSpec, cells: Iterable[OpenCell], records: Iterable[TrialRecord], retry_failed: bool = False,
        codes: Sequence[str] = (), opened: Collection[str] = (), rounds: TestRounds = FIRST_ROUND,
    ) -> None:  # fmt: skip
        self.spec, self.retry_failed, self.opened, self.rounds = spec, retry_failed, opened, rounds
        self.codes = tuple(codes) or (code_version(),)
        cells = list(cells)
        past, self.strays = by_cell(records, {cell.key: facts_of(cell) for cell in cells}, self.codes)
        self.cells = {cell.key: self._open(cell, past[cell.key]) for cell in cells}
        self.closed_for_search = self.cheapest_first = False
        self.gpus = 0
        self.alone: set[str] = set()
        self._check_searches()

    def counted(self) -> list[TrialRecord]:
        """The records of every cell, without those of trials that run again."""
        return [r for p in self.cells.values() for r in (*p.search.values(), *p.finalists)]

    def _open(self, cell: OpenCell, past: list[TrialRecord]) -> CellProgress:
        """The progress of a cell according to its records."""
        closed = is_closed(past, self.opened, self.rounds.last.get(cell.key))
        # Trials that ended without a result run again; their records are kept until new ones replace them.
        failed = [r for r in past if r.is_lost or (self.retry_failed and r.status == "failed")]
        again = {r.id: r for r in failed if r.role != "search" or not closed}
        kept: dict[Role, dict[str, TrialRecord]] = {"search": {}, "final": {}, "default": {}}
        for record in past:
            if record.id not in again:
                kept[record.role][record.id] = record
        study = Study(cell.space, cell.searcher, (self.spec.seed, *cell.key), list(kept["search"].values()))
        published = complete(cell.space.first(), cell.mode, cell.head, cell.task.kind)
        progress = CellProgress(
            cell, planned_trials(cell), study, work_of(cell), kept["search"], kept["final"], kept["default"],
            cut=closed, published=published,
            planned_defaults=self._over_seeds(cell, published, default_seeds(cell, self.spec), "default"),
            published_trial=self.trial_id(cell, published, self.spec.seed, "search"),
        )  # fmt: skip
        for record in again.values():
            if record.role == "search":  # `missing_finals` proposes finals again if their setting is still the best
                self._expect(progress, Trial.of(record))
        return progress

    def _over_seeds(self, cell: OpenCell, setting: Setting, count: int, role: Role) -> tuple[Trial, ...]:
        """The finals of a setting, once per seed."""
        seeds = range(self.spec.seed, self.spec.seed + count)
        trials = [(self.trial_id(cell, setting, seed, role), seed) for seed in seeds]
        return tuple(cell.trial(one, n, role, setting, seed) for n, (one, seed) in enumerate(trials))

    def _expect(self, progress: CellProgress, trial: Trial) -> None:
        """Queue a search trial to run again."""
        progress.study.expect(trial.id, trial.setting, trial.suggested_by)
        progress.again.append(trial)

    def trial_id(self, cell: OpenCell, setting: Setting, seed: int, role: Role) -> str:
        """The identity of a trial: a digest of everything that determines its scores, and of the metric."""
        return identity({
            "encoder": cell.encoder, "mode": cell.mode, "task": cell.task_name, "variant": cell.variant,
            **{fact: getattr(cell, fact) for fact in FACTS},
            "setting": dict(setting), "seed": seed, "role": role, "code": self.codes[0],
        })  # fmt: skip

    def recall(self, orders: Iterable[dict[str, object]]) -> None:
        """Queue the search trials that began before the sweep was interrupted, so that they run first."""
        for order in orders:
            progress = self.cells.get(cell_key(*(str(order.get(word, "")) for word in CELL)))
            if progress is None or order["role"] != "search" or progress.cut:
                continue
            begun = Trial.model_validate(order)
            known = begun.id in progress.search or any(begun.id == trial.id for trial in progress.again)
            if not known and self.trial_id(progress.cell, begun.setting, begun.seed, "search") == begun.id:
                self._expect(progress, begun)

    def next(self) -> Trial | Wait | Done:
        """The next trial; "wait" if it depends on running trials; "done" if there is none left."""
        for progress in self.cells.values():
            if progress.due_again:
                return self._take_again(progress, progress.due_again[0])
        is_busy = any(progress.running for progress in self.cells.values())
        return self._next_final() or self._next_search() or ("wait" if is_busy else "done")

    def _take_again(self, progress: CellProgress, trial: Trial) -> Trial:
        """Remove a trial from the queue of those that run again, and return it."""
        progress.again.remove(trial)
        return trial

    def next_together(self, slots: int) -> list[Trial] | Wait | Done:
        """The next trial and further trials of its cell that train with it as a bundle; marks all of them as begun.

        Args:
            slots: number of workers; bundles are kept small enough that no worker idles.
        """
        first = self.next()
        if isinstance(first, str):
            return first
        self.begin(first)
        together, cell = [first], self.cells[first.cell].cell
        size = 1 if first.role != "search" else self.search_bundle(cell, slots)
        size = 1 if first.id in self.alone else size
        while len(together) < size:
            other = self._next_beside(first)
            if other is None:
                break
            self.begin(other)
            together.append(other)
        return together

    def search_bundle(self, cell: OpenCell, slots: int) -> int:
        """The largest number of search trials of a cell in one bundle, so that no GPU idles or, without, no worker.

        A model sees new results only between bundles: of 8 trials once, of 16 or more three times.
        """
        if not can_bundle(cell, self.gpus):
            return 1
        target = self.cells[cell.key].target
        open_cells = sum(can_bundle(p.cell, self.gpus) and p.may_begin for p in self.cells.values())
        even = -(-target * max(1, open_cells) // (self.gpus or slots))
        learning = max(LARGEST_BUNDLE // 2, -(-target // 4)) if cell.searcher in MODELS else LARGEST_BUNDLE
        return min(LARGEST_BUNDLE, even, learning)

    def _next_beside(self, first: Trial) -> Trial | None:
        """The next search trial of a cell, to train in a bundle with `first`; None if there is none."""
        progress = self.cells[first.cell]
        due = (p for p in progress.due_again if p.role == "search" and p.id not in self.alone)
        again = next(due, None)
        if again is not None:
            return self._take_again(progress, again)
        if self.closed_for_search or not progress.may_begin:
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
            and not self.missing_defaults(progress)
            and not progress.unscored
        )

    def has_work_again(self) -> bool:
        """True if a lost or interrupted trial is queued to run again."""
        return any(progress.due_again for progress in self.cells.values())

    def _next_final(self) -> Trial | None:
        """The next final, of the cell with the longest trials."""
        for progress in sorted(self.cells.values(), key=lambda p: -p.work):
            for trial in (*self.missing_finals(progress), *self.missing_defaults(progress)):
                return trial
        return None

    def missing(self, progress: CellProgress, role: Role) -> list[Trial]:
        """The finals of the best setting, or of the published one, that a searched cell still lacks."""
        return self.missing_defaults(progress) if role == "default" else self.missing_finals(progress)

    def missing_finals(self, progress: CellProgress) -> list[Trial]:
        """The finals that a searched cell still lacks: its best setting, once per seed."""
        best = progress.best
        if best is None or not progress.searched:
            return []
        if progress.planned_for != best.id:  # called several times a second for every cell; an identity is a hash
            progress.planned_for = best.id
            progress.planned_finals = self._over_seeds(progress.cell, best.setting, progress.cell.seeds, "final")
        known = {*progress.finals, *progress.running, *(trial.id for trial in progress.again)}
        planned = progress.planned_finals[:1] if progress.finals_cut else progress.planned_finals
        return [trial for trial in planned if trial.id not in known]

    def missing_defaults(self, progress: CellProgress) -> list[Trial]:
        """The finals of its published setting that a searched cell still lacks."""
        if progress.best is None or not progress.searched:
            return []
        known = {*progress.defaults, *progress.running, *(trial.id for trial in progress.again)}
        return [trial for trial in progress.wanted_defaults if trial.id not in known]

    def answer(self, progress: CellProgress, trial: Trial) -> TrialRecord | None:
        """The search trial with the same setting and seed as a final, which then need not run; else None."""
        source = progress.best if trial.role == "final" else progress.search.get(progress.published_trial)
        same = source is not None and source.status == "finished" and source.seed == trial.seed
        return source if source is not None and same and is_as_alone(source) else None

    def _next_search(self) -> Trial | None:
        """The next search trial, of the cell with the smallest share of its trials begun."""
        if self.closed_for_search:
            return None
        open_cells = [p for p in self.cells.values() if p.may_begin]
        # Among cells with equal shares the longest trials come first, so that none of them is left for the end.
        sign = 1 if self.cheapest_first else -1
        for progress in sorted(open_cells, key=lambda p: (p.begun / p.target, sign * p.work)):
            trial = self._propose(progress)
            if trial is not None:
                return trial
        return None

    def _propose(self, progress: CellProgress) -> Trial | None:
        """A new search trial of a cell; None if every point of its space was tried."""
        cell = progress.cell

        def identify(setting: Setting) -> tuple[str, dict[str, Value]]:
            full = complete(setting, cell.mode, cell.head, cell.task.kind)
            return self.trial_id(cell, full, self.spec.seed, "search"), full

        asked = self._borrow(progress, identify) or progress.study.ask(identify)
        if asked is None:
            progress.planned = progress.begun
            self._check_searches()
            return None
        return cell.trial(asked.trial, progress.free_number, "search", asked.setting, self.spec.seed, asked.by)

    def _borrow(self, progress: CellProgress, identify: Identify) -> Suggestion | None:
        """The best setting of a sibling, if it was not tried in this cell; or None.

        Siblings are cells of the same mode and head: first those of the same task on other encoders, whose settings
        rank alike (Spearman 0.9 on MNLI: docs/internals/log.md), then those of the same encoder on other tasks (Peters,
        Ruder & Smith 2019, section 5: "once tuned for one task, other tasks have similar hyper-parameters").
        At most a quarter of a cell's trials are borrowed, and only with a model: random trials must remain a sample of
        the space, of a size fixed before any result.
        """
        study, cell = progress.study, progress.cell
        if cell.searcher not in MODELS or not study.seen or study.borrowed >= progress.target // 4:
            return None
        like = [p for p in self.cells.values() if (p.cell.mode, p.cell.head) == (cell.mode, cell.head)]
        siblings = [p for p in like if p.cell.task_name == cell.task_name and p.cell.encoder != cell.encoder]
        siblings += [p for p in like if p.cell.encoder == cell.encoder and p is not progress]
        winners = [p.best.setting for p in siblings if p.best is not None]
        return next((taken for setting in winners if (taken := study.borrow(setting, identify)) is not None), None)

    def begin(self, trial: Trial) -> None:
        """Mark a trial as running."""
        self.cells[trial.cell].running[trial.id] = trial

    def end(self, record: TrialRecord) -> list[CellProgress]:
        """Record the end of a trial, with or without a result; the record stays in memory.

        Returns:
            The cells whose searches end early because of it.
        """
        progress = self.cells[record.cell]
        progress.ended(record)
        if record.role != "search":
            return []
        progress.study.tell(record)
        return self._check_searches()

    def _check_searches(self) -> list[CellProgress]:
        """End the searches that the results end early, and set the others' limits; return those that ended now."""
        spec, ended = self.spec, []
        if not (spec.race or spec.auto_trials):
            return []
        entrants = [progress.entrant() for progress in self.cells.values()]
        checked = check_searches(entrants, spec.race, spec.auto_trials, spec.margin)
        for key, progress in self.cells.items():
            before, progress.early_end = progress.early_end, checked.ends.get(key)
            progress.limit = checked.limits.get(key)
            if progress.early_end is not None and before is None:
                ended.append(progress)
        return ended

    def abandon(self, trial: str) -> None:
        """Unmark a trial that was interrupted without a result; it runs again when the sweep continues."""
        for progress in self.cells.values():
            progress.running.pop(trial, None)

    def retry(self, trial: Trial, alone: bool) -> None:
        """Queue a lost trial to run again, before any new one.

        Args:
            alone: whether it may no longer train in a bundle.
        """
        self.abandon(trial.id)
        self.cells[trial.cell].again.append(Trial.of(trial))
        if alone:
            self.alone.add(trial.id)

    def retrain(self, final: TrialRecord) -> None:
        """Discard a final's result and queue it to run again."""
        for ended in (self.cells[final.cell].finals, self.cells[final.cell].defaults):
            ended.pop(final.id, None)
        self.retry(final, alone=False)

    def close_search(self) -> None:
        """End the search when the time budget is spent; cells with a finished trial continue with their finals."""
        self.closed_for_search = True
        for progress in self.cells.values():
            if len(progress.search) < progress.target:
                progress.cut = True
