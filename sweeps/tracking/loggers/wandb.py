"""Weights & Biases: a project per sweep, a group per cell; WANDB_MODE=offline writes to the sweep's folder alone."""

from __future__ import annotations

from pathlib import Path

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.cell_progress import trial_label
from meltpoint.sweeps.tracking.loggers import LoggedRun

PACKAGE = "wandb"


def begin(sweep: str, trial: Trial, folder: Path) -> LoggedRun:
    """Start or resume a trial's run; its id is the trial's."""
    import wandb

    cell = ".".join(filter(None, trial.cell))
    folder.mkdir(parents=True, exist_ok=True)
    run: LoggedRun = wandb.init(
        project=sweep, id=trial.id, name=f"{cell} {trial_label(trial)}", group=cell, dir=folder, resume="allow",
        config={**trial.setting, "seed": trial.seed}, reinit="create_new",
        settings=wandb.Settings(silent=True, console="off"),
    )  # fmt: skip
    return run
