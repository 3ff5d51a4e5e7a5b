"""The function that Ray Tune runs in a worker: a work order in, its events out as Tune's results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from meltpoint.sweeps.worker.events import EpochEnded, Event, TrialEnded
from meltpoint.sweeps.worker.outcome import failed
from meltpoint.sweeps.worker.work_order import WorkOrder

EVENTS = "events"
"""The key of a result that holds the events which happened at once."""

UNFIT_NODE = "unfit_node"
"""The key of a refusal's result that holds the id of Ray's node."""


def train_on_ray(config: dict[str, Any]) -> None:
    """Ray Tune's function trainable.

    Args:
        config: of `WorkOrder.as_config`.
    """
    began = time.monotonic()
    from ray import tune

    from meltpoint.sweeps.worker.fitness import unfit

    work = WorkOrder.from_config(config)
    fault = unfit(work.first)
    if fault is not None:
        tune.report(refusal(work, fault))
        return
    from meltpoint.sweeps.worker.memory import drop_garbage, make_room
    from meltpoint.sweeps.worker.worker import run

    make_room(work.first.cell)
    for events in run(work, began):
        tune.report(result_of(events))
    drop_garbage()


def refusal(work: WorkOrder, fault: str) -> dict[str, Any]:
    """The result of a worker whose machine cannot train for the sweep: its trials are lost, to be tried elsewhere."""
    lost = failed("worker", fault)
    return {EVENTS: [TrialEnded(trial=order.id, outcome=lost) for order in work.orders], UNFIT_NODE: node_id()}


def node_id() -> str:
    """The id of Ray's node that this worker runs on."""
    import ray

    return ray.get_runtime_context().get_node_id()


def result_of(events: Sequence[Event]) -> dict[str, Any]:
    """Events as one result of Ray Tune.

    An epoch of a trial that trains alone has `score`, `epoch` and `percent` at the top level, as plain numbers: by
    these Tune's ASHA may stop it.
    """
    epochs = [event for event in events if isinstance(event, EpochEnded)]
    if len(epochs) != 1 or any(event.trial != epochs[0].trial for event in events):
        return {EVENTS: list(events)}
    (ended,) = epochs
    return {EVENTS: list(events), "score": ended.score, "epoch": ended.epoch.epoch, "percent": ended.percent}
