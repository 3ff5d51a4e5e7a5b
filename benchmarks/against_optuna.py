"""Meltpoint against Optuna alone: `study.optimize` in one process that has every core."""

from __future__ import annotations

import argparse

from meltpoint.benchmarks.against import compare
from meltpoint.benchmarks.alternation import show
from meltpoint.benchmarks.job import add_arguments, job_of


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="against_optuna", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    show(compare(job_of(options), "plain_optuna", "Optuna", options.repeats), options.json)


if __name__ == "__main__":
    main()
