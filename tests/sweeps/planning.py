"""Planners that are driven without workers, and epochs: also for the finals of a cell's published setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.cell_progress import CellProgress
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec


def drive(planner: Planner, make_record, score=lambda proposal: 0.5, limit: int = 1000) -> list[Trial]:
    """Run proposals one by one until there are no more."""
    taken = []
    while isinstance(proposal := planner.next(), Trial):
        planner.begin(proposal)
        planner.end(make_record(proposal, dev=(score(proposal),)))
        taken.append(proposal)
        assert len(taken) < limit
    assert proposal == "done"
    return taken


def planned(spec: SweepSpec, cells: list[OpenCell], **changes: object) -> Planner:
    """A planner of cells with the counts of the changed specification."""
    spec = spec.model_copy(update=changes)
    own = {"trials": spec.trials, "seeds": spec.seeds, "searcher": spec.searcher_of(spec.products()[0])}
    return Planner(spec, [replace(cell, **own) for cell in cells], [])


def note_of(proposal: Trial) -> dict[str, object]:
    """What the ledger keeps of a trial that has begun."""
    return Trial.of(proposal).model_dump(mode="json")


def epoch_of(number: int = 1, dev: float = 0.5, metric: str = "accuracy", **changes: object) -> EpochResult:
    """An epoch with this score on dev."""
    facts = {
        "epoch": number, "phase": "train", "step": number, "train_loss": 1.0, "dev": {metric: dev},
        "train_seconds": 1.0, "dev_seconds": 0.5, "learning_rate": 1e-3, "finished_at": float(number),
    }  # fmt: skip
    return EpochResult.model_validate(facts | changes)


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
