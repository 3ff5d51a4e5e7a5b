"""Meltpoint against raw Ray Tune around Meltpoint's own loop, without what the service shares between trials."""

from __future__ import annotations

import argparse

from meltpoint.benchmarks.against import compare
from meltpoint.benchmarks.alternation import show
from meltpoint.benchmarks.job import add_arguments, job_of


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="against_raw_ray", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    show(compare(job_of(options), "raw_ray", "raw Ray Tune", options.repeats), options.json)


if __name__ == "__main__":
    main()
