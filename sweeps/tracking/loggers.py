"""Loggers other than MLflow (`--log-to`): TensorBoard, Trackio, Weights & Biases, or a Python file of your own.

A logger is a function `begin(sweep, trial, folder)` that starts a trial's run. A run has `log(metrics, step)` and
`finish()`, as those of W&B and Trackio have. One thread makes all calls, in order, so no trial waits for a logger. A
logger that fails is left out for the rest of the command; the ledger has everything.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import Trial, TrialRecord, trial_label
from meltpoint.tasks.core.registry import unknown


class LoggedRun(Protocol):
    """A trial's run."""

    def log(self, metrics: dict[str, float], step: int) -> object:
        """Record metrics of a training step."""

    def finish(self) -> object:
        """End the run."""


Begin = Callable[[str, Trial, Path], LoggedRun]
"""Starts the run of a trial of a sweep; files go into the folder."""


class _TensorBoardRun:
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


def tensorboard(sweep: str, trial: Trial, folder: Path) -> LoggedRun:
    """Start an event file in the folder of the trial's cell."""
    return _TensorBoardRun(folder / "tensorboard" / _cell(trial) / trial_label(trial), trial)


def trackio(sweep: str, trial: Trial, folder: Path) -> LoggedRun:
    """Start or resume a run in the project of the sweep, on this machine or in the Space TRACKIO_SPACE_ID."""
    import trackio

    run: LoggedRun = trackio.init(
        project=sweep, space_id=os.environ.get("TRACKIO_SPACE_ID"), resume="allow", embed=False, **_named(trial)
    )
    return run


def wandb(sweep: str, trial: Trial, folder: Path) -> LoggedRun:
    """Start or resume a run in the project of the sweep; its id is the trial's. WANDB_MODE=offline keeps it here."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off")
    run: LoggedRun = wandb.init(
        project=sweep, id=trial.id, dir=folder, resume="allow", reinit="create_new", settings=settings, **_named(trial)
    )
    return run


def _named(trial: Trial) -> dict[str, Any]:
    config = {**trial.setting, "seed": trial.seed}
    return {"name": f"{_cell(trial)} {trial_label(trial)}", "group": _cell(trial), "config": config}


def _cell(trial: Trial) -> str:
    return ".".join(filter(None, trial.cell))


SHIPPED: dict[str, tuple[str, Begin]] = {
    "tensorboard": ("tensorboardX", tensorboard), "trackio": ("trackio", trackio), "wandb": ("wandb", wandb)
}  # fmt: skip
"""Name → its package and its function."""


def check(names: Sequence[str]) -> None:
    """Check that every logger can be loaded, before a sweep starts.

    Raises:
        ValueError: an unknown name, a file that is missing, or a package that is not installed; one line.
    """
    for name in names:
        if name.endswith(".py"):
            if not Path(name).is_file():
                raise ValueError(f"--log-to {name}: file not found; name a Python file with a function begin.")
        elif name not in SHIPPED:
            raise unknown(name, "logger", [*SHIPPED, "a FILE.py of your own"])
        elif find_spec(package := SHIPPED[name][0]) is None:
            raise ValueError(f"--log-to {name}: {package} is not installed; run `pip install {package}`.")


def _begin_of(name: str) -> Begin:
    if name in SHIPPED:
        return SHIPPED[name][1]
    found = spec_from_file_location(Path(name).stem, name)
    assert found is not None, "a path that ends in .py"
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    begin: Begin = module.begin
    return begin


class Loggers:
    """The loggers of a sweep.

    Args:
        names: names of shipped loggers, or paths of Python files.
        sweep: the sweep's name.
        folder: where a logger may write files.
        say: shows the user one line.
    """

    def __init__(self, names: Sequence[str], sweep: str, folder: Path, say: Callable[[str], None]) -> None:
        self.sweep, self.folder, self.say = sweep, folder, say
        self._begins: dict[str, Begin] = {}
        self._runs: dict[str, dict[str, LoggedRun]] = {name: {} for name in names}  # logger → trial → run
        self._logged: dict[tuple[str, str], int] = {}  # (logger, trial) → the last epoch's step
        self._changes: queue.SimpleQueue[Callable[[str], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="loggers", daemon=True)
        if names:
            self._thread.start()

    def begin(self, trial: Trial) -> None:
        """Start a trial's run, or start it again after an interruption."""
        kept = Trial.of(trial)
        self._put(lambda name: self._begin(name, kept))

    def epoch(self, trial: str, epoch: EpochResult) -> None:
        """Log an epoch's metrics."""
        self._put(lambda name: self._epoch(name, trial, epoch))

    def end(self, record: TrialRecord) -> None:
        """Log a trial's scores and end its run; that of a final stays open until its test scores come."""
        self._put(lambda name: self._end(name, record))

    def abandon(self, trial: str) -> None:
        """End the run of a trial that is interrupted."""
        self._put(lambda name: self._finish(name, trial))

    def close(self, seconds: float) -> None:
        """End all runs, and wait until everything is written, but not for long: an upload may hang."""
        if self._thread.is_alive():
            self._put(self._finish_all)
            self._changes.put(None)
            self._thread.join(seconds)

    def _put(self, change: Callable[[str], object]) -> None:
        if self._runs:
            self._changes.put(change)

    # The thread.

    def _write_all(self) -> None:
        while change := self._changes.get():
            for name in list(self._runs):
                try:
                    change(name)
                except Exception as error:  # noqa: BLE001 - a logger's package may raise anything
                    del self._runs[name]
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    self.say(f"{name} fails ({reason[:160]}); the sweep continues without it.")

    def _begin(self, name: str, trial: Trial) -> None:
        if name not in self._begins:
            self._begins[name] = _begin_of(name)
        self._runs[name][trial.id] = self._begins[name](self.sweep, trial, self.folder)

    def _epoch(self, name: str, trial: str, epoch: EpochResult) -> None:
        """Log an epoch, unless the run has it already."""
        if trial in self._runs[name] and epoch.step > self._logged.get((name, trial), -1):
            self._logged[name, trial] = epoch.step
            values = {"train/loss": epoch.train_loss, "learning_rate": epoch.learning_rate}
            values |= {f"dev/{metric}": value for metric, value in epoch.dev.items()}
            self._runs[name][trial].log(values, epoch.step)

    def _end(self, name: str, record: TrialRecord) -> None:
        for epoch in record.epochs:  # a reused result has had no events
            self._epoch(name, record.id, epoch)
        if run := self._runs[name].get(record.id):
            scores = {f"test/{metric}": value for metric, value in (record.test or {}).items()}
            scores |= {} if record.dev_of_epoch is None else {"best_dev": record.dev_of_epoch}
            run.log(scores | {"seconds": record.seconds}, record.epochs[-1].step if record.epochs else 0)
        if record.role == "search" or record.test is not None or record.status == "failed":
            self._finish(name, record.id)

    def _finish(self, name: str, trial: str) -> None:
        if run := self._runs[name].pop(trial, None):
            run.finish()

    def _finish_all(self, name: str) -> None:
        for trial in list(self._runs[name]):
            self._finish(name, trial)
