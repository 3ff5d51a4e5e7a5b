"""The driver under a thousand simulated workers: its processor time at the rates at which their events would come.

The planner, the searchers, the ledger and MLflow on a local SQLite store are a sweep's own, without Ray: trials on
simulated workers start, end epochs and end at drawn times, and the driver is told in that order, as fast as it takes
it. MLflow has written everything whenever half a second has passed for the workers, as the tracker's writer gathers
updates for that long. A driver keeps up where it and MLflow's writer together, which share one interpreter, need less
than a second of processor time for each second of the workers'. What Ray Tune does for each event comes on top
(`driver_overhead` has it). Ends with status 1 where the first number of workers is too many.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from meltpoint.benchmarks.driver_setup import add_arguments, opened_driver
from meltpoint.benchmarks.null_worker import events_of
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.tracking.write_queue import GATHER_SECONDS
from meltpoint.sweeps.worker.events import Event
from meltpoint.sweeps.worker.outcome import lost_worker
from meltpoint.sweeps.worker.work_order import WorkOrder

TASKS = ("demo_sentiment", "demo_entailment", "demo_similarity", "demo_entities")
START_SECONDS = 5.0  # from a worker's order to its `Started`: an encoder that it may have to load
SPREAD = 0.4  # standard deviation of the logarithm of an epoch's seconds: lengths of text, sizes of batches


@dataclass(frozen=True)
class Load:
    """The work of the simulated workers.

    Attributes:
        trials: of all cells together.
        epochs: mean number of a trial's epochs, at least 2; they are 2 to 2 · epochs − 2.
        epoch_seconds: median of an epoch's duration, which is log-normal.
    """

    workers: int
    trials: int
    epochs: int = 10
    epoch_seconds: float = 30.0

    @property
    def trial_seconds(self) -> float:
        """The mean duration of a trial."""
        return START_SECONDS + self.epochs * self.epoch_seconds * float(np.exp(SPREAD**2 / 2))

    def durations(self, draw: np.random.Generator) -> list[float]:
        """Seconds of a trial's epochs, drawn."""
        count = int(draw.integers(2, 2 * self.epochs - 2, endpoint=True))
        return [self.epoch_seconds * float(seconds) for seconds in draw.lognormal(0.0, SPREAD, count)]


@dataclass(frozen=True)
class Reading:
    """Counters at one moment: simulated seconds, CPU seconds of the driver's thread and of the process, events."""

    simulated: float
    own: float
    process: float
    events: int
    trials: int


@dataclass(frozen=True)
class Rate:
    """What a number of workers costs while all of them are busy.

    Attributes:
        simulated_seconds: how long that was, for the workers.
        driver_ms: CPU time of the driver's thread per event.
        mlflow_ms: CPU time of MLflow's writer per event.
        driver_load, mlflow_load: CPU seconds of each per second of the workers.
    """

    workers: int
    trials: int
    events: int
    simulated_seconds: float
    driver_ms: float
    mlflow_ms: float
    driver_load: float
    mlflow_load: float

    @property
    def load(self) -> float:
        """Both together."""
        return self.driver_load + self.mlflow_load

    @property
    def keeps_up(self) -> bool:
        """True if they need less than one processor."""
        return self.load < 1


def rate(workers: int, first: Reading, last: Reading) -> Rate:
    """The cost between two readings."""
    events, seconds = last.events - first.events, last.simulated - first.simulated
    own = last.own - first.own
    mlflow = last.process - first.process - own
    return Rate(
        workers=workers, trials=last.trials - first.trials, events=events, simulated_seconds=seconds,
        driver_ms=1000 * own / events, mlflow_ms=1000 * mlflow / events, driver_load=own / seconds,
        mlflow_load=mlflow / seconds,
    )  # fmt: skip


