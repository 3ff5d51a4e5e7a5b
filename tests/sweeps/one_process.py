"""A driver whose orders are run in this process, one after another, as Ray's workers run them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker import worker
from meltpoint.sweeps.worker.work_order import Order


class Screen:
    """A progress and a tracker that remember what is lost."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def lost(self, proposal: Any, why: str) -> None:
        """A trial is tried again."""
        self.lines.append(why)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def order_of(cell: OpenCell, trial: Trial, folder: Path, **changes: object) -> Order:
    """A worker's order for a trial, on one CPU; its weights and its cache go to a folder."""
    facts: dict[str, Any] = {
        **dict(Trial.of(trial)), "head": cell.head, "data": cell.data, "metric": cell.metric,
        "data_fingerprint": cell.data_fingerprint, "encoder_fingerprint": cell.encoder_fingerprint,
        "checkpoint": str(folder / trial.id), "cpus": 1, "gpus": 0, "cache": str(folder / "cache"),
    }  # fmt: skip
    return Order(**(facts | changes))


def quiet_driver(
    planner: Planner, ledger: Ledger, scorer: Any = None, clock: Callable[[], float] = time.monotonic, **options: Any
) -> SweepDriver:  # fmt: skip
    """A driver whose screen, tracker and (by default) scorer do nothing."""
    silent: Any = Screen()
    resources = Resources(**{"storage": str(ledger.folder.parent), "gpus_per_trial": 0.0, **options})
    return SweepDriver(planner, ledger, silent, silent, scorer or silent, resources, clock)


def driver_of(spec, cells, folder: Path, gpus: float = 0.0) -> tuple[SweepDriver, Screen]:
    ledger = Ledger(folder / "sweep")
    ledger.create()
    screen: Any = Screen()
    planner = Planner(spec, cells, ledger.records())
    scorer = SimpleNamespace(prepare=lambda _: None, has=lambda trial: True, submitted=set())
    resources = Resources(storage=str(folder), gpus_per_trial=gpus)
    return SweepDriver(planner, ledger, screen, screen, scorer, resources), screen


def drive(driver: SweepDriver, trials: int, run: Callable[[Order], Order] = lambda order: order) -> list[Order]:
    """Run orders in this process, as Ray's workers do, until so many trials have a record; the orders as handed out."""
    orders: list[Order] = []
    while len(driver.ledger.records()) < trials:
        work = driver.next_order()
        assert isinstance(work, tuple)
        orders += work
        driver.on_start(work)
        for events in worker.run(tuple(run(order) for order in work)):
            for event in events:
                driver.on_event(event)
        driver.on_order_end(work, worker.failed("worker", "it said nothing of its end"))
        assert len(orders) < 20
    return orders


def only(driver: SweepDriver) -> TrialRecord:
    (record,) = driver.ledger.records()
    return record
