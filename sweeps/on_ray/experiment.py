"""One Ray Tune experiment for the whole matrix: the planner's proposals in, the workers' events out.

Tune's own experiment state is thrown away: its snapshots are seconds apart, and the ledger is the truth.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.machine import heap
from meltpoint.sweeps.on_ray.trainable import train_on_ray
from meltpoint.sweeps.worker.events import Event
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import WorkOrder

FOREVER = 10**9  # samples: the searcher says when there are no more
MOST_PENDING = "TUNE_MAX_PENDING_TRIALS_PG"
"""Tune's own variable: how many trials may wait for a worker, and so how many workers start at a time."""

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
        """Whether a running trial should end now (the time budget)."""

    def early_stopping(self, work: WorkOrder) -> EarlyStopping | None:
        """The rule of the order's space."""

    def tick(self) -> None:
        """Called between events."""


def run_on_tune(driver: Driver, is_local: bool, trainable: Trainable | None = None) -> None:
    """Run until the driver has no more orders, or until Ctrl-C.

    Args:
        is_local: whether the cluster is this sweep's own, whose workers have the driver's environment.
        trainable: what runs an order in a worker; None is `trainable.train_on_ray`.
    """
    from ray import tune

    from meltpoint.sweeps.on_ray import tune_adapters as parts

    heap.raise_gc_threshold()
    heap.freeze_heap()
    for name in ("ray", "ray.tune"):  # what fails is in the ledger and on the screen, in one line each
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parts.survive_memory_kills()
    if is_local:
        parts.reuse_prestarted_workers()
    orders: parts.Orders = {}
    outcomes: parts.Outcomes = {}
    with (
        tempfile.TemporaryDirectory(prefix="meltpoint-tune-") as scratch, warnings.catch_warnings(),
        _workers_start_together(driver.slots),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        tuner = tune.Tuner(
            tune.with_resources(trainable or train_on_ray, parts.resources_of),
            tune_config=tune.TuneConfig(
                search_alg=parts.CellSearch(driver, orders, outcomes),
                scheduler=parts.AshaPerCell(driver, orders, outcomes),
                num_samples=FOREVER, reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep", storage_path=str(Path(scratch).absolute()), verbose=0,
                callbacks=[parts.Listener(driver, orders)],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception:
            if driver.failure is not None:
                raise driver.failure from None
            raise


@contextlib.contextmanager
def _workers_start_together(slots: int) -> Iterator[None]:
    """Let Tune ask for all workers at once: with a searcher of one's own it asks for the next when one has started.

    The driver sees to it that no more trials wait than there are workers without one (`next_order`). A number of the
    user's own comes first.
    """
    if MOST_PENDING in os.environ:
        yield
        return
    os.environ[MOST_PENDING] = str(slots)
    try:
        yield
    finally:
        del os.environ[MOST_PENDING]