@dataclass
class Simulation:
    """Workers that do nothing, at simulated times.

    Attributes:
        driver: is told of what happens.
        load: how many workers there are, and how long their trials last.
        draw: of durations.
        now: seconds since the beginning, for the workers.
        written: the same moment at which MLflow had everything last.
        events, trials: how many the driver was told of, and how many have ended.
        queue: (time, number, worker) of every worker, as a heap; None instead of one that asks for an order.
        full: the reading when every worker had begun.
        over: the reading when there was no new trial for the first time.
    """

    driver: SweepDriver
    load: Load
    draw: np.random.Generator
    now: float = 0.0
    written: float = 0.0
    events: int = 0
    trials: int = 0
    queue: list[tuple[float, int, Worker | None]] = field(default_factory=list)
    full: Reading | None = None
    over: Reading | None = None

    def run(self) -> Rate:
        """Run all trials.

        Raises:
            ValueError: there were too few trials to keep every worker busy for a while.
        """
        begins = self.draw.uniform(0.0, self.load.trial_seconds, self.load.workers)
        self.queue = [(float(at), number, None) for number, at in enumerate(begins)]
        heapq.heapify(self.queue)
        while self.queue and self.over is None:
            self._step(*heapq.heappop(self.queue))
        if self.full is None or self.over is None or self.over.events <= self.full.events:
            raise ValueError(f"{self.load.trials} trials are too few for {self.load.workers} workers; --trials more.")
        return rate(self.load.workers, self.full, self.over)

    def _step(self, at: float, number: int, worker: Worker | None) -> None:
        self.now = at
        if self.now - self.written >= GATHER_SECONDS:
            self.driver.tracker.flush()
            self.written = self.now
        if self.full is None and self.now >= self.load.trial_seconds:
            self.full = self._read()
        if worker is None or self._report(worker):
            worker = self._begin(worker)
        if worker is not None:
            heapq.heappush(self.queue, (worker.next_at, number, worker))
        self.driver.tick()

    def _begin(self, before: Worker | None) -> Worker | None:
        """A new order for a worker; None where there is none."""
        if before is not None:
            self.trials += 1
            self.driver.on_order_end(before.work, lost_worker(""))  # its trial has told its end
        work = self.driver.next_order()
        if isinstance(work, str):
            self.over = self._read()
            return None
        self.driver.on_start(work)
        return Worker.at(self.now, work, self.load.durations(self.draw))

    def _report(self, worker: Worker) -> bool:
        """Tell the driver what happens now; whether the trial is over."""
        for event in next(worker.reports):
            self.driver.on_event(event)
            self.events += 1
        if not worker.durations:
            return True
        worker.next_at = self.now + worker.durations.pop()
        return False

    def _read(self) -> Reading:
        self.driver.tracker.flush()
        return Reading(self.now, time.thread_time(), time.process_time(), self.events, self.trials)


@dataclass
class Worker:
    """A simulated worker with an order of one trial.

    Attributes:
        reports: what it reports next.
        durations: seconds of the epochs to come.
        next_at: when it reports.
    """

    work: WorkOrder
    reports: Iterator[Sequence[Event]]
    durations: list[float]
    next_at: float

    @classmethod
    def at(cls, now: float, work: WorkOrder, durations: list[float]) -> Worker:
        """A worker that takes an order up."""
        (order,) = work.orders
        return cls(work, events_of(order, len(durations), order.metric), durations, now + START_SECONDS)


def simulate(load: Load, searcher: str, encoder: str, storage: Path) -> Rate:
    """Run a sweep on simulated workers."""
    spec = SweepSpec(
        name="simulated", encoders=(encoder,), modes=("fine_tuning",), tasks=TASKS,
        trials=-(-load.trials // len(TASKS)), seeds=1, searcher=searcher,  # type: ignore[arg-type]
    )  # fmt: skip
    with opened_driver(spec, Resources(storage=str(storage), gpus=0.0)) as driver:
        driver.slots = load.workers
        return Simulation(driver, load, np.random.default_rng(0)).run()


def verdict(rates: Sequence[Rate]) -> str:
    """One line: up to how many workers the driver keeps up, as far as was tried, and where it would stop to."""
    kept = [one.workers for one in rates if one.keeps_up]
    beyond = [one.workers for one in rates if not one.keeps_up]
    last = rates[-1]
    at_its_cost = f"at the cost of {last.workers} it stops to at some {last.workers / last.load:.0f}"
    known = f"keeps up with {max(kept)} workers" if kept else "keeps up with none of these numbers of workers"
    return f"The driver {known}{f' and not with {min(beyond)}' if beyond else ''}; {at_its_cost}."


def main() -> None:
    """Run the benchmark, print the figures, and end with 1 where the first number of workers is too many."""
    parser = argparse.ArgumentParser(prog="many_workers", description=__doc__)
    parser.add_argument("--workers", default="1000", help="numbers of workers, apart by commas")
    parser.add_argument("--trials-per-worker", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, default=10, help="mean of a trial; at least 2")
    parser.add_argument("--epoch-seconds", type=float, default=30.0)
    add_arguments(parser)
    options = parser.parse_args()
    rates = []
    for workers in map(int, options.workers.split(",")):
        load = Load(workers, int(workers * options.trials_per_worker), options.epochs, options.epoch_seconds)
        with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
            rates.append(simulate(load, options.searcher, options.encoder, Path(folder)))
        if not options.json:
            show(rates[-1])
    print(json.dumps([asdict(one) for one in rates], indent=1) if options.json else verdict(rates))
    sys.exit(0 if rates[0].keeps_up else 1)


def show(one: Rate) -> None:
    """Print one number of workers' figures."""
    print(
        f"{one.workers} workers, {one.events / one.simulated_seconds:.1f} events/s for {one.simulated_seconds:.0f} s: "
        f"{one.driver_ms:.2f} ms an event in the driver, {one.mlflow_ms:.2f} for MLflow; "
        f"load {one.driver_load:.2f} + {one.mlflow_load:.2f} = {one.load:.2f} of a processor",
        flush=True,
    )


if __name__ == "__main__":
    main()
