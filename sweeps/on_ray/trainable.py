"""Bridge from driver to workers: the driver as Ray Tune calls it, and the function that Tune runs in a worker.

A work order goes in as a Tune configuration, and its events come out as Tune's results. Imports no Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.worker.outcome import TrialEvent, TrialOutcome, failed
from meltpoint.sweeps.worker.work_order import WorkOrder, from_config

EVENTS = "events"
"""The result key for the events since the last result."""

UNFIT_NODE = "unfit_node"
"""The result key for the id of the node that refused the order."""

Trainable = Callable[[dict[str, Any]], None]
"""A Ray Tune function trainable: takes a configuration from `to_config`, and reports events."""


class Driver(Protocol):
    """The sweep's driver.

    Attributes:
        slots: the number of workers.
        failure: an error in the driver (such as a full disk), which Tune would bury in its own text.
    """

    slots: int
    failure: Exception | None

    def next_order(self) -> WorkOrder | str:
        """An order, "wait" or "done"."""

    def on_start(self, work: WorkOrder) -> None:
        """Mark an order as picked up by a worker."""

    def on_event(self, event: TrialEvent) -> None:
        """Handle a worker's event about one trial."""

    def on_order_end(self, work: WorkOrder, outcome: TrialOutcome) -> None:
        """Handle an order that left Ray: its worker is done, died, or was stopped.

        Args:
            outcome: for the trials whose end no event has reported.
        """

    def wants_stop(self, work: WorkOrder) -> bool:
        """True if the time budget ends a running order now."""

    def early_stopping(self, work: WorkOrder) -> EarlyStopping | None:
        """The rule of the order's search space."""

    def has_enough(self) -> bool:
        """True if idle workers would only take places from other sweeps."""

    def tick(self) -> None:
        """Do the work due between events, and while no experiment runs."""


def train_on_ray(config: dict[str, Any]) -> None:
    """Run an order in a worker, as Ray Tune's function trainable.

    Args:
        config: from `to_config`.
    """
    began = time.monotonic()
    from ray import tune

    from meltpoint.sweeps.worker.resources import unfit

    work = from_config(config)
    fault = unfit(work[0])
    if fault is not None:
        tune.report(refusal(work, fault))
        return
    from meltpoint.sweeps.worker.resources import drop_garbage, make_room
    from meltpoint.sweeps.worker.worker import run

    make_room(work[0].cell)
    for events in run(work, began):
        tune.report(result_of(events))
    drop_garbage()


def refusal(work: WorkOrder, fault: str) -> dict[str, Any]:
    """The result of a worker whose machine cannot train for the sweep: its trials are lost and retried elsewhere."""
    import ray

    lost, node = failed("worker", fault), ray.get_runtime_context().get_node_id()
    return {EVENTS: [TrialEvent(trial=order.id, outcome=lost) for order in work], UNFIT_NODE: node}


def result_of(events: Sequence[TrialEvent]) -> dict[str, Any]:
    """A result of Ray Tune that holds events.

    An epoch of a trial that trains alone has `score`, `epoch` and `percent` at the top level, as plain numbers,
    for Tune's ASHA.
    """
    result: dict[str, Any] = {EVENTS: list(events)}
    if len(events) == 1 and (epoch := events[0].epoch) is not None:
        result |= {"score": events[0].score, "epoch": epoch.epoch, "percent": events[0].percent}
    return result
