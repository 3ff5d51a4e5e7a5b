"""Trials that train nothing: after a wait they report the events of a worker.

Cheap to import, since every worker imports it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.attempt import Attempt, HardwareRecord
from meltpoint.sweeps.on_ray.trainable import Trainable, result_of
from meltpoint.sweeps.worker.outcome import TrialEvent, TrialOutcome
from meltpoint.sweeps.worker.work_order import Order, from_config

EPOCHS = 2  # epoch events per trial
HARDWARE = HardwareRecord(device="cpu", name="none", threads=1, gpu_share=0.0, precision="fp32", host="none")


def events_of(order: Order, epochs: int = EPOCHS, metric: str = "accuracy") -> Iterator[TrialEvent]:
    """The events of a trial: its start, and each epoch, the last one with the outcome."""
    attempt = Attempt(hardware=HARDWARE, task_parameters=1)
    yield TrialEvent(trial=order.id, attempt=attempt)
    score = (int(order.id, 16) % 1000) / 1000
    for epoch in range(1, epochs + 1):
        record = EpochResult(
            epoch=epoch, phase="train", step=epoch, train_loss=1.0, dev={metric: score}, train_seconds=0.0,
            dev_seconds=0.0, learning_rate=1e-3, finished_at=time.time(),
        )  # fmt: skip
        attempt = attempt.model_copy(update={"epochs": [*attempt.epochs, record]})
        yield TrialEvent(
            trial=order.id, attempt=attempt, score=score, percent=100 * epoch / epochs,
            outcome=TrialOutcome(status="finished") if epoch == epochs else None,
        )  # fmt: skip


def waiting(seconds: float) -> Trainable:
    """A trainable that waits, half of the time in each of two epochs, and reports the events of a trial."""

    def wait(config: dict[str, Any]) -> None:
        from ray import tune

        (order,) = from_config(config)
        started, *epochs = events_of(order)
        tune.report(result_of([started]))
        for event in epochs:
            time.sleep(seconds / len(epochs))
            tune.report(result_of([event]))

    return wait
