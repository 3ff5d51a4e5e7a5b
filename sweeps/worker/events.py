"""Events: what a worker reports to the driver about each of its trials, in this order.

`Started`, an `EpochEnded` each epoch, `TrialEnded`. They cross processes pickled, as they are.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from meltpoint.sweeps.ledger.records import EpochRecord, HardwareRecord
from meltpoint.sweeps.ledger.resource_use import ResourceUse
from meltpoint.sweeps.worker.outcome import TrialOutcome


class _OfTrial(BaseModel):
    """An event of one trial.

    Attributes:
        trial: its identity.
        seconds: of its worker, since it took the order up, by the worker's own clock and without its waits for the
            driver (`ResourceMeter.seconds`); None where it says nothing of it.
    """

    model_config = ConfigDict(frozen=True)

    trial: str
    seconds: float | None = None


class Started(_OfTrial):
    """Data and model are ready, training begins.

    Attributes:
        trained_together: how many trials train side by side with this one, itself counted.
        input_notes: what does not fit the encoder's input, a line each.
        task_parameters, trained_parameters: as in `TrialRecord`.
        micro_batch_size: as in `TrialRecord`.
        resumed_after_epochs, seconds_before: as in `TrialRecord`; these epochs are reported next, once more.
        checkpoint_notes: what was wrong with saved epochs, a line each.
    """

    hardware: HardwareRecord
    trained_together: int
    input_notes: tuple[str, ...]
    task_parameters: int
    trained_parameters: int | None = None
    resumed_after_epochs: int = 0
    seconds_before: float = 0.0
    checkpoint_notes: tuple[str, ...] = ()
    micro_batch_size: int | None = None


class EpochEnded(_OfTrial):
    """An epoch was trained and scored on dev.

    Attributes:
        score: the task's metric on dev, of an error its negative: higher is better.
        percent: how much of the trial's own schedule is trained, 0 to 100.
        resource_use: of this attempt so far; None for an epoch of an earlier one.
    """

    epoch: EpochRecord
    score: float
    percent: float
    resource_use: ResourceUse | None = None


class TrialEnded(_OfTrial):
    """The worker is done with a trial, whatever happened.

    Attributes:
        resource_use: of this attempt; None where its worker did not come to train.
    """

    outcome: TrialOutcome
    resource_use: ResourceUse | None = None


Event = Started | EpochEnded | TrialEnded
