"""The summary of a sweep, computed only from its ledger: each cell's counts, best setting and finals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.sweeps.ledger.driver_notes import ClusterPart, RunningTrials, noted
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CELL, CellKey, Role, TrialRecord, by_cell, cell_key, facts_of
from meltpoint.sweeps.results.cost import (
    CellCost,
    CellWork,
    TimeLeft,
    cell_cost,
    finals_left,
    is_typical,
    time_left,
    trials_at_a_time,
    worker_seconds,
)
from meltpoint.sweeps.results.kept_results import Baseline, Ensemble, read_baselines, read_ensembles
from meltpoint.sweeps.results.sweep_file import CellHeader, CodeUse, Growth, SweepFile, code_uses, read_sweep
from meltpoint.sweeps.search.early_ends import EarlyEnd, check_searches
from meltpoint.sweeps.search.locked_test import Closing, ClosingLogs, SplitOpening, TestRounds, closing_of, read_rounds
from meltpoint.sweeps.search.selection import (
    Spread,
    best_final,
    best_of,
    default_finals_of,
    finals_of,
    spread_on_dev,
    spread_on_test,
)
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.wording import some

ENDED = ("finished", "stopped", "failed")
State = Literal["running", "done", "stopped", "failed"]


@dataclass(frozen=True)
class CellSummary:
    """A cell's results.

    Attributes:
        header: the cell's entry in `sweep.json`.
        counts: numbers of planned, finished, stopped, failed, running and missing search trials; planned are those of
            `early_end` if the search ended early.
        best: the best finished search trial, or None.
        finals: the finished finals of that setting, by seed.
        dev, test: mean and deviation over the finals' seeds; None if there are none (yet), or the labels are hidden.
        errors: one line per failed trial.
        lost: number of search trials that ended without a result for reasons other than their setting.
        failed_finals: the finals that ended without a result.
        closing: how the search was closed; None if it is open.
        code_uses: the versions of the code that ran its search trials and finals, earliest first.
        search: its ended search trials, in the order in which they started.
        default_finals: the finished finals of the published setting, by seed; equal to `finals` if that is the best.
        default_dev, default_test: as `dev` and `test`, for `default_finals`.
        default_seeds: number of planned finals of the published setting; 0 if they are not planned, or that setting
            is the best one.
        failed_defaults: the finals of the published setting that ended without a result.
        records: all its records, including finals of earlier best settings; its `cost` is computed from them.
        early_end: the end of its search by a check (`search.early_ends`), or None.
        test_round: the number of its search's test round; above 1, test scores were known before the search ended.
    """

    header: CellHeader
    counts: dict[str, int]
    best: TrialRecord | None
    finals: list[TrialRecord]
    dev: Spread | None
    test: Spread | None
    errors: list[str] = field(default_factory=list)
    lost: int = 0
    failed_finals: list[TrialRecord] = field(default_factory=list)
    closing: Closing | None = None
    code_uses: tuple[CodeUse, ...] = ()
    search: list[TrialRecord] = field(default_factory=list)
    default_finals: list[TrialRecord] = field(default_factory=list)
    default_dev: Spread | None = None
    default_test: Spread | None = None
    default_seeds: int = 0
    failed_defaults: list[TrialRecord] = field(default_factory=list)
    records: list[TrialRecord] = field(default_factory=list)
    test_round: int = 1
    early_end: EarlyEnd | None = None

    def __repr__(self) -> str:
        """Its key, counts and scores, without its records."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        test = "" if self.test is None else f", test {self.test.mean:.4f}"
        return f"CellSummary({'.'.join(self.header.key)}: {counts}; {some(len(self.finals), 'final')}{test})"

    @property
    def name(self) -> str:
        """Its name in files, E.M.T, or E.M.T.VARIANT."""
        return cell_name(*self.header.key)

    @cached_property
    def seconds(self) -> float:
        """Training time of all its trials; finals that reuse a search trial's result are not counted."""
        return worker_seconds(self.records)

    @cached_property
    def cost(self) -> CellCost:
        """The cost of all its trials, computed on demand because it reads the finals' epochs."""
        return cell_cost(self.records, self.best, self.finals)

    @property
    def mixes_code(self) -> bool:
        """True if several versions of the code ran its trials."""
        return len(self.code_uses) > 1

    @property
    def closed_early(self) -> Closing | None:
        """`closing`, if the cell was closed before all its search trials had run; otherwise None."""
        return self.closing if self.closing is not None and self.closing.is_early else None

    @property
    def kept(self) -> TrialRecord | None:
        """The finalist with the kept checkpoint."""
        return best_final(self.finals)

    @property
    def is_done(self) -> bool:
        """True if the search is over and every finalist is scored, including the published setting's planned ones."""
        wanted = self.default_finals if self.default_seeds else []
        scored = all(final.test is not None for final in (*self.finals, *wanted))
        return bool(self.finals) and scored and len(wanted) >= self.default_seeds

    @property
    def has_failed(self) -> bool:
        """True if finals failed, or every trial so far and none finished."""
        return bool(self.failed_finals or self.failed_defaults) or (self.best is None and self.counts["failed"] > 0)

    def work(self, seeds: int, weight: float = 1.0) -> CellWork:
        """Its work, done and left; a running search trial counts as half a trial.

        Args:
            seeds: the number of planned finals.
            weight: the relative duration of one of its trials.
        """
        search = 0.0 if self.closing is not None else self.counts["missing"] + self.counts["running"] / 2
        finals = finals_left(seeds, len(self.finals)) + finals_left(self.default_seeds, len(self.default_finals))
        typical = list(filter(is_typical, self.records))
        return CellWork(len(typical), worker_seconds(typical), search + finals, weight)


