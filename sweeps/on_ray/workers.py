"""Work for Ray's processes: trials as Tune runs them, and finalists to be scored while others still train.

A work order goes in as a Tune configuration, and its events come out as Tune's results. What runs in a
process of Ray imports the training code there: the driver needs none of it. Imports Ray late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.on_ray.cluster_capacity import elsewhere
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.worker.outcome import TrialEvent, TrialOutcome, failed
from meltpoint.sweeps.worker.work_order import Order, WorkOrder, from_config

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

    def begins_too_late(self, work: WorkOrder) -> bool:
        """True if an order that has just begun is no longer wanted."""

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


# The scoring of finalists.


def _warm(order_json: dict[str, Any]) -> None:
    """Load a finalist's encoder: Ray starts a process for this task, which the first finalists then find ready."""
    from meltpoint.sweeps.worker.worker import warm_encoder, warm_training_data

    order = Order.model_validate(order_json)
    with suppress(Exception):  # `score_finalists` meets the same error, and reports it
        warm_encoder(order.located_encoder, warm_training_data(order.data).task.kind)


def _score_after(start: None, *documents: Any) -> list[dict[str, Any]]:
    """Score finalists once the process for it has started: Ray would start another one meanwhile."""
    from meltpoint.sweeps.worker.finalist_scoring import score_finalists
    from meltpoint.sweeps.worker.resources import release_memory

    answers = score_finalists(*documents)
    release_memory()
    return answers


WORTH_A_PROCESS = 4
"""A process takes about as long to start as this many groups of finalists to score on a small test split."""


class Scorer:
    """Sends finalists as Ray tasks to be scored, while others still train.

    On this machine's CPUs, one process scores all of them beside the trials: waiting for a free CPU would leave it all
    to the end, and each further process would first import for as long as it then scores.

    Args:
        folder: the sweep's.
        is_local: whether Ray runs on this machine alone, for this sweep alone.

    Attributes:
        processes: the most processes that score at the same time on this machine's CPUs.
        troubles: trial id → why it could not be scored, or why its scores do not count.
        submitted: ids of the finalists that were sent.
        damaged: (finalist, fault of its weights): each must be retrained before its cell is scored.
        unfit: ids of nodes that get nothing to score, because they refused to train.
    """

    def __init__(self, folder: StoragePath, is_local: bool = False) -> None:
        self.folder, self.is_local = folder, is_local
        self.processes = 1
        self._waiting: list[tuple[Sequence[Order], list[TrialRecord]]] = []
        self._sent: dict[Any, list[TrialRecord]] = {}
        self.troubles: dict[str, str] = {}
        self.submitted: set[str] = set()
        self.damaged: list[tuple[TrialRecord, str]] = []
        self.unfit: set[str] = set()
        self._start: Any = None

    def prepare(self, order: Order) -> None:
        """Start the scoring process while trials still run, for a final that begins: its imports take seconds."""
        if self._start is None and self.is_local:
            import ray

            self._start = ray.remote(num_cpus=0)(_warm).remote(order.as_json())

    @property
    def pending(self) -> bool:
        """True while finalists wait for their scores."""
        return bool(self._waiting or self._sent)

    def submit(self, orders: Sequence[Order], records: Sequence[TrialRecord]) -> None:
        """Send finalists of a cell, to be scored together."""
        self.submitted |= {record.id for record in records}
        self._waiting.append((orders, list(records)))
        self._send()

    def _send(self) -> None:
        """Send waiting finalists while there is a process for them."""
        while self._waiting and len(self._sent) < self._places():
            orders, records = self._waiting.pop(0)
            self._sent[self._sent_to_ray(orders, records)] = records

    def _places(self) -> float:
        """The number of groups of finalists that may be sent at the same time; Ray holds back what finds no room."""
        if not self.is_local or self._waiting[0][0][0].gpus:
            return math.inf
        return max(1, min(self.processes, (len(self._waiting) + len(self._sent)) // WORTH_A_PROCESS))

    def _sent_to_ray(self, orders: Sequence[Order], records: Sequence[TrialRecord]) -> Any:
        import ray

        first = orders[0]
        cpus = 0 if self.is_local and not first.gpus else first.cpus
        remote = ray.remote(
            num_cpus=cpus, num_gpus=first.gpus, max_retries=3, label_selector=elsewhere(self.unfit)
        )(_score_after)  # fmt: skip
        documents = [order.as_json() for order in orders], [record.model_dump_json() for record in records]
        return remote.remote(self._start, *documents, str(self.folder))

    def collect(self, timeout_seconds: float = 0.0) -> list[TrialRecord]:
        """The finalists whose scores arrived, with completed records."""
        if not self._sent:
            return []
        import ray

        # At the end of the sweep, it waits for the first that arrives, so that the next is sent at once.
        count = len(self._sent) if timeout_seconds == 0 else 1
        ready, _ = ray.wait(list(self._sent), num_returns=count, timeout=timeout_seconds)
        found = [record for reference in ready for record in self._completed(reference)]
        self._send()
        return found

    def _completed(self, reference: Any) -> list[TrialRecord]:
        import ray

        records = self._sent.pop(reference)
        try:
            answers = ray.get(reference)
        except ray.exceptions.RayError as error:
            why = f"its worker died ({str(error).strip().splitlines()[-1].strip()})"  # a traceback's reason is last
            answers = [{"test": None, "error": why, "again": False}] * len(records)
        scored = []
        for record, answer in zip(records, answers, strict=True):
            if answer["again"]:
                self.damaged.append((record, answer["error"]))
            if answer["test"] is None and (answer["again"] or answer["error"] is None):
                self.submitted.discard(record.id)  # sent again with the rest of its cell
            elif answer["error"] is None:
                found = {**answer["found"], "test": answer["test"], "test_fingerprint": answer["fingerprint"]}
                scored.append(record.model_copy(update=found))
            else:
                self.troubles[record.id] = answer["error"]
        return scored
