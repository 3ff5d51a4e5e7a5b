"""One Ray Tune experiment for the whole matrix: the planner's proposals in, the workers' events out.

Tune's own experiment state is thrown away: its snapshots are seconds apart, and the ledger is the truth.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from meltpoint.adapters import heap
from meltpoint.sweeps.on_ray import patches
from meltpoint.sweeps.on_ray.driver_protocol import Driver, Trainable
from meltpoint.sweeps.on_ray.trainable import train_on_ray

FOREVER = 10**9  # samples: the searcher says when there are no more
MOST_PENDING = "TUNE_MAX_PENDING_TRIALS_PG"
"""Tune's own variable: how many trials may wait for a worker, and so how many workers start at a time."""


def run_on_tune(
    driver: Driver, is_local: bool, trainable: Trainable | None = None, unfit: set[str] | None = None
) -> None:  # fmt: skip
    """Run until the driver has no more orders, or until Ctrl-C.

    Args:
        is_local: whether the cluster is this sweep's own, whose workers have the driver's environment.
        trainable: what runs an order in a worker; None is `trainable.train_on_ray`.
        unfit: ids of the nodes that get no orders; those that refuse one are added.
    """
    heap.raise_gc_threshold()
    heap.freeze_heap()
    for name in ("ray", "ray.tune"):  # what fails is in the ledger and on the screen, in one line each
        logging.getLogger(name).setLevel(logging.CRITICAL)
    unfit = set() if unfit is None else unfit
    with patches.running_tune(is_local), patches.releasing_workers(driver.has_enough):
        while not _run_until_memory_kill(driver, trainable, unfit):
            pass


def _run_until_memory_kill(driver: Driver, trainable: Trainable | None, unfit: set[str]) -> bool:
    """Run one experiment of Tune's; whether it came to its end.

    Where a worker is killed by Ray's memory monitor, Tune 2.60 ends the whole experiment: the killed worker's order
    is lost, and the others, ended with it, begin anew in the next experiment.

    Args:
        unfit: ids of the nodes that get no orders; those that refuse one are added.
    """
    from ray import tune

    from meltpoint.sweeps.on_ray import tune_adapters as parts

    orders: parts.Orders = {}
    outcomes: parts.Outcomes = {}
    with (
        tempfile.TemporaryDirectory(prefix="meltpoint-tune-") as scratch, warnings.catch_warnings(),
        _workers_start_together(driver.slots),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        listener = parts.Listener(driver, orders, unfit)
        tuner = tune.Tuner(
            tune.with_resources(trainable or train_on_ray, parts.resources_of),
            tune_config=tune.TuneConfig(
                search_alg=parts.CellSearch(driver, orders, outcomes, unfit),
                scheduler=parts.AshaPerCell(driver, orders, outcomes),
                num_samples=FOREVER, reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep", storage_path=str(Path(scratch).absolute()), verbose=0,
                callbacks=[listener],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception as error:
            if driver.failure is not None:
                raise driver.failure from None
            kill = parts.memory_kill_behind(error)
            if kill is None:
                raise
            parts.hand_back(driver, orders, listener.processes, kill)
            return False
    return True


@contextlib.contextmanager
def _workers_start_together(slots: int) -> Iterator[None]:
    """Let Tune ask for all workers at once: with a searcher of one's own it asks for the next when one has started.

    The driver sees to it that no more trials wait than there are workers without one (`next_order`). A number of the
    user's own comes first.
    """
    if MOST_PENDING in os.environ:
        yield
        return
    os.environ[MOST_PENDING] = str(slots)
    try:
        yield
    finally:
        del os.environ[MOST_PENDING]
