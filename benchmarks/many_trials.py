"""Ten thousand trials that only wait, on sixteen fractional-core workers: overhead in time, memory and open files.

Planner, ledger, MLflow and Ray Tune are real; only training and scoring are left out. The goals: at most 1.28 times the
ideal time, as in Ray's own release test of ten thousand one-second trials on 16 CPUs (800 s instead of 625); and, from
the first tenth of the trials to the last, the driver's memory changes by at most a tenth and its open files grow by at
most a tenth. The exit status is 1 if a goal is missed. The goals are for a machine with 16 cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from meltpoint.benchmarks.null_worker import waiting
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.room import slots
from meltpoint.sweeps.on_ray.trainable import Trainable
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.finalist_scoring import Scorer

MOST_TIMES_IDEAL = 1.28
MOST_CHANGE = 0.10
"""Largest allowed change of memory, and growth of open files, as a share of the value at the first mark."""
MARKS = 10
CALLS = ("next_order", "on_start", "on_event", "on_order_end", "wants_stop", "early_stopping", "tick")


class NoScorer(Scorer):
    """A scorer that scores no finalist, since there are no weights."""

    def has(self, trial: str) -> bool:
        """Always true, as if the trial had been sent already."""
        return True

    def prepare(self) -> None:
        """Start no worker."""


@contextmanager
def opened_driver(spec: SweepSpec, resources: Resources) -> Iterator[SweepDriver]:
    """Open a sweep in its storage; MLflow's store and first tables exist before the block runs.

    Raises:
        RuntimeError: MLflow did not accept everything written in the block.
    """
    storage = storage_folder(resources.storage)
    ledger, cells = Ledger(storage / spec.name), open_cells(spec)
    with ledger.driving(), Progress(lambda: list(planner.cells.values()), Console(quiet=True)) as progress:
        settle_specification(ledger, spec, cells)
        planner = Planner(spec, cells, ledger.records())
        tracker = Tracker(spec.name, default_uri(storage), storage)
        tracker.open(cells, spec.model_dump_json())
        tracker.flush()  # otherwise MLflow's imports and first tables would overlap the trials
        yield SweepDriver(planner, ledger, tracker, progress, NoScorer(ledger.folder), resources)
        tracker.leave()
    if tracker.trouble is not None:
        raise RuntimeError(tracker.trouble)


@dataclass(frozen=True, slots=True)
class Sample:
    """The driver's process when a trial ended.

    Attributes:
        ended: the number of trials that have ended.
        wall, processor, own: wall seconds, CPU seconds of the process and seconds in calls, from arbitrary origins.
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
        tune_seconds: wall seconds of Ray Tune's run, including worker start-up.
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
                if name == "on_event" and arguments[0].outcome is not None:
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


def one_cell(name: str, trials: int, searcher: str, encoder: str) -> SweepSpec:
    """A sweep of one cell with one final, which no search trial can replace, since there are no weights."""
    return SweepSpec(
        name=name, encoders=(encoder,), modes=("fine_tuning",), tasks=("demo_sentiment",), head="linear",
        trials=trials, seeds=1, searcher=searcher,  # type: ignore[arg-type]
    )  # fmt: skip


def drive(spec: SweepSpec, resources: Resources, trainable: Trainable) -> TimedDriver:
    """Run a sweep on a local Ray cluster, with `trainable` in place of its own workers.

    Raises:
        RuntimeError: MLflow did not accept everything written.
    """
    with opened_driver(spec, resources) as driver, Cluster(None) as cluster:
        cluster.join()
        timed = TimedDriver(driver)
        driver.slots = slots(resources.cpus_per_trial, 0.0)
        timed.run(trainable)
    return timed


@dataclass(frozen=True)
class Mark:
    """The driver's process after a number of trials.

    Attributes:
        resident_mb: resident memory in units of 10^6 bytes.
        files: open files, sockets and pipes.
        processor_ms: CPU milliseconds of the process per trial since the previous mark.
    """

    trials: int
    resident_mb: float
    files: int
    processor_ms: float


