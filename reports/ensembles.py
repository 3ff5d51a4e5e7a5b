"""Ensembles in the result tables: the block that they belong to, their members, and notes on their scores."""

from __future__ import annotations

from meltpoint.reports.formats import symbol
from meltpoint.sweeps.results.ensemble_record import Ensemble
from meltpoint.sweeps.results.summary import SweepSummary

ENSEMBLE_NOTE = (
    "An ensemble averages the probabilities that its members' finalists gave when each was scored, seed by seed; test "
    "was not opened again. Its members were named, or are all finished cells of the task: none was chosen by test."
)
SEVERAL = "several encoders"
STALE = "its members have other finalists now: run `meltpoint ensemble` again"


def heading(made: Ensemble) -> str:
    """The encoder whose block of the table contains the ensemble, or the heading for ensembles of several encoders."""
    return made.encoders[0] if len(made.encoders) == 1 else SEVERAL


def members_text(made: Ensemble, sweep: str) -> str:
    """`ensemble of minilm ❄ (bilstm), minilm 🔥 (linear)`; cells of other sweeps are prefixed with the sweep."""
    names = []
    for member in made.members:
        prefix = "" if member.sweep == sweep else f"{member.sweep}/"
        head = ", ".join(part for part in (member.head, member.variant) if part)
        names.append(f"{prefix}{member.encoder} {symbol(member.mode)} ({head})")
    return f"ensemble of {', '.join(names)}"


def reservations(made: Ensemble, summary: SweepSummary) -> list[str]:
    """Notes on an ensemble's score: its members, and whether they are out of date."""
    stale = [] if is_current(made, summary) else [STALE]
    return [members_text(made, summary.name), *made.notes, *stale]


def is_current(made: Ensemble, summary: SweepSummary) -> bool:
    """True if this sweep's members still have the finalists that were combined."""
    current = {final.id for cell in summary.cells for final in cell.finals}
    return all(trial in current for member in made.members if member.sweep == summary.name for trial in member.trials)
