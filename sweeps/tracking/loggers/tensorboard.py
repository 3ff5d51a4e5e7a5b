"""TensorBoard: an event file per trial in the sweep's folder; `tensorboard --logdir STORAGE/NAME/logs` shows them."""

from __future__ import annotations

from pathlib import Path

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.cell_progress import trial_label

PACKAGE = "tensorboardX"


class _Run:
    """A trial's event file."""

    def __init__(self, folder: Path, trial: Trial) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))
        self._writer.add_text("setting", "\n\n".join(f"{name}: {value}" for name, value in trial.setting.items()))

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


def begin(sweep: str, trial: Trial, folder: Path) -> _Run:
    """Start a trial's event file, in a folder of its cell."""
    return _Run(folder / "tensorboard" / ".".join(filter(None, trial.cell)) / trial_label(trial), trial)
