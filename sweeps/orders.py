"""What a trial worker is told: everything that it needs, as plain JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from meltpoint.adapters.parameters import Value
from meltpoint.sweeps.records import Role
from meltpoint.tasks.core.task import DataSpec


class Order(BaseModel):
    """One trial to run.

    Attributes:
        id: the trial's identity.
        number: its place in the cell's order, from 0.
        setting: a complete setting.
        data: which data; a worker reads its train and dev splits, never test.
        data_fingerprint: what the data must be; a worker that reads anything else refuses.
        encoder_fingerprint: what the encoder's weights must be; "" takes any.
        checkpoint: the folder that the best weights go to.
        cpus, gpus: what Ray gives the trial.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    number: int
    role: Role
    encoder: str
    mode: str
    task: str
    head: str
    seed: int
    setting: dict[str, Value]
    data: DataSpec
    data_fingerprint: str
    encoder_fingerprint: str
    checkpoint: str
    cpus: float
    gpus: float

    @property
    def cell(self) -> tuple[str, str, str]:
        """(encoder, mode, task)."""
        return self.encoder, self.mode, self.task

    def as_json(self) -> dict[str, Any]:
        """The order as plain values."""
        return self.model_dump(mode="json")
