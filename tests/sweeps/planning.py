"""Planners that are driven without workers, for tests."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import Trial
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
    own = {"trials": spec.trials, "seeds": spec.seeds, "searcher": spec.searcher}
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