@dataclass(frozen=True)
class SweepSummary:
    """A sweep's results.

    Attributes:
        name: the sweep's name.
        state: running (a process drives it), done, failed (a cell ended without a result), or stopped.
        spec: the specification.
        code: the version of the code that opened the sweep.
        cells: the cells' results.
        ensembles: the ensembles that are stored with the sweep.
        part: the part of its cluster that a running sweep may use; None if unknown.
        baselines: task → its baselines on dev, for a sweep that has ended.
        folder: the sweep's folder, with its finalists' predictions; None if the summary was not read from a folder.
        strays: ignored records that belong to no cell of `sweep.json` (another metric, other data or code).
        growth: the additions under its name, earliest first.
        openings: the openings of its test splits, earliest first.
        damaged: a line for each record that could not be read and is left out.
        running: the trials that its workers are running; None if unknown, or if the sweep is not running.
    """

    name: str
    state: State
    spec: SweepSpec
    code: str
    cells: list[CellSummary]
    ensembles: list[Ensemble] = field(default_factory=list)
    strays: list[TrialRecord] = field(default_factory=list)
    part: ClusterPart | None = None
    folder: StoragePath | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()
    openings: tuple[SplitOpening, ...] = ()
    running: RunningTrials | None = None
    damaged: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Its state and counts; `cells` has the rest."""
        done = sum(cell.is_done for cell in self.cells)
        return f"SweepSummary({self.name}, {self.state}: {done} of {some(len(self.cells), 'cell')} done)"

    @property
    def has_one_task(self) -> bool:
        """True if all cells are of one task, so that the sweep may keep one model for `predict NAME`."""
        return len({cell.header.task for cell in self.cells}) == 1

    def cell(self, key: CellKey) -> CellSummary:
        """The cell with this key."""
        return next(cell for cell in self.cells if cell.header.key == key)

    def baseline_of(self, cell: CellSummary) -> Baseline | None:
        """The baselines of a cell's task; None for a smaller size (`--train-sizes`), since they read all of train."""
        is_smaller = self.spec.train_examples_of(cell.header.variant) > 0
        return None if is_smaller else self.baselines.get(cell.header.task)

    def named(self, name: str) -> CellSummary:
        """The cell with this name (E.M.T).

        Raises:
            ValueError: there is none; the message lists the cells.
        """
        by_name = {cell.name: cell for cell in self.cells}
        if name not in by_name:
            raise ValueError(f"No cell '{name}' in sweep '{self.name}'. Cells: {', '.join(by_name)}.")
        return by_name[name]

    @property
    def has_variants(self) -> bool:
        """True if any cell has a variant, which tables then show."""
        return any(cell.header.variant for cell in self.cells)

    @property
    def code_versions(self) -> tuple[str, ...]:
        """The versions of the code that ran its trials, cell by cell; before any ran, the version that opened it."""
        used = dict.fromkeys(use.version for cell in self.cells for use in cell.code_uses)
        return tuple(used) or (self.code,)

    def seeds_of(self, cell: CellSummary) -> int:
        """The number of planned finals of a cell."""
        return cell.header.seeds or self.spec.seeds

    @cached_property
    def time_left(self) -> TimeLeft | None:
        """An estimate for a running sweep; None if it is not running, no trial has ended yet, or none is left.

        Cells without ended trials are weighted by their operations, or equally if the sweep's file does not have them.
        """
        if self.state != "running":
            return None
        places = self.part.places if self.part is not None else 0
        at_a_time = places or trials_at_a_time([record for cell in self.cells for record in cell.records])
        known = [cell.header.work for cell in self.cells if cell.header.work is not None]
        weights = known if len(known) == len(self.cells) else [1.0] * len(self.cells)
        work = [cell.work(self.seeds_of(cell), weight) for cell, weight in zip(self.cells, weights, strict=True)]
        return time_left(work, at_a_time)

    def as_json(self) -> dict[str, Any]:
        """The document of `status --json`."""
        left = None if self.time_left is None else self.time_left.as_json()
        part = None if self.part is None else self.part.model_dump(mode="json")
        cells = [_cell_json(cell) for cell in self.cells]
        opened = [opening.model_dump() for opening in self.openings]
        return {
            "name": self.name, "state": self.state, "left": left, "cluster": part,
            "running": None if self.running is None else self.running.as_json(), "test_openings": opened,
            "damaged": list(self.damaged),
            "cells": cells,
        }  # fmt: skip


