"""The trials that a driver's workers have, and how far they are: noted beside its heartbeat, and shown by `status`."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from meltpoint.sweeps.ledger.driver_note import note, noted
from meltpoint.sweeps.storage.files import StoragePath

ENDING = ".running"


class RunningTrialNote(BaseModel):
    """One trial that a worker has.

    Attributes:
        id: the trial's identity.
        name: its cell and its name there, as the sweep's own lines have them.
        began: when a worker took it up, in seconds since 1970.
        epoch: the last epoch that ended; None in the first one, and while its inputs are made.
        epochs: the largest number of epochs that its setting allows; None as long as `epoch` is.
        metric: the task's metric.
        dev: that metric on dev, after that epoch; None where it is no finite number.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    began: FiniteFloat
    epoch: NonNegativeInt | None = None
    epochs: NonNegativeInt | None = None
    metric: str
    dev: FiniteFloat | None = None


class RunningTrials(BaseModel):
    """All trials that workers have.

    Attributes:
        noted_at: when the driver noted them, in seconds since 1970.
        trials: in the order in which workers took them up.
    """

    model_config = ConfigDict(frozen=True)

    noted_at: FiniteFloat
    trials: tuple[RunningTrialNote, ...] = ()

    def as_json(self) -> list[dict[str, Any]]:
        """The entry of `status --json`: a trial each, with the seconds since it began when it was noted."""
        return [
            {**trial.model_dump(exclude={"began"}), "seconds": round(max(0.0, self.noted_at - trial.began))}
            for trial in self.trials
        ]


def note_running(drivers: StoragePath, attempt: int, trials: tuple[RunningTrialNote, ...]) -> None:
    """Note what a driver's workers have now; see `driver_note.note`."""
    note(drivers, attempt, ENDING, RunningTrials(noted_at=time.time(), trials=trials))


def noted_running(drivers: StoragePath) -> RunningTrials | None:
    """The latest driver's running trials; None where it has noted none, or that cannot be read."""
    return noted(drivers, ENDING, RunningTrials)
