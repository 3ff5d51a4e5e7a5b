"""Planners of a cell with the published setting's finals, for their tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.cell_progress import CellProgress
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

TRIALS, SEEDS = 3, 2
Score = Callable[[Trial], float]


def best_is(number: int) -> Score:
    """Dev scores by which the search trial of that number is the best; 0 is the published setting's."""
    return lambda proposal: 0.9 if proposal.number == number else 0.5 - 0.01 * proposal.number


def with_default_finals(spec: SweepSpec) -> SweepSpec:
    """One frozen cell with three search trials, two finals, and the published setting's."""
    return spec.model_copy(update={"modes": ("feature_extraction",), "default_finals": True})


def of_few_trials(cells: list[OpenCell]) -> OpenCell:
    """The first cell with these numbers."""
    return replace(cells[0], trials=TRIALS, seeds=SEEDS)


def taken(planner: Planner) -> list[Trial]:
    """What is handed out until it waits or is done."""
    found = []
    while isinstance(proposal := planner.next(), Trial):
        planner.begin(proposal)
        found.append(proposal)
    return found


def searched(spec: SweepSpec, cell: OpenCell, make_record, score: Score, **options: object) -> Planner:
    """A planner whose search trials have ended."""
    planner = Planner(spec, [cell], [], **options)
    for proposal in taken(planner):
        planner.end(make_record(proposal, (score(proposal),)))
    return planner


def progress_of(planner: Planner) -> CellProgress:
    """The progress of a planner's only cell."""
    (progress,) = planner.cells.values()
    return progress
