"""A driver's notes in `drivers/`: its running trials and its part of the cluster, which `status` reads, and the records
that it found when it took over the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, TypeAdapter

from meltpoint.sweeps.ledger.locks import Claim, latest
from meltpoint.sweeps.storage.files import StoragePath, contents, for_each, write
from meltpoint.sweeps.storage.object_client import QUICK
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tasks.core.wording import some

Note = TypeVar("Note", "RunningTrials", "ClusterPart")


def note(drivers: StoragePath, attempt: int, what: RunningTrials | ClusterPart) -> None:
    """Write a driver's note over its last one. A failed write is ignored.

    Args:
        drivers: the folder of the sweep's drivers.
        attempt: the driver's number.
    """
    path = Claim(drivers, attempt).path.with_suffix(what.ENDING)
    with suppress(OSError):
        write(path.with_patience(QUICK) if isinstance(path, ObjectPath) else path, what.model_dump_json() + "\n")


def noted(drivers: StoragePath, kind: type[Note]) -> Note | None:
    """The latest driver's note of a kind; None if it has written none, or the note cannot be read."""
    claim = latest(drivers)
    if claim is None:
        return None
    try:
        return kind.model_validate_json(contents(claim.path.with_suffix(kind.ENDING)))
    except (OSError, ValueError):
        return None


class RunningTrialNote(BaseModel):
    """One trial that a worker is running.

    Attributes:
        id: the trial's identity.
        name: its cell and its name in that cell, as the sweep's log prints them.
        began: when a worker started it, in seconds since 1970.
        epoch: the last completed epoch; None during the first one, and while the inputs are prepared.
        epochs: the most epochs that its setting allows; None while `epoch` is None.
        metric: the task's metric.
        dev: that metric on dev after that epoch; None if it is not finite.
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
    """All trials that workers are running.

    Attributes:
        noted_at: when the driver noted them, in seconds since 1970.
        trials: in the order in which workers started them.
    """

    ENDING: ClassVar = ".running"  # of the note's file
    model_config = ConfigDict(frozen=True)

    noted_at: FiniteFloat
    trials: tuple[RunningTrialNote, ...] = ()

    def as_json(self) -> list[dict[str, Any]]:
        """The entry of `status --json`: one item per trial, with the seconds it had run when it was noted."""
        return [
            {**trial.model_dump(exclude={"began"}), "seconds": round(max(0.0, self.noted_at - trial.began))}
            for trial in self.trials
        ]


class ClusterPart(BaseModel):
    """The part of a cluster that a sweep may use.

    Attributes:
        places: how many of its trials may run at once.
        whole: how many could run without `--max-workers`.
        cpus, gpus: of one trial; the smallest GPU share if its cells differ.
        most: `--max-workers`; None if it is not set.
        has_no_node: whether every node with room for a trial is gone.
    """

    ENDING: ClassVar = ".part"
    model_config = ConfigDict(frozen=True)

    places: NonNegativeInt
    whole: NonNegativeInt
    cpus: FiniteFloat
    gpus: FiniteFloat = 0.0
    most: NonNegativeInt | None = None
    has_no_node: bool = False

    @property
    def is_limited(self) -> bool:
        """True if the sweep must not request more workers than its places, even if the cluster has some."""
        return self.places < self.whole

    @property
    def news(self) -> tuple[object, ...]:
        """The values whose changes are shown to the user."""
        return self.has_no_node, self.whole

    def __str__(self) -> str:
        """`4 of 16 CPUs (2 of 8 trials at a time); at most 8 workers`."""
        if self.has_no_node:
            return "none: no node has room for a trial; the sweep waits for one to join"
        each, unit = (self.gpus, "GPU") if self.gpus else (self.cpus, "CPU")
        parts = f"{self.places * each:.4g} of {some(float(f'{self.whole * each:.4g}'), unit)} "
        parts += f"({self.places} of {some(self.whole, 'trial')} at a time)"
        return parts + (f"; at most {some(self.most, 'worker')}" if self.most is not None else "")


# The records that a driver found when it took over.

INHERITED = ".inherited"
IDS = TypeAdapter(frozenset[str])
Inherited = Mapping[int, frozenset[str]]
"""The number of a driver that took over → the ids of the records that it found."""


def inherited(folder: StoragePath) -> Inherited:
    """The records that each driver found when it took over the sweep.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    return dict(for_each(_ids, [path for path in folder.glob(f"*{INHERITED}") if path.stem.isdecimal()]))


def _ids(path: StoragePath) -> tuple[int, frozenset[str]]:
    try:
        return int(path.stem), IDS.validate_json(contents(path))
    except ValueError:
        message = f"{path} is damaged (no list of trials); delete it, and late records of an older driver count."
        raise ValueError(message) from None


def is_late(trial: str, attempt: int, found: Inherited) -> bool:
    """True if the driver that wrote a record had already lost the sweep.

    This happens only on a file system where a rename out of a folder succeeds after another machine removed the folder.

    Args:
        attempt: the record's `driver_attempt`; 0 comes from a version without leases, and is never late.
        found: as returned by `inherited`.
    """
    return attempt > 0 and any(attempt < number and trial not in trials for number, trials in found.items())
