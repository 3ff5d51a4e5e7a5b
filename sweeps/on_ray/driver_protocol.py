"""The interface between Ray Tune's parts and the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.worker.events import Event
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import WorkOrder

Trainable = Callable[[dict[str, Any]], None]
"""Ray Tune's function trainable: `WorkOrder.as_config` in, its events reported."""


class Driver(Protocol):
    """The sweep's driver, as seen from Ray: it hands out orders and is told of events.

    Attributes:
        slots: how many workers there are.
        failure: an error on the driver's side (a full disk), which Tune would bury in text of its own.
    """

    slots: int
    failure: Exception | None

    def next_order(self) -> WorkOrder | str:
        """An order, "wait" or "done"."""

    def on_start(self, work: WorkOrder) -> None:
        """A worker took the order up."""

    def on_event(self, event: Event) -> None:
        """A worker's event about one trial."""

    def on_order_end(self, work: WorkOrder, outcome: TrialOutcome) -> None:
        """The order left Ray: its worker is done, died, or was stopped.

        Args:
            outcome: of those trials whose end no event has told.
        """

    def wants_stop(self, work: WorkOrder) -> bool:
        """True if a running trial should end now (the time budget)."""

    def early_stopping(self, work: WorkOrder) -> EarlyStopping | None:
        """The rule of the order's space."""

    def has_enough(self) -> bool:
        """True if idle workers would only keep places from other sweeps."""

    def tick(self) -> None:
        """Called between events."""
