"""Meltpoint against Hugging Face's `Trainer.hyperparameter_search` on Ray: the same settings, from command to table."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from meltpoint.benchmarks.against import compare
from meltpoint.benchmarks.alternation import show
from meltpoint.benchmarks.job import add_arguments, job_of


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="against_trainer", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--group-by-length", action="store_true", help="the Trainer groups its batches by length")
    parser.add_argument("--with-test", action="store_true", help="Meltpoint also scores its best setting on test")
    options = parser.parse_args()
    if find_spec("accelerate") is None:
        parser.error("the Trainer needs the package accelerate; pip install -e '.[dev]' brings it.")
    comparison = compare(job_of(options), "trainer_search", "Trainer", options.repeats, options.with_test)
    show(comparison, options.json)


if __name__ == "__main__":
    main()
