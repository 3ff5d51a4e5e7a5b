"""`plan`: cells, trials, how many of them the ledger already answers, and the cost of the rest; trains nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from meltpoint.adapters.hardware import resolve_precision
from meltpoint.search_spaces.build import description
from meltpoint.sweeps.driver.start import (
    asked_sweep,
    check_same,
    closed_lines,
    kept_lines,
    open_planner,
    planned_closings,
)
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import strays_in_words
from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.results.cost import worker_seconds
from meltpoint.sweeps.results.sweep_file import kept_versions
from meltpoint.sweeps.search.cell_progress import CellProgress, Price, operations_of
from meltpoint.sweeps.search.early_ends import CHECK
from meltpoint.sweeps.search.locked_test import Closing
from meltpoint.sweeps.specification.cells import (
    OpenCell,
    declared_test_examples,
    fault_lines,
    length_lines,
    open_cells,
    test_lines,
)
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.space_rules import CellLength
from meltpoint.sweeps.specification.sweep_options import Resources, Searcher
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.tasks.core import metrics, sources
from meltpoint.tasks.core.sources import TestState

SHARE_OF_PEAK = 0.45  # of the matmul rate; reached by a training step, evaluation and padding included
START_UP_SECONDS = 20.0  # Ray and the first imports of its workers: 14 to 30 s on two cores (docs/internals/log.md)


@dataclass(frozen=True)
class PlannedCell:
    """The remaining work of a cell, and its estimated cost.

    Attributes:
        head_source: where the choice of the head comes from.
        variant: distinguishes it from cells of the same encoder, mode and task; "" if there are none.
        trials: planned search trials and finals, including finals of the published setting.
        finals: finals of the best setting; the search answers one of them.
        defaults: finals of the published setting, at most; the search answers one of them too.
        answered: number of trials that the ledger already has.
        estimated_seconds: worker seconds for the rest.
        least_seconds: the same if its search ends at the first check, with `--trials auto` (`search.early_ends`).
        length: the longest input of its trials, its source, and its cuts.
        metric: the metric that settings are chosen by.
        searcher: the searcher that proposes its settings.
        dev_examples: number of dev examples.
        test_examples: declared number of labelled test examples; None if unknown before the split is opened.
        train_examples: number of training examples.
        searched: searched parameter → its range, as `log_uniform [1e-05, 0.0001]`.
        closed: how its search ended for good (`Closing.as_json`); None while it is open.
        notes: on its data and training lengths, as in tables.
        test_state: state of its test split, from `sources.check`.
    """

    encoder: str
    mode: str
    task: str
    head: str
    head_source: str
    variant: str
    trials: int
    finals: int
    defaults: int
    answered: int
    estimated_seconds: float
    least_seconds: float
    length: CellLength
    metric: str
    searcher: Searcher
    dev_examples: int
    test_examples: int | None
    train_examples: int = 0
    searched: Mapping[str, str] = field(default_factory=dict)
    closed: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    test_state: TestState = "labelled"

    @property
    def search_trials(self) -> int:
        """Trials without the finals."""
        return self.trials - self.finals - self.defaults


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        estimated_seconds: wall time on this machine's workers.
        least_seconds: the same if every search ends at its first check; without such checks, `estimated_seconds`.
        workers: number of trials at a time.
        lengths: the cuts of the longest inputs, a line for each task, encoder and length.
        left_out: encoders of the specification file whose location was not given.
        kept: version of Meltpoint's code → number of its trials that count, for versions other than the running one.
    """

    cells: list[PlannedCell] = field(repr=False)
    workers: int
    estimated_seconds: float
    least_seconds: float
    notes: list[str] = field(default_factory=list)
    lengths: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Trials of all cells."""
        return sum(cell.trials for cell in self.cells)

    @property
    def finals(self) -> int:
        """Finals of all cells."""
        return sum(cell.finals for cell in self.cells)

    @property
    def search_trials(self) -> int:
        """Search trials of all cells."""
        return sum(cell.search_trials for cell in self.cells)

    @property
    def defaults(self) -> int:
        """Finals of the published setting, of all cells."""
        return sum(cell.defaults for cell in self.cells)

    @property
    def answered(self) -> int:
        """Answered trials of all cells."""
        return sum(cell.answered for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """The document of `plan --json`."""
        cells = [
            {name: value for name, value in asdict(cell).items() if name != "variant" or value} for cell in self.cells
        ]
        return {
            "cells": cells, "trials": self.trials, "defaults": self.defaults, "answered": self.answered,
            "estimated_seconds": self.estimated_seconds, "least_seconds": self.least_seconds,
            **({"left_out": list(self.left_out)} if self.left_out else {}),
            **({"kept_of_other_code": dict(self.kept)} if self.kept else {}),
        }  # fmt: skip


def plan_sweep(spec: SweepSpec, resources: Resources) -> SweepPlan:
    """Plan a sweep as `sweep` would run it; opens the data, trains nothing, writes nothing but the storage folder.

    Raises:
        ValueError: bad input that `sweep` would also refuse.
    """
    storage = storage_folder(resources.storage)
    if resources.tracking_uri is None:
        default_uri(storage)  # raises where `sweep` would
    ledger = Ledger(storage / spec.name)
    ledger.check_place()
    cells = open_cells(spec)
    records, notes = [], []
    codes: tuple[str, ...] = ()
    if ledger.specification.exists():
        asked = asked_sweep(spec, cells, resources.cache_overflow)
        then = check_same(ledger, asked, resources.mix_code_versions, resources.grow)
        notes += [f"the sweep grows: {'; '.join(added)}"] if (added := spec.growth(then.spec)) else []
        records, codes = ledger.records(), then.codes
    planner = open_planner(ledger, spec, codes, cells, records, resources, notes.append, is_plan=True)
    gpus, assumed = planned_gpus(resources)
    rate = multiply_rate(int(resources.cpus_per_trial), gpus)
    closings = planned_closings(ledger, planner)
    planned = [_planned(one, closings[key], rate, spec.auto_trials) for key, one in planner.cells.items()]
    workers = min(worker_count(resources.cpus_per_trial, gpus), resources.max_workers or sys.maxsize)
    wall = wall_seconds((cell.estimated_seconds for cell in planned), workers)
    least_wall = wall_seconds((cell.least_seconds for cell in planned), workers)
    left_out = [strays_in_words(planner.strays)] if planner.strays else []
    notes += [*spec.missing(), *test_lines(cells), *fault_lines(cells)]
    notes += [*kept_lines(planner), *left_out, *closed_lines(ledger, planner)]
    notes.append(
        f"estimated from a measured {rate / 1e9:.0f} GFLOP/s per trial on otherwise idle cores; expect a factor of two "
        "either way"
    )
    notes += assumed
    lengths = tuple(length_lines(cells))
    kept = kept_versions(planner.counted(), code_version())
    return SweepPlan(planned, workers, wall, least_wall, notes, lengths, spec.left_out, kept)


def wall_seconds(of_cells: Iterable[float], workers: int) -> float:
    """The wall time of cells' worker seconds, with Ray's start; 0 if nothing is left to run."""
    seconds = sum(of_cells) / workers
    return seconds + START_UP_SECONDS if seconds else 0.0


def _planned(progress: CellProgress, closing: Closing | None, rate: float, auto: bool) -> PlannedCell:
    cell = progress.cell
    least = CHECK if auto and metrics.limits(cell.metric)[1] < math.inf else math.inf
    target = len(progress.search) if closing else progress.target  # a closed cell's search is over
    defaults = [trial.id for trial in progress.wanted_defaults]
    ended = [*progress.finals.values(), *(record for record in progress.defaults.values() if record.id in defaults)]
    total = target + cell.seeds + len(defaults)
    answered = min(len(progress.search), target) + sum(final.test is not None or progress.searched for final in ended)
    by_search = (not progress.finals) + (bool(defaults) and not progress.defaults)  # the finals with the search's seed
    rest = total - answered - by_search
    done = [record for record in progress.search.values() if record.status == "finished"]
    price = Price(0.0, worker_seconds(done) / len(done)) if done else price_of(cell, rate)
    seconds = price.once + rest * price.trial if rest > 0 else 0.0
    spared = max(0.0, target - max(least, len(progress.search)))  # trials of a search that ends at its first check
    closed = closing.as_json() if closing else None
    searched = {name: description(one) for name, one in cell.space.parameters.items() if one.count != 1}
    return PlannedCell(
        cell.encoder, cell.mode, cell.task_name, cell.head, cell.head_source, cell.variant, total, cell.seeds,
        len(defaults), answered, seconds, max(0.0, seconds - spared * price.trial), cell.length, cell.metric,
        progress.study.searcher, cell.dev_examples,
        declared_test_examples(cell), cell.train_examples, searched, closed, cell.notes,
        sources.check(cell.data),
    )  # fmt: skip


def price_of(cell: OpenCell, rate: float) -> Price:
    """A cell's price in worker seconds, from its floating-point operations at `rate` per second in a matmul."""
    operations = operations_of(cell)
    return Price(operations.once / (rate * SHARE_OF_PEAK), operations.trial / (rate * SHARE_OF_PEAK))


