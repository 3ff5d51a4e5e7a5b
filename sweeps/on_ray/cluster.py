"""Ray's machines: a local cluster that starts beside everything else, or one that runs already. Light to import."""

from __future__ import annotations

import logging
import os
import threading
from types import TracebackType
from typing import Any

from meltpoint.sweeps.machine.signals import sigterm_kept
from meltpoint.sweeps.on_ray import patches
from meltpoint.sweeps.on_ray.cluster_watch import RAY_SETTINGS
from meltpoint.sweeps.on_ray.fork_server import ForkServer, machine_has_gpus
from meltpoint.tasks.core.counts import some

SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_WARN_THRESHOLD_S": "30",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # no snapshots of the experiment: nobody reads them, and each takes 19 ms
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # not every event has a score
    "RAY_AIR_NEW_OUTPUT": "0",
    **RAY_SETTINGS,
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it only sets a flag, which Tune does not look at while it waits (600 s)
}
"""What Ray reads from the environment when it is imported."""


STOP_SECONDS = 5.0
"""How long Ctrl-C waits for a cluster that is starting, to shut it down in order."""


class Cluster:
    """Joins a running Ray cluster, or starts a local one and stops it in the end.

    Args:
        address: a running cluster, or None for a local one.
        cpus: of a local cluster; None for the machine's.
        encoder: (word, kind of task) that a local cluster's workers load at once, while the driver still prepares.
    """

    def __init__(self, address: str | None, cpus: int | None = None, encoder: tuple[str, str] | None = None) -> None:
        self.address, self.cpus, self.encoder = address, cpus, encoder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self.fork_server = ForkServer()

    def begin(self) -> None:
        """Start in the background; what goes wrong is raised by `join`."""
        if self._thread is None:
            for name, value in SETTINGS.items():
                os.environ.setdefault(name, value)
            if self.encoder is not None and self.address is None and may_fork():
                self.fork_server.open(*self.encoder)
            self._thread = threading.Thread(target=self._start, name="ray-start", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until Ray is up.

        Raises:
            ValueError: no cluster answers at the address, or none can be started here.
        """
        self.begin()
        self._started.wait()
        if isinstance(self._error, Exception):  # Ray raises plain ones too, when its processes do not come up
            where = f"--address {self.address}" if self.address else "A local Ray cluster"
            raise ValueError(
                f"{where}: Ray did not start ({str(self._error).splitlines()[0][:200]}); see `meltpoint doctor`."
            ) from None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C does not wait for a cluster that does not come up; its processes end with this one.
        patience = STOP_SECONDS if isinstance(error, KeyboardInterrupt) else None
        if self._thread is not None and self._started.wait(patience):
            import ray

            ray.shutdown()
            self._ended.set()
            self._thread.join()
        self.fork_server.close()

    def _start(self) -> None:
        try:
            if self.address:
                self._init(address=self.address)
            else:
                socket_path = self.fork_server.socket_path if self.fork_server.is_open else None
                with patches.starting_ray(socket_path) as private:
                    self._init(num_cpus=self.cpus, include_dashboard=False, **private)
                self._fork_without_gpus_only()
            import meltpoint.sweeps.on_ray.tune_adapters  # noqa: F401 - a second's import, while the driver opens the data
        except BaseException as error:  # noqa: BLE001 - `join` raises it where somebody waits for it
            self._error = error
        self._started.set()
        self._ended.wait()  # the kernel ends Ray's processes with the thread that made them (PR_SET_PDEATHSIG)

    def _init(self, **options: Any) -> None:
        import ray

        with sigterm_kept():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True, **options)

    def _fork_without_gpus_only(self) -> None:
        """Close the fork server where Ray found GPUs all the same: its workers then start in Ray's own way."""
        if not self.fork_server.is_open:
            return
        import ray

        if ray.cluster_resources().get("GPU", 0):  # type: ignore[no-untyped-call]
            self.fork_server.close()


def may_fork() -> bool:
    """True if a local cluster's workers may be forks: not on a machine with GPUs, where that was not yet measured."""
    return "fork_server" in patches.active() and not machine_has_gpus()


def slots(cpus: float, gpus: float) -> int:
    """Number of trials that the cluster runs at once.

    Raises:
        ValueError: not even one; the message says what there is.
    """
    import ray

    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    found = int(have.get("CPU", 0) // cpus) if cpus else 10**6
    if gpus:
        found = min(found, int(have.get("GPU", 0) / gpus + 1e-9))
    if found < 1:
        has = f"{some(have.get('CPU', 0), 'CPU')} and {some(have.get('GPU', 0), 'GPU')}"
        raise ValueError(
            f"A trial needs {some(cpus, 'CPU')} and {some(gpus, 'GPU')}, but Ray has {has}; lower --cpus-per-trial or "
            "--gpus-per-trial."
        )
    return found