@dataclass(frozen=True)
class Scale:
    """The figures of a run.

    Attributes:
        workers: number of concurrent trials.
        seconds: wait time of a trial.
        ideal_seconds: trials × seconds / workers.
        wall_seconds: wall time of Ray Tune's run, including worker start-up.
        times_ideal: wall_seconds / ideal_seconds.
        steady_times_ideal: the same between the first mark and the last trial.
    """

    trials: int
    workers: int
    seconds: float
    ideal_seconds: float
    wall_seconds: float
    times_ideal: float
    steady_times_ideal: float
    marks: list[Mark]

    def missed(self) -> list[str]:
        """The missed goals, one line each."""
        lines = []
        if self.times_ideal > MOST_TIMES_IDEAL:
            lines.append(f"{self.times_ideal:.2f} times the ideal time; at most {MOST_TIMES_IDEAL}")
        memory = change([mark.resident_mb for mark in self.marks])
        if memory > MOST_CHANGE:
            lines.append(f"the driver's memory changed by {100 * memory:.0f} %; at most {100 * MOST_CHANGE:.0f} %")
        files = growth([mark.files for mark in self.marks])
        if files > MOST_CHANGE:
            lines.append(f"its open files grew by {100 * files:.0f} %; at most {100 * MOST_CHANGE:.0f} %")
        return lines


def change(values: Sequence[float]) -> float:
    """The largest distance from the first value, as a share of it."""
    return max(abs(value - values[0]) for value in values) / values[0]


def growth(values: Sequence[float]) -> float:
    """The largest rise above the first value, as a share of it; finished workers close their files."""
    return max(values) / values[0] - 1


def marks_of(samples: Sequence[Sample], trials: int) -> list[Mark]:
    """The process at each tenth of the trials, from the first sample that reaches it.

    Args:
        samples: in order.
        trials: number of planned trials; at least `MARKS`.
    """
    marks: list[Mark] = []
    before = samples[0]
    for number in range(1, MARKS + 1):
        here = next(sample for sample in samples if sample.ended >= number * trials // MARKS)
        each = 1000 * (here.processor - before.processor) / max(1, here.ended - before.ended)
        marks.append(Mark(here.ended, here.resident / 1e6, here.files, each))
        before = here
    return marks


def scale(timed: TimedDriver, trials: int, seconds: float) -> Scale:
    """The figures of a finished run."""
    workers = timed.driver.slots
    ideal = timed.ended * seconds / workers
    first = next(sample for sample in timed.samples if sample.ended >= trials // MARKS)
    last = next(sample for sample in timed.samples if sample.ended >= trials)
    steady = (last.wall - first.wall) / ((last.ended - first.ended) * seconds / workers)
    return Scale(
        trials=timed.ended, workers=workers, seconds=seconds, ideal_seconds=ideal, wall_seconds=timed.tune_seconds,
        times_ideal=timed.tune_seconds / ideal, steady_times_ideal=steady, marks=marks_of(timed.samples, trials),
    )  # fmt: skip


def run(trials: int, seconds: float, workers: int, searcher: str, encoder: str, storage: Path) -> Scale:
    """Run waiting trials of one cell on `workers` workers of this machine."""
    share = (psutil.cpu_count() or 1) / workers
    resources = Resources(storage=str(storage), gpus_per_trial=0.0, cpus_per_trial=share)
    timed = drive(one_cell("many", trials, searcher, encoder), resources, waiting(seconds))
    return scale(timed, trials, seconds)


def show(result: Scale) -> None:
    """Print the figures."""
    print(f"{result.trials} trials of {result.seconds:g} s on {result.workers} workers")
    print(
        f"  {result.wall_seconds:.0f} s, ideal {result.ideal_seconds:.0f} s: {result.times_ideal:.2f} times; "
        f"without the first tenth {result.steady_times_ideal:.2f} times"
    )
    print("  trials   memory (MB)   open files   driver CPU (ms a trial)")
    for mark in result.marks:
        print(f"  {mark.trials:6d}   {mark.resident_mb:11.0f}   {mark.files:10d}   {mark.processor_ms:10.1f}")


def main() -> None:
    """Run the benchmark, print the figures, and exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="many_trials", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help=f"at least {MARKS}")
    parser.add_argument("--seconds", type=float, default=1.0, help="wait time of a trial")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--searcher", choices=("random", "tpe"), default="random")
    parser.add_argument("--encoder", default="minilm", help="not loaded; its files are only hashed")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
    options = parser.parse_args()
    if options.trials < MARKS:
        parser.error(f"--trials {options.trials}: at least {MARKS}.")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        result = run(
            options.trials, options.seconds, options.workers, options.searcher, options.encoder, Path(folder)
        )  # fmt: skip
    missed = result.missed()
    if options.json:
        print(json.dumps({**asdict(result), "missed": missed}, indent=1))
    else:
        show(result)
        print("\n".join(f"  missed: {line}" for line in missed) or "  every goal is met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
