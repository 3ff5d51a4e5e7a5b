"""Sending of finalists to Ray, to be scored on dev and test while others still train.

The scoring itself is `sweeps.worker.finalist_scoring`, which imports the training code; the driver needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.on_ray.cluster_capacity import elsewhere
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.worker.work_order import Order


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
        troubles: trial id → why it could not be scored.
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

    def has(self, trial: str) -> bool:
        """True if a finalist was sent already."""
        return trial in self.submitted

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

    def refuse(self, record: TrialRecord, why: str) -> None:
        """Reject a finalist's scores."""
        self.troubles[record.id] = why

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