def multiply_rate(threads: int, gpus: float) -> float:
    """Floating-point operations per second of a transformer-sized matmul, as one trial would run it."""
    device = "cuda:0" if gpus > 0 and torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if resolve_precision("auto", device) == "bf16" else torch.float32
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, threads))
    size, best = (512, 384, 1536), math.inf
    left = torch.randn(size[0], size[1], device=device, dtype=kind)
    right = torch.randn(size[1], size[2], device=device, dtype=kind)
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(5):
            left @ right
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - started) / 5)
    torch.set_num_threads(before)
    return 2 * size[0] * size[1] * size[2] / best


def planned_gpus(resources: Resources) -> tuple[float, list[str]]:
    """(GPUs per trial, assumptions about the machines): `plan` neither starts nor joins Ray."""
    has_gpu, address = torch.cuda.is_available(), resources.address
    if resources.gpus_per_trial != "auto":
        gpus, assumed = resources.gpus_per_trial, []
    elif has_gpu:
        gpus = 1.0
        assumed = ["planned with a whole GPU per trial; `sweep` measures at its start how many trials share one"]
    else:
        gpus, assumed = 0.0, ["planned on this machine's CPUs: torch sees no GPU here"]
    if address is not None:
        assumed.insert(0, f"planned as if trials ran on this machine; the cluster at {address} is not queried")
    return gpus, assumed


def worker_count(cpus: float, gpus: float) -> int:
    """Trials at a time on this machine; a cluster's size is not known before it is joined."""
    by_cpu = int(limits.cores() // cpus)
    by_gpu = int(torch.cuda.device_count() / gpus) if gpus else by_cpu
    return max(1, min(by_cpu, by_gpu))
