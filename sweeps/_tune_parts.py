"""The three seats that Ray Tune offers, each a thin adapter to the conductor. Imports Ray, so it is imported late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray.air.execution._internal import actor_manager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from meltpoint.sweeps.orders import Order
from meltpoint.sweeps.ray_tune import Conductor

DIED = (
    "its worker died, most often because the machine ran out of memory; "
    "a smaller batch_size or max_pieces, or fewer trials at a time (--cpus-per-trial)"
)

Orders = dict[str, Order]
"""Ray's trial id → the order that it runs."""


def survive_memory_kills() -> None:
    """Let Tune take a worker that Ray's memory monitor killed for what it is, a dead actor and so a failed trial.

    Ray 2.60's actor manager knows `RayActorError` alone and ends the whole experiment on `OutOfMemoryError`.
    """
    actor_manager.RayActorError = (RayActorError, OutOfMemoryError)  # type: ignore


class Unkept:
    """Tune pickles its parts for a restore that never comes here; the conductor stays out of that."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class CellSearch(Unkept, Searcher):
    """Asks the conductor for orders; what Tune would snapshot of it is nothing, for the ledger has it."""

    def __init__(self, conductor: Conductor, orders: Orders) -> None:
        super().__init__(metric="score", mode="max")
        self.conductor, self.orders = conductor, orders

    def suggest(self, trial_id: str) -> Any:
        """The next order as a Tune configuration."""
        order = self.conductor.next_order()
        if isinstance(order, str):
            return str(Searcher.FINISHED) if order == "done" else None
        self.orders[trial_id] = order
        return {"order": order.as_json()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial left Tune: by its outcome (heard already), by the referee's word, or because its worker died."""
        order = self.orders.pop(trial_id, None)
        if order is not None:
            self.conductor.lost(order, DIED if error else "stopped")

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save; Tune wants the file."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


class Referee(Unkept, FIFOScheduler):
    """Routes each epoch to its own cell's ASHA bracket where the space asks for early stopping; else lets it go on."""

    def __init__(self, conductor: Conductor, orders: Orders) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conductor, self.orders = conductor, orders
        self.brackets: dict[tuple[str, str, str], AsyncHyperBandScheduler] = {}

    def _bracket(self, trial: Trial) -> AsyncHyperBandScheduler | None:
        order = self.orders.get(trial.trial_id)
        rule = self.conductor.early_stopping(order) if order is not None and order.role == "search" else None
        if order is None or rule is None:
            return None
        if order.cell not in self.brackets:
            self.brackets[order.cell] = AsyncHyperBandScheduler(
                time_attr="epoch", metric="score", mode="max", max_t=10**6,
                grace_period=rule.grace_epochs, reduction_factor=rule.reduction_factor,
            )  # fmt: skip
        return self.brackets[order.cell]

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A trial enters: into its cell's bracket."""
        bracket = self._bracket(trial)
        if bracket is not None:
            bracket.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Go on, or stop."""
        order = self.orders.get(trial.trial_id)
        if order is None or result.get("event") != "epoch":
            return str(TrialScheduler.CONTINUE)
        bracket = self._bracket(trial)
        decision = TrialScheduler.CONTINUE
        if bracket is not None:
            decision = bracket.on_trial_result(tune_controller, trial, {**result, "epoch": result["body/epoch"]})
        if self.conductor.wants_stop(order):
            decision = TrialScheduler.STOP
        return str(decision)


class Listener(Unkept, Callback):
    """Passes Tune's events on."""

    def __init__(self, conductor: Conductor, orders: Orders) -> None:
        self.conductor, self.orders = conductor, orders

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A worker took a trial up."""
        with self._on_record():
            self.conductor.began(self.orders[trial.trial_id])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A worker's event."""
        order = self.orders.get(trial.trial_id)
        if order is not None:
            with self._on_record():
                self.conductor.heard(order, {"event": result["event"], "body": result["body"]})

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Between events."""
        with self._on_record():
            self.conductor.tick()

    @contextlib.contextmanager
    def _on_record(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.conductor.failure = error
            raise
