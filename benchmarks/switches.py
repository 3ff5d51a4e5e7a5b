"""Comparison of Meltpoint's searches with the CPU kernels on and off, and the Trainer's.

    python -m meltpoint.benchmarks.switches --mode feature_extraction --trials 16 --data-dir DIR

The sides run in turn in one call: Meltpoint as it comes, without `adapters/cpu`, and Hugging Face's
`Trainer.hyperparameter_search` on Ray, with the same settings.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from meltpoint.benchmarks.against import meltpoint_side, rival_side
from meltpoint.benchmarks.alternation import Measurement, spread
from meltpoint.benchmarks.dev_only import dev_only
from meltpoint.benchmarks.job import Job, add_arguments, job_of

RIVAL = "Trainer"
SWITCHES: dict[str, dict[str, str]] = {
    "meltpoint": {},
    "CPU kernels off": {"MELTPOINT_CPU_KERNELS": "0"},
}
"""The name of a side and the environment variables that make it."""


def measure(job: Job, repeats: int) -> dict[str, list[Measurement]]:
    """Run every side in turn, backwards in every second round.

    Args:
        job: the search, with the task as both sides shall read it.

    Returns:
        Per side one measurement a round.
    """
    sides: dict[str, Callable[[], Measurement]] = {
        name: partial(meltpoint_side, job, environment) for name, environment in SWITCHES.items()
    }
    sides[RIVAL] = partial(rival_side, job, "trainer_search")
    runs: dict[str, list[Measurement]] = {name: [] for name in sides}
    for number in range(repeats):
        for name in list(sides) if number % 2 == 0 else reversed(sides):
            runs[name].append(sides[name]())
            print(f"{number + 1}/{repeats}  {name}: {runs[name][-1].seconds:.1f} s", file=sys.stderr)
    return runs


def table(runs: dict[str, list[Measurement]]) -> list[str]:
    """One line a side: how many times faster than the Trainer in the same round, and its figures (median, range)."""
    lines = ["| side | × Trainer | s | processor s | dev, mean over the settings |", "|---|---|---|---|---|"]
    for name, every in runs.items():
        ratios = [rival.seconds / one.seconds for one, rival in zip(every, runs[RIVAL], strict=True)]
        processor, dev = (
            spread([one.details[figure] for one in every])
            for figure in ("processor time, s", "dev, mean over the settings")
        )
        lines.append(
            f"| {name} | {spread(ratios)} | {spread([one.seconds for one in every])} | {processor} | {dev.median:.4f} |"
        )
    return lines


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="switches", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    options = parser.parse_args()
    if find_spec("accelerate") is None:
        parser.error("the Trainer needs the package accelerate; pip install -e '.[dev]' brings it.")
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        runs = measure(dev_only(job_of(options), Path(folder)), options.repeats)
    if options.json:
        print(json.dumps({name: [asdict(one) for one in every] for name, every in runs.items()}, indent=1))
    else:
        print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
