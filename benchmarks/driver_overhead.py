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

from meltpoint.benchmarks.driver_setup import add_arguments, opened_driver
from meltpoint.benchmarks.null_worker import idle
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.room import slots
from meltpoint.sweeps.on_ray.trainable import Trainable
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.worker.events import TrialEnded

WARM_SHARE = 0.1  # the first share of the trials is not counted, because of start-up and filling caches
CALLS = ("next_order", "on_start", "on_event", "on_order_end", "wants_stop", "early_stopping", "tick")


@dataclass(frozen=True, slots=True)
class Sample:
    """The driver's process when a trial ended.

    Attributes:
        ended: the number of trials that have ended.
        wall, processor, own: wall seconds, CPU seconds of the process, seconds in calls, each since some moment.
        resident: bytes of its resident memory.
        files: open files, sockets and pipes.
    """

    ended: int
    wall: float
    processor: float
    own: float
    resident: int
    files: int


@dataclass
class TimedDriver:
    """A proxy of the driver that times the calls from Ray and samples the process when trials end.

    Attributes:
        seconds: call → time spent in it.
        samples: one at the end of each trial, and one when MLflow is complete.
        tune_seconds: wall seconds that Ray Tune ran, the start of its workers included.
        behind: seconds after that until MLflow was complete.
    """

    driver: SweepDriver
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CALLS, 0.0))
    samples: list[Sample] = field(default_factory=list)
    ended: int = 0
    tune_seconds: float = 0.0
    behind: float = 0.0

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
        process = psutil.Process()
        now = (time.perf_counter(), time.process_time(), sum(self.seconds.values()))
        self.samples.append(Sample(self.ended, *now, process.memory_info().rss, process.num_fds()))

    def run(self, trainable: Trainable) -> None:
        """Run all trials on the joined cluster, then wait until everything is written to MLflow."""
        started = time.perf_counter()
        experiment.run_on_tune(self, trainable)
        self.tune_seconds = time.perf_counter() - started
        self.driver.tracker.flush()
        self.behind = time.perf_counter() - started - self.tune_seconds
        self._sample()


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


def run(trials: int, searcher: str, encoder: str, storage: Path) -> Overhead:
    """Run a number of idle trials of one cell."""
    timed = drive(one_cell("overhead", trials, searcher, encoder), Resources(storage=str(storage), gpus=0.0), idle)
    return overhead(timed)


def one_cell(name: str, trials: int, searcher: str, encoder: str) -> SweepSpec:
    """A sweep of one cell, and of one final that its search does not answer, since there are no weights."""
    return SweepSpec(
        name=name, encoders=(encoder,), modes=("fine_tuning",), tasks=("demo_sentiment",), head="linear",
        trials=trials, seeds=1, searcher=searcher,  # type: ignore[arg-type]
    )  # fmt: skip


def drive(spec: SweepSpec, resources: Resources, trainable: Trainable) -> TimedDriver:
    """Run a sweep on a local Ray cluster with other workers than its own.

    Raises:
        RuntimeError: MLflow did not take everything.
    """
    with opened_driver(spec, resources) as driver, Cluster(None) as cluster:
        cluster.join()
        timed = TimedDriver(driver)
        driver.slots = slots(resources.cpus, 0.0)
        timed.run(trainable)
    return timed


def overhead(timed: TimedDriver) -> Overhead:
    """Compute the figures after the warm-up."""
    warm = timed.samples[int(WARM_SHARE * len(timed.samples)) :]
    first, last = warm[0], warm[-1]
    count = last.ended - first.ended
    by_call = {call: 1000 * seconds / timed.ended for call, seconds in timed.seconds.items()}
    return Overhead(
        trials=timed.ended, slots=timed.driver.slots, wall_ms=1000 * (last.wall - first.wall) / count,
        driver_ms=1000 * (last.processor - first.processor) / count, own_ms=1000 * (last.own - first.own) / count,
        own_ms_by_call=by_call, growth_kb=slope([(float(one.ended), one.resident / 1000) for one in warm]),
        behind_s=timed.behind,
    )  # fmt: skip


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
    add_arguments(parser)
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
