"""Overhead of the driver per trial: thousands of trials that do nothing, with planner, ledger, MLflow and Ray.

Everything between the command line and the worker is as in a sweep; only the training is left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import EpochRecord, HardwareRecord
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.room import slots
from meltpoint.sweeps.on_ray.trainable import result_of
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.events import EpochEnded, Event, Started, TrialEnded
from meltpoint.sweeps.worker.finalist_scoring import Scorer
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import WorkOrder

EPOCHS = 2  # epoch events per trial
WARM_SHARE = 0.1  # the first share of the trials is not counted, because of start-up and filling caches
CALLS = ("next_order", "on_start", "on_event", "on_order_end", "wants_stop", "early_stopping", "tick")


@dataclass
class TimedDriver:
    """A proxy of the driver that times the calls from Ray and samples the process's memory when trials end.

    Attributes:
        seconds: call → time spent in it.
        samples: (trials ended, wall seconds, driver CPU seconds, seconds in calls, driver's resident bytes).
    """

    driver: SweepDriver
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CALLS, 0.0))
    samples: list[tuple[int, float, float, float, int]] = field(default_factory=list)
    ended: int = 0

    def __getattr__(self, name: str) -> Any:
        """Delegate to the driver, with timing of the calls in `CALLS`."""
        value = getattr(self.driver, name)
        return self._timed(name, value) if name in CALLS else value

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[name] += time.perf_counter() - started
                if name == "on_event" and isinstance(arguments[0], TrialEnded):
                    self.ended += 1
                    self._sample()

        return timed

    def _sample(self) -> None:
        resident = psutil.Process().memory_info().rss
        now = (time.perf_counter(), time.process_time(), sum(self.seconds.values()))
        self.samples.append((self.ended, *now, resident))

    def settle(self) -> float:
        """Wait until everything is written to MLflow, and return the seconds that it took."""
        started = time.perf_counter()
        self.driver.tracker.flush()
        self._sample()
        return time.perf_counter() - started


class NoScorer(Scorer):
    """A scorer that scores no finalist, since there are no weights."""

    def has(self, trial: str) -> bool:
        """Always true, as if the trial had been sent already."""
        return True


@dataclass(frozen=True)
class Overhead:
    """The cost per trial, without the first tenth of the trials.

    Attributes:
        trials: the number of trials that ran.
        slots: the number of concurrent trials.
        wall_ms: wall time per trial, including the time that workers wait for Ray.
        driver_ms: CPU time of the driver's process per trial: Ray Tune with its threads, and Meltpoint.
        own_ms: wall time in Meltpoint's driver per trial.
        own_ms_by_call: the same by the driver's method.
        growth_kb: growth of the driver's resident memory per trial: the slope of a fitted line.
        behind_s: seconds until MLflow was complete after the last trial.
    """

    trials: int
    slots: int
    wall_ms: float
    driver_ms: float
    own_ms: float
    own_ms_by_call: dict[str, float]
    growth_kb: float
    behind_s: float


def idle(config: dict[str, Any]) -> None:
    """A trainable that trains nothing and reports the events of a trial of two epochs."""
    from ray import tune

    (order,) = WorkOrder.from_config(config).orders
    hardware = HardwareRecord(device="cpu", name="none", threads=1, gpu_share=0.0, precision="fp32", host="none")
    started = Started(trial=order.id, hardware=hardware, trained_together=1, input_notes=(), task_parameters=1)
    tune.report(result_of([started]))
    score = (int(order.id, 16) % 1000) / 1000
    for epoch in range(1, EPOCHS + 1):
        record = EpochRecord(
            epoch=epoch, phase="train", step=epoch, train_loss=1.0, dev={"accuracy": score}, train_seconds=0.0,
            dev_seconds=0.0, learning_rate=1e-3, finished_at=time.time(),
        )  # fmt: skip
        events: list[Event] = [EpochEnded(trial=order.id, epoch=record, score=score, percent=100 * epoch / EPOCHS)]
        if epoch == EPOCHS:
            events.append(TrialEnded(trial=order.id, outcome=TrialOutcome(status="finished")))
        tune.report(result_of(events))


def run(trials: int, searcher: str, encoder: str, storage: Path) -> Overhead:
    """Run a number of idle trials of one cell."""
    spec = SweepSpec(
        name="overhead", encoders=(encoder,), modes=("fine_tuning",), tasks=("demo_sentiment",), head="linear",
        trials=trials, seeds=1, searcher=searcher,  # type: ignore[arg-type]
    )  # fmt: skip
    resources = Resources(storage=str(storage), gpus=0.0)
    ledger, cells = Ledger(storage_folder(resources.storage) / spec.name), open_cells(spec)
    with ledger.driving(), Progress(lambda: list(planner.cells.values()), Console(quiet=True)) as progress:
        settle_specification(ledger, spec, cells)
        planner = Planner(spec, cells, ledger.records())
        tracker = Tracker(spec.name, default_uri(storage), storage)
        tracker.open(cells, spec.model_dump_json())
        tracker.flush()  # MLflow's imports and its first tables are start-up, and would last into the trials
        scorer = NoScorer(ledger.folder)
        timed = TimedDriver(SweepDriver(planner, ledger, tracker, progress, scorer, resources))
        with Cluster(None) as cluster:
            cluster.join()
            count = timed.driver.slots = slots(resources.cpus, 0.0)
            experiment.run_on_tune(timed, is_local=True, trainable=idle)
            behind = timed.settle()
    if tracker.trouble is not None:
        raise RuntimeError(tracker.trouble)
    return overhead(timed, count, behind)


def overhead(timed: TimedDriver, slots: int, behind: float) -> Overhead:
    """Compute the figures after the warm-up."""
    warm = timed.samples[int(WARM_SHARE * len(timed.samples)) :]
    first, last = warm[0], warm[-1]
    count = last[0] - first[0]
    by_call = {call: 1000 * seconds / timed.ended for call, seconds in timed.seconds.items()}
    wall, driver, own = (1000 * (last[index] - first[index]) / count for index in (1, 2, 3))
    growth = slope([(float(sample[0]), sample[4] / 1000) for sample in warm])
    return Overhead(timed.ended, slots, wall, driver, own, by_call, growth, behind)


def slope(points: list[tuple[float, float]]) -> float:
    """The slope of the least-squares line through points."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    across = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return across / sum((x - x_mean) ** 2 for x, _ in points)


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(prog="driver_overhead", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--searcher", choices=("random", "tpe"), default="random")
    parser.add_argument("--encoder", default="minilm", help="not loaded; its files are only hashed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        result = run(options.trials, options.searcher, options.encoder, Path(folder))
    if options.json:
        print(json.dumps(asdict(result), indent=1))
        return
    print(f"{result.trials} idle trials, {result.slots} at a time, searcher {options.searcher}")
    print(
        f"  per trial: {result.wall_ms:.1f} ms wall, {result.driver_ms:.1f} ms driver CPU, "
        f"of it {result.own_ms:.1f} ms ours"
    )
    print("  ours: " + ", ".join(f"{call} {ms:.2f}" for call, ms in result.own_ms_by_call.items()) + " ms")
    print(
        f"  the driver's memory grows by {result.growth_kb:.0f} kB per trial; MLflow ends {result.behind_s:.1f} s later"
    )


if __name__ == "__main__":
    main()
