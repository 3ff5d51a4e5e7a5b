"""Trials that train nothing: after a wait they report the events of a worker.

Light to import, as workers import it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from meltpoint.sweeps.ledger.records import EpochRecord, HardwareRecord
from meltpoint.sweeps.on_ray.trainable import Trainable, result_of
from meltpoint.sweeps.worker.outcome import EpochEnded, Event, Started, TrialEnded, TrialOutcome
from meltpoint.sweeps.worker.work_order import Order, WorkOrder

EPOCHS = 2  # epoch events per trial
HARDWARE = HardwareRecord(device="cpu", name="none", threads=1, gpu_share=0.0, precision="fp32", host="none")


def events_of(order: Order, epochs: int = EPOCHS, metric: str = "accuracy") -> Iterator[Sequence[Event]]:
    """The events of a trial, those that happen at once together: its start, each epoch, the last one with its end."""
    yield [Started(trial=order.id, hardware=HARDWARE, trained_together=1, input_notes=(), task_parameters=1)]
    score = (int(order.id, 16) % 1000) / 1000
    for epoch in range(1, epochs + 1):
        record = EpochRecord(
            epoch=epoch, phase="train", step=epoch, train_loss=1.0, dev={metric: score}, train_seconds=0.0,
            dev_seconds=0.0, learning_rate=1e-3, finished_at=time.time(),
        )  # fmt: skip
        ended = EpochEnded(trial=order.id, epoch=record, score=score, percent=100 * epoch / epochs)
        end = [TrialEnded(trial=order.id, outcome=TrialOutcome(status="finished"))] if epoch == epochs else []
        yield [ended, *end]


def waiting(seconds: float) -> Trainable:
    """A trainable that waits, half of the time in each of two epochs, and reports the events of a trial."""

    def wait(config: dict[str, Any]) -> None:
        from ray import tune

        (order,) = WorkOrder.from_config(config).orders
        started, *epochs = events_of(order)
        tune.report(result_of(started))
        for events in epochs:
            time.sleep(seconds / len(epochs))
            tune.report(result_of(events))

    return wait
