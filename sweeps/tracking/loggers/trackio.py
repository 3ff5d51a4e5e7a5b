"""Trackio: a project per sweep on this machine; `trackio show` opens it, TRACKIO_SPACE_ID sends it to a Space."""

from __future__ import annotations

import os
from pathlib import Path

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.cell_progress import trial_label
from meltpoint.sweeps.tracking.loggers import LoggedRun

PACKAGE = "trackio"


def begin(sweep: str, trial: Trial, folder: Path) -> LoggedRun:
    """Start or resume a trial's run."""
    import trackio

    cell = ".".join(filter(None, trial.cell))
    run: LoggedRun = trackio.init(
        project=sweep, name=f"{cell} {trial_label(trial)}", group=cell, space_id=os.environ.get("TRACKIO_SPACE_ID"),
        config={**trial.setting, "seed": trial.seed}, resume="allow", embed=False,
    )  # fmt: skip
    return run
