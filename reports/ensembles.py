"""What tables say of ensembles: where they stand, of whom they are, and what has to be said of their figures."""

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
    """The block of the table that an ensemble stands in: its encoder's, or one for ensembles of several."""
    return made.encoders[0] if len(made.encoders) == 1 else SEVERAL


def members_text(made: Ensemble, sweep: str) -> str:
    """`ensemble of minilm ❄ (bilstm), minilm 🔥 (linear)`; cells of other sweeps with their sweep's name."""
    words = []
    for member in made.members:
        where = "" if member.sweep == sweep else f"{member.sweep}/"
        head = ", ".join(word for word in (member.head, member.variant) if word)
        words.append(f"{where}{member.encoder} {symbol(member.mode)} ({head})")
    return f"ensemble of {', '.join(words)}"


def reservations(made: Ensemble, summary: SweepSummary) -> list[str]:
    """What has to be said of an ensemble's figure."""
    stale = [] if _is_current(made, summary) else [STALE]
    return [members_text(made, summary.name), *made.notes, *stale]


def _is_current(made: Ensemble, summary: SweepSummary) -> bool:
    """Whether the members of this sweep still have the finalists that were combined."""
    there = {final.id for cell in summary.cells for final in cell.finals}
    return all(trial in there for member in made.members if member.sweep == summary.name for trial in member.trials)
