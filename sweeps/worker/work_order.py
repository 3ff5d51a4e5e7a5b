"""Work orders: everything a trial worker needs, as plain JSON."""

from __future__ import annotations

from typing import Any

from pydantic import Field, TypeAdapter

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.specification.sweep_options import CACHE_BYTES, LARGEST_SHARE, Overflow
from meltpoint.tasks.core.task import DataSpec


class Order(Trial):
    """One trial to run.

    Attributes:
        encoder_word: location of the encoder, if its name in the sweep does not give it; "" takes the name.
        data: the data; a worker reads its train and dev splits, never test.
        metric: required metric of the task; a worker that reads another in the task's file refuses. "" takes any.
        data_fingerprint: required fingerprint of the data; a worker that reads other data refuses.
        documents_fingerprint: required fingerprint of the data's documents; "" if the trial does not read them.
        encoder_fingerprint: required fingerprint of the encoder's files; "" takes any.
        test_fingerprint: required fingerprint of the test split when the trial is scored; "" takes any.
        checkpoint: the folder for the best weights.
        cpus, gpus: the trial's resources in Ray.
        cache: the folder that trials share (features); "" shares nothing.
        cache_bytes: size limit of the cache.
        caches_all_layers: whether the cell's other trials read other layers of the frozen encoder, so that one pass
            keeps them all if they fit.
        attempt: number of times that the trial restarted before, in this command.
        handed_out: number of times that this command handed it out before, for any reason.
        driver_attempt: the number of the driver that made the order (`lease`); 0 without a ledger's lease.
        saving_share: the share of training time that saving epochs may take (`SavingRule`); 0 saves none.
        cache_overflow: handling of features that do not fit: "on_the_fly" or "bf16" (`features.reading.Budget`).
        micro_batch_size: the most rows at a time; None for whole batches, or what `ceilings` allow.
        gradient_checkpointing: whether activations are recomputed; False to do so where the ceilings need it.
        ceilings: kind of GPU → the largest known product of rows and their longest length that fits the cell's trials
            there (`worker.resources`).
        plain_ceilings: the same without gradient checkpointing.
        ends_at: time at which the trial must stop, in seconds since 1970; None to train to its end.
        code_version: required version of the worker's code, on a cluster whose nodes may have another
            (`resources.unfit`); "" takes any, on a local cluster.
    """

    head: str
    encoder_word: str = ""
    data: DataSpec
    metric: str = ""
    data_fingerprint: str
    documents_fingerprint: str = ""
    encoder_fingerprint: str
    test_fingerprint: str = ""
    checkpoint: str
    cpus: float
    gpus: float
    cache: str = ""
    cache_bytes: int = CACHE_BYTES
    caches_all_layers: bool = False
    attempt: int = 0
    handed_out: int = 0
    driver_attempt: int = 0
    saving_share: float = LARGEST_SHARE
    cache_overflow: Overflow = "on_the_fly"
    micro_batch_size: int | None = None
    gradient_checkpointing: bool = False
    ceilings: dict[str, int] = Field(default_factory=dict)
    plain_ceilings: dict[str, int] = Field(default_factory=dict)
    ends_at: float | None = None
    code_version: str = ""

    @property
    def located_encoder(self) -> str:
        """The name or location by which a worker finds the encoder."""
        return self.encoder_word or self.encoder

    def as_json(self) -> dict[str, Any]:
        """The order as plain values."""
        return self.model_dump(mode="json")


WorkOrder = tuple[Order, ...]
"""The work of one Ray Tune trial: orders of the same cell, role and resources that a worker picks up together; at least
one, and several only if the encoder stays frozen."""

_WORK = TypeAdapter(WorkOrder)


def to_config(work: WorkOrder) -> dict[str, Any]:
    """The orders as a Ray Tune configuration: one string, because Tune copies a configuration several times."""
    return {"work": _WORK.dump_json(work).decode(), "cpus": work[0].cpus, "gpus": work[0].gpus}


def from_config(config: dict[str, Any]) -> WorkOrder:
    """The orders in a configuration from `to_config`."""
    return _WORK.validate_json(config["work"])