def _cell_json(cell: CellSummary) -> dict[str, Any]:
    head, best = cell.header, cell.best
    return {
        "encoder": head.encoder, "mode": head.mode, "task": head.task, "head": head.head,
        **({"variant": head.variant} if head.variant else {}), "metric": head.metric,
        "trials": cell.counts,
        "best": None if best is None else {"dev": best.dev, "trial": best.id, "setting": best.setting},
        "final": _scores_json(cell.finals, cell.dev, cell.test),
        "default": _scores_json(cell.default_finals, cell.default_dev, cell.default_test),
        "closed": cell.closing.as_json() if cell.closing else None,
        "test_round": cell.test_round,
        **({"early_end": cell.early_end.as_json()} if cell.early_end else {}),
        "code_versions": [use.as_json() for use in cell.code_uses],
    }  # fmt: skip


def _scores_json(finals: list[TrialRecord], dev: Spread | None, test: Spread | None) -> dict[str, Any] | None:
    """The scores of finals over their seeds; None without finals."""
    if not finals:
        return None
    return {"seeds": len(finals), **spreads_json(dev, test)}


def spreads_json(dev: Spread | None, test: Spread | None, prefix: str = "") -> dict[str, float | None]:
    """Means and deviations over seeds, by the names that they have in every document; None if unknown."""
    return {
        f"{prefix}{split}_{name}": getattr(over, name, None)
        for split, over in (("dev", dev), ("test", test)) for name in ("mean", "std")
    }  # fmt: skip


def summarise(ledger: Ledger, leaves_out: bool = False) -> SweepSummary:
    """Summarise a sweep from the current files of its folder.

    Args:
        leaves_out: whether to leave out damaged records and name them, for a view on which nothing else depends.

    Raises:
        ValueError: the sweep does not exist, or one of its files is damaged.
    """
    sweep = read_sweep(ledger)
    damaged: dict[str, str] = {}
    facts = {cell.key: facts_of(cell) for cell in sweep.cells}
    past, strays = by_cell(ledger.records(damaged if leaves_out else None), facts, sweep.codes)
    driven = ledger.is_driven()
    rounds, logs = read_rounds(ledger), ClosingLogs.read(ledger)
    closings = {
        header.key: closing_of(logs, past[header.key], header.planned, rounds.last.get(header.key))
        for header in sweep.cells
    }
    running: dict[CellKey, set[str]] = {}
    for order in ledger.unfinished() if driven else []:
        key = cell_key(*(str(order.get(word, "")) for word in CELL))
        if order["role"] == "search" and closings.get(key) is None:  # a closed cell's trial was given up
            running.setdefault(key, set()).add(str(order["id"]))
    entrants = [header.entrant(past[header.key], closings[header.key] is not None) for header in sweep.cells]
    spec = sweep.spec
    ends = check_searches(entrants, spec.race, spec.auto_trials, spec.margin).ends
    cells = [
        _cell(sweep, header, past[header.key], running.get(header.key, set()), rounds, closings, ends)
        for header in sweep.cells
    ]
    seeds = [header.seeds or sweep.spec.seeds for header in sweep.cells]
    state = _state(driven, cells, seeds)
    part = noted(ledger.drivers, ClusterPart) if driven else None
    whole = {one.task for one in sweep.cells if not spec.train_examples_of(one.variant)}  # as in `baseline_of`
    baselines = {task: known for task, known in read_baselines(ledger).items() if task in whole}
    return SweepSummary(
        sweep.spec.name, state, sweep.spec, sweep.code, cells, read_ensembles(ledger), strays, part, ledger.folder,
        baselines, sweep.growth, tuple(logs.openings),
        noted(ledger.drivers, RunningTrials) if driven else None,
        tuple(f"Left out: {damaged[id]}" for id in sorted(damaged)),
    )  # fmt: skip


