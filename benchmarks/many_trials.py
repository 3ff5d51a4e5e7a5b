"""Ten thousand trials that only wait, on sixteen workers of a fraction of a core: time over ideal, and what grows.

The planner, the ledger, MLflow and Ray Tune are a sweep's own. The goals: at most 1.28 times the ideal time, as Ray's
own release test of ten thousand trials of a second on 16 CPUs allows (800 s instead of 625); and from the first tenth
of the trials to the last the driver's memory within a tenth, and no more open files. Ends with status 1 where a goal is
missed.

With `--rival` plain Ray Tune runs as many trials of the same length right after that, which says how much of the time
is the machine's: these goals are for one of 16 cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from meltpoint.benchmarks.driver_overhead import Sample, TimedDriver, drive, one_cell
from meltpoint.benchmarks.driver_setup import add_arguments
from meltpoint.benchmarks.null_worker import waiting
from meltpoint.sweeps.specification.sweep_spec import Resources

MOST_TIMES_IDEAL = 1.28
MOST_CHANGE = 0.10
"""The largest change of memory, and growth of open files, as a share of what it was at the first mark."""
MARKS = 10


@dataclass(frozen=True)
class Mark:
    """The driver's process after a number of trials.

    Attributes:
        resident_mb: resident memory in units of 10^6 bytes.
        files: open files, sockets and pipes.
        processor_ms: CPU time of its process per trial since the mark before.
    """

    trials: int
    resident_mb: float
    files: int
    processor_ms: float


@dataclass(frozen=True)
class Scale:
    """The figures of a run.

    Attributes:
        workers: trials at a time.
        seconds: what a trial waits.
        ideal_seconds: trials × seconds / workers.
        wall_seconds: what Ray Tune took, the start of the workers included.
        times_ideal: the one over the other.
        steady_times_ideal: the same between the first mark and the last trial.
        rival: `times_ideal` and `steady_times_ideal` of plain Ray Tune in the same run; None where it was not asked.
    """

    trials: int
    workers: int
    seconds: float
    ideal_seconds: float
    wall_seconds: float
    times_ideal: float
    steady_times_ideal: float
    marks: list[Mark]
    rival: tuple[float, float] | None = None

    def missed(self) -> list[str]:
        """The goals that are missed, a line each."""
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
    """The largest value above the first one, as a share of it; workers that are done close theirs."""
    return max(values) / values[0] - 1


def marks_of(samples: Sequence[Sample], trials: int) -> list[Mark]:
    """The process at each tenth of the trials, by the first sample that has as many.

    Args:
        samples: in their order.
        trials: how many were planned; at least `MARKS`.
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
    """The figures of a run that is over."""
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
    """Run waiting trials of one cell on so many workers of this machine."""
    share = (psutil.cpu_count() or 1) / workers
    resources = Resources(storage=str(storage), gpus=0.0, cpus=share)
    timed = drive(one_cell("many", trials, searcher, encoder), resources, waiting(seconds))
    return scale(timed, trials, seconds)


def against_tune(result: Scale) -> Scale:
    """The same with plain Ray Tune beside it, in a process of its own."""
    words = {"trials": result.trials, "seconds": result.seconds, "workers": result.workers}
    options = [f"--{word}={value}" for word, value in words.items()]
    command = [sys.executable, "-m", "meltpoint.benchmarks.rivals.waiting_tune", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    *ends, wall = json.loads(done.stdout.splitlines()[-1])
    first = ends[result.trials // MARKS - 1]
    each = result.seconds / result.workers
    steady = (ends[-1] - first) / ((result.trials - result.trials // MARKS) * each)
    return replace(result, rival=(wall / result.ideal_seconds, steady))


def show(result: Scale) -> None:
    """Print the figures."""
    print(f"{result.trials} trials of {result.seconds:g} s on {result.workers} workers")
    print(
        f"  {result.wall_seconds:.0f} s, ideal {result.ideal_seconds:.0f} s: {result.times_ideal:.2f} times; "
        f"without the first tenth {result.steady_times_ideal:.2f} times"
    )
    if result.rival is not None:
        print("  plain Ray Tune: {:.2f} times; without the first tenth {:.2f} times".format(*result.rival))
    print("  trials   memory (MB)   open files   driver CPU (ms a trial)")
    for mark in result.marks:
        print(f"  {mark.trials:6d}   {mark.resident_mb:11.0f}   {mark.files:10d}   {mark.processor_ms:10.1f}")


def main() -> None:
    """Run the benchmark, print the figures, and end with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="many_trials", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help=f"at least {MARKS}")
    parser.add_argument("--seconds", type=float, default=1.0, help="what a trial waits")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rival", action="store_true", help="run plain Ray Tune after it, and print both")
    add_arguments(parser)
    options = parser.parse_args()
    if options.trials < MARKS:
        parser.error(f"--trials {options.trials}: at least {MARKS}.")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        result = run(
            options.trials, options.seconds, options.workers, options.searcher, options.encoder, Path(folder)
        )  # fmt: skip
    if options.rival:
        result = against_tune(result)
    missed = result.missed()
    if options.json:
        print(json.dumps({**asdict(result), "missed": missed}, indent=1))
    else:
        show(result)
        print("\n".join(f"  missed: {line}" for line in missed) or "  every goal is met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
