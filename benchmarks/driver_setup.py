"""A sweep's driver on new folders for benchmarks of the driver: all parts are real but training and scoring."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.finalist_scoring import Scorer


class NoScorer(Scorer):
    """A scorer that scores no finalist, since there are no weights."""

    def has(self, trial: str) -> bool:
        """Always true, as if the trial had been sent already."""
        return True

    def prepare(self) -> None:
        """Start no worker for it."""


@contextmanager
def opened_driver(spec: SweepSpec, resources: Resources) -> Iterator[SweepDriver]:
    """Open a sweep in its storage, with MLflow's store and first tables made before the block.

    Raises:
        RuntimeError: MLflow did not take everything that was written in the block.
    """
    storage = storage_folder(resources.storage)
    ledger, cells = Ledger(storage / spec.name), open_cells(spec)
    with ledger.driving(), Progress(lambda: list(planner.cells.values()), Console(quiet=True)) as progress:
        settle_specification(ledger, spec, cells)
        planner = Planner(spec, cells, ledger.records())
        tracker = Tracker(spec.name, default_uri(storage), storage)
        tracker.open(cells, spec.model_dump_json())
        tracker.flush()  # MLflow's imports and its first tables are start-up, and would last into the trials
        yield SweepDriver(planner, ledger, tracker, progress, NoScorer(ledger.folder), resources)
        tracker.leave()
    if tracker.trouble is not None:
        raise RuntimeError(tracker.trouble)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that benchmarks of the driver have in common."""
    parser.add_argument("--searcher", choices=("random", "tpe"), default="random")
    parser.add_argument("--encoder", default="minilm", help="not loaded; its files are only hashed")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
