"""A driver's part of a Ray cluster, noted beside its heartbeat: `status` shows it without joining Ray."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from meltpoint.sweeps.ledger.driver_note import note, noted
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.wording import some

ENDING = ".part"


class ClusterPart(BaseModel):
    """The part of a cluster that a sweep may use.

    Attributes:
        places: how many of its trials may run at once.
        whole: how many would, if it were alone and had no limit.
        cpus, gpus: of one trial; the smallest share of a GPU where its cells have several.
        others: the names of the other sweeps on the cluster.
        most: `--max-workers`; None without.
        has_no_node: whether the nodes that had room for a trial are gone.
    """

    model_config = ConfigDict(frozen=True)

    places: NonNegativeInt
    whole: NonNegativeInt
    cpus: FiniteFloat
    gpus: FiniteFloat = 0.0
    others: tuple[str, ...] = ()
    most: NonNegativeInt | None = None
    has_no_node: bool = False

    def __str__(self) -> str:
        """`4 of 16 CPUs (2 of 8 trials at a time), shared with the sweeps a and b; at most 8 workers`."""
        if self.has_no_node:
            return "none: no node with room for a trial is left; the sweep waits for one that joins"
        each, unit = (self.gpus, "GPU") if self.gpus else (self.cpus, "CPU")
        parts = f"{self.places * each:.4g} of {some(float(f'{self.whole * each:.4g}'), unit)} "
        parts += f"({self.places} of {some(self.whole, 'trial')} at a time)"
        names = " and ".join(filter(None, [", ".join(self.others[:-1]), *self.others[-1:]]))
        shared = f", shared with the sweep{'s' * (len(self.others) > 1)} {names}" if names else ""
        return parts + shared + (f"; at most {some(self.most, 'worker')}" if self.most is not None else "")


def note_part(drivers: StoragePath, attempt: int, part: ClusterPart) -> None:
    """Note a driver's part; see `driver_note.note`."""
    note(drivers, attempt, ENDING, part)


def noted_part(drivers: StoragePath) -> ClusterPart | None:
    """The part of the latest driver; None where it has noted none, or that cannot be read."""
    return noted(drivers, ENDING, ClusterPart)
