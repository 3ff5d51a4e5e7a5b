"""Work orders: everything that a trial worker needs, as plain JSON."""

from __future__ import annotations

from typing import Any

from pydantic import Field, TypeAdapter

from meltpoint.adapters.hyperparameters import Seeds
from meltpoint.adapters.training.epochs import LARGEST_SHARE
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.specification.sweep_options import CACHE_BYTES, Overflow
from meltpoint.tasks.core.task import DataSpec


class Order(Trial):
    """One trial to run.

    Attributes:
        encoder_word: where the encoder lies, if its name in the sweep does not say it; "" takes the name.
        data: which data; a worker reads its train and dev splits, never test.
        metric: what the task's metric must be; a worker that reads another in the task's file refuses. "" takes any.
        data_fingerprint: what the data must be; a worker that reads anything else refuses.
        documents_fingerprint: what the data's documents must be; "" where the trial does not read them.
        encoder_fingerprint: what the encoder's files must be; "" takes any.
        test_fingerprint: what the test split must be when the trial is scored; "" takes any.
        checkpoint: the folder that the best weights go to.
        cpus, gpus: what Ray gives the trial.
        cache: the folder of what trials share (features, first phases); "" shares nothing.
        cache_bytes: what the cache may take.
        attempt: how many times the trial was lost before, in this command.
        handed_out: how many times this command has handed it out before, for whatever reason.
        driver_attempt: the number of the driver that made the order (`lease`); 0 without a ledger's lease.
        saving_share: the share of training time that saving epochs may take (`SavingRule`); 0 saves none.
        cache_overflow: what to do with features that do not fit: "on_the_fly" or "bf16" (`features.budget.Budget`).
        micro_batch_size: the most rows at a time; None for whole batches, or what `ceilings` allow.
        ceilings: kind of GPU → the largest product of rows and their longest length that fits the cell's trials there,
            as far as is known (`worker.gpu_memory`).
        ends_at: when the trial stops wherever it is, in seconds since 1970; None to train to its end.
        seeds: the seed of each source of randomness; None where all of them are `seed`.
        code_version: what the worker's code must be, on a cluster whose nodes may have another (`worker.fitness`); ""
            takes any, on a local cluster.
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
    attempt: int = 0
    handed_out: int = 0
    driver_attempt: int = 0
    saving_share: float = LARGEST_SHARE
    cache_overflow: Overflow = "on_the_fly"
    micro_batch_size: int | None = None
    ceilings: dict[str, int] = Field(default_factory=dict)
    ends_at: float | None = None
    seeds: Seeds | None = None
    code_version: str = ""

    @property
    def located_encoder(self) -> str:
        """The word by which a worker finds the encoder."""
        return self.encoder_word or self.encoder

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training examples; trials that have it in common read the same batches."""
        return self.seed if self.seeds is None else self.seeds.order

    def as_json(self) -> dict[str, Any]:
        """The order as plain values."""
        return self.model_dump(mode="json")


WorkOrder = tuple[Order, ...]
"""The work of one Ray Tune trial: the orders of one cell, role and resources that a worker takes up together; at least
one, and more only where the encoder stays frozen."""

_WORK = TypeAdapter(WorkOrder)


def to_config(work: WorkOrder) -> dict[str, Any]:
    """The orders as a configuration of Ray Tune: one text, because Tune copies a configuration several times."""
    return {"work": _WORK.dump_json(work).decode(), "cpus": work[0].cpus, "gpus": work[0].gpus}


def from_config(config: dict[str, Any]) -> WorkOrder:
    """The orders of such a configuration."""
    return _WORK.validate_json(config["work"])
