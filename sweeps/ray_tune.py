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
from typing import Any, Protocol

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.orders import Order

FOREVER = 10**9  # samples: the searcher says when there are no more


class Conductor(Protocol):
    """What runs a sweep, seen from Ray: it hands out orders and hears of events.

    Attributes:
        failure: an error on the driver's side (a full disk), which Tune would bury in text of its own.
    """

    failure: Exception | None

    def next_order(self) -> Order | str:
        """An order, "wait" or "done"."""

    def began(self, order: Order) -> None:
        """A worker took the order up."""

    def heard(self, order: Order, event: dict[str, Any]) -> None:
        """A worker's event."""

    def lost(self, order: Order, reason: str) -> None:
        """The worker died, or the trial was stopped."""

    def wants_stop(self, order: Order) -> bool:
        """Whether a running trial should end now (the time budget)."""

    def early_stopping(self, order: Order) -> EarlyStopping | None:
        """The rule of the order's space."""

    def tick(self) -> None:
        """Something to do between events."""


@contextlib.contextmanager
def cluster(address: str | None, cpus: int | None = None) -> Iterator[None]:
    """Join a running Ray cluster, or start a local one and stop it in the end.

    Raises:
        ValueError: no cluster answers at the address.
    """
    # Set before Ray is imported anywhere: it reads them then.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TUNE_WARN_THRESHOLD_S", "30")
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # not every event has a score
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    import ray

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"--address {address}" if address else "A local Ray cluster"
        raise ValueError(
            f"{where}: Ray did not start ({str(error).splitlines()[0][:200]}); see `meltpoint doctor`."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def slots(cpus: float, gpus: float) -> int:
    """How many trials the cluster runs at once.

    Raises:
        ValueError: not even one; the message says what there is.
    """
    import ray

    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    found = int(have.get("CPU", 0) // cpus) if cpus else 10**6
    if gpus:
        found = min(found, int(have.get("GPU", 0) / gpus + 1e-9))
    if found < 1:
        raise ValueError(
            f"A trial needs {cpus:g} CPUs and {gpus:g} GPUs, but Ray has {have.get('CPU', 0):g} CPUs and "
            f"{have.get('GPU', 0):g} GPUs; lower --cpus-per-trial or --gpus-per-trial."
        )
    return found


def run_on_tune(conductor: Conductor, cpus: float, gpus: float) -> None:
    """Run until the conductor has no more orders, or until Ctrl-C."""
    from ray import tune

    from meltpoint.sweeps._tune_parts import CellSearch, Listener, Referee, survive_memory_kills
    from meltpoint.sweeps.worker import train_on_ray

    for name in ("ray", "ray.tune"):  # what fails is in the ledger and on the screen, in one line each
        logging.getLogger(name).setLevel(logging.CRITICAL)
    survive_memory_kills()
    orders: dict[str, Order] = {}
    with tempfile.TemporaryDirectory(prefix="meltpoint-tune-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner = tune.Tuner(
            tune.with_resources(train_on_ray, {"cpu": cpus, "gpu": gpus}),
            tune_config=tune.TuneConfig(
                search_alg=CellSearch(conductor, orders), scheduler=Referee(conductor, orders),
                num_samples=FOREVER, reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep", storage_path=str(Path(scratch).absolute()), verbose=0,
                callbacks=[Listener(conductor, orders)],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception:
            if conductor.failure is not None:
                raise conductor.failure from None
            raise