def _cell(
    sweep: SweepFile, header: CellHeader, records: list[TrialRecord], running: set[str], rounds: TestRounds,
    closings: Mapping[CellKey, Closing | None], ends: Mapping[CellKey, EarlyEnd],
) -> CellSummary:  # fmt: skip
    search = [record for record in records if record.role == "search" and record.id not in running]
    finalists = [record for record in records if record.role != "search"]
    failed = [record for record in records if record.status == "failed"]
    counted: Counter[str] = Counter(record.status for record in search)
    end, closing = ends.get(header.key), closings[header.key]
    planned = header.planned if end is None else end.trials
    missing = max(0, planned - len(search) - len(running))
    counts = {
        "planned": planned,
        **{status: counted[status] for status in ENDED},
        "running": len(running),
        "missing": missing,
    }
    best = best_of(search)
    finals, defaults = finals_of(best, finalists), default_finals_of(best, header.published, finalists)
    default_seeds = _default_seeds(sweep.spec, header, best)
    uses = code_uses(search, [*finals, *(defaults if default_seeds else [])])
    return CellSummary(
        header=header, counts=counts, best=best, finals=finals,
        dev=spread_on_dev(finals), test=spread_on_test(finals, header.metric),
        errors=[f"{record.id}: {record.error}" for record in failed],
        lost=sum(record.is_lost for record in failed if record.role == "search" and record.id not in running),
        failed_finals=_unfinished(finalists, "final", best.setting if best else None),
        closing=None if closing is None else replace(closing, planned=planned), code_uses=uses, search=search,
        default_finals=defaults, default_seeds=default_seeds,
        default_dev=spread_on_dev(defaults), default_test=spread_on_test(defaults, header.metric),
        failed_defaults=_unfinished(finalists, "default", header.published) if default_seeds else [],
        records=records, test_round=rounds.count(header.key), early_end=end,
    )  # fmt: skip


def _default_seeds(spec: SweepSpec, header: CellHeader, best: TrialRecord | None) -> int:
    """The number of planned finals of a cell's published setting, as far as is known."""
    is_best = best is not None and best.setting == header.published
    asked = spec.default_finals and header.published is not None and header.planned > 1
    return (header.seeds or spec.seeds) if asked and not is_best else 0


def _unfinished(finalists: list[TrialRecord], role: Role, setting: Setting | None) -> list[TrialRecord]:
    """The finals of a role and setting that ended without a result."""
    return [r for r in finalists if r.role == role and r.status != "finished" and r.setting == setting]


def _state(driven: bool, cells: list[CellSummary], seeds: list[int]) -> State:
    if driven:
        return "running"
    done = [cell.is_done and len(cell.finals) >= count for cell, count in zip(cells, seeds, strict=True)]
    if all(done):
        return "done"
    ended = all(is_done or _is_hopeless(cell, count) for cell, is_done, count in zip(cells, done, seeds, strict=True))
    return "failed" if ended else "stopped"


def _is_hopeless(cell: CellSummary, seeds: int) -> bool:
    """True if running the command again cannot help: no search trial finished, or finals failed for their setting."""
    ended = cell.counts["missing"] == 0 and cell.counts["running"] == 0 and cell.lost == 0
    if cell.best is None:
        return ended
    groups = [(cell.finals, cell.failed_finals, seeds)]
    if cell.default_seeds:
        groups.append((cell.default_finals, cell.failed_defaults, cell.default_seeds))
    given_up = any(not final.is_lost for _, failed, _ in groups for final in failed)
    return given_up and all(_have_ended(*group) for group in groups)


def _have_ended(finals: list[TrialRecord], failed: list[TrialRecord], count: int) -> bool:
    """True if `count` finals are scored or have failed due to their setting."""
    return sum(final.test is not None for final in finals) + sum(not final.is_lost for final in failed) >= count
