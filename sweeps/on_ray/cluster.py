"""Ray's machines: a local cluster that starts beside everything else, or one that runs already. Light to import."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from meltpoint.sweeps.on_ray.fork_server import COMMAND, ForkServer
from meltpoint.sweeps.on_ray.forked_worker import FORK_SERVER
from meltpoint.tasks.core.counts import some

PRIVATE_CLUSTER = {
    "idle_worker_killing_time_threshold_ms": 3_600_000,  # not 1 s: the process that scores waits for its next finalist
    "prestart_worker_first_driver": False,  # the fork server is quick, and Ray would wait for these
}

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
        self._launched, self._started, self._ended = threading.Event(), threading.Event(), threading.Event()
        self.fork_server = ForkServer()

    def begin(self) -> None:
        """Start in the background; what goes wrong is raised by `join`.

        Returns once Ray's processes are launched: imports in this thread would hold up the one that launches them, and
        they take as long afterwards, while Ray comes up.
        """
        if self._thread is None:
            if self.encoder is not None and self.address is None:
                self.fork_server.open(*self.encoder)
            self._thread = threading.Thread(target=self._start, name="ray-start", daemon=True)
            self._thread.start()
            self._launched.wait()

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
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            if self.address:
                self._launched.set()
                self._init(address=self.address)
            else:
                with _lean_head(), _launching(self.fork_server.socket_path, self._launched.set):
                    self._init(
                        num_cpus=self.cpus, include_dashboard=False, _node_ip_address="127.0.0.1",
                        _system_config=PRIVATE_CLUSTER,
                    )  # fmt: skip
            import meltpoint.sweeps.on_ray.tune_adapters  # noqa: F401 - a second's import, while the driver opens the data
        except BaseException as error:  # noqa: BLE001 - `join` raises it where somebody waits for it
            self._error = error
        self._launched.set()
        self._started.set()
        self._ended.wait()  # the kernel ends Ray's processes with the thread that made them (PR_SET_PDEATHSIG)

    def _init(self, **options: Any) -> None:
        import ray

        ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True, **options)


@contextmanager
def _lean_head() -> Iterator[None]:
    """Leave out three of Ray's own processes that a sweep's private cluster has no use for.

    The autoscaler's monitor, the log monitor (its lines are not shown) and the dashboard's server cost 2 s of CPU time
    at the start, and a second to stop. `ray.init` of Ray 2.60 has no option for it; a Ray that lacks one of these
    methods starts that process.
    """
    from ray._private.node import Node

    spared = {name: getattr(Node, name) for name in ("start_monitor", "start_log_monitor", "start_api_server")
              if hasattr(Node, name)}  # fmt: skip
    for name in spared:
        setattr(Node, name, _start_nothing)
    try:
        yield
    finally:
        for name, method in spared.items():
            setattr(Node, name, method)


@contextmanager
def _launching(fork_server: str, then: Callable[[], None]) -> Iterator[None]:
    """Let Ray take its workers from the fork server, and do something as soon as it has launched its last process.

    That is the raylet, which starts the workers with the command that it is given here (ray 2.60, services.py).
    """
    from ray._private.node import Node

    start = Node.start_raylet

    def start_raylet(node: Any, *arguments: Any, **options: Any) -> None:
        node._ray_params.setup_worker_path = str(COMMAND)
        os.environ[FORK_SERVER] = fork_server
        try:
            start(node, *arguments, **options)
        finally:
            del os.environ[FORK_SERVER]
        then()

    setattr(Node, "start_raylet", start_raylet)  # noqa: B010 - mypy lets no method be replaced
    try:
        yield
    finally:
        setattr(Node, "start_raylet", start)  # noqa: B010


def _start_nothing(node: Any, **options: Any) -> None:
    """In the place of a process's start."""


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
        has = f"{some(have.get('CPU', 0), 'CPU')} and {some(have.get('GPU', 0), 'GPU')}"
        raise ValueError(
            f"A trial needs {some(cpus, 'CPU')} and {some(gpus, 'GPU')}, but Ray has {has}; lower --cpus-per-trial or "
            "--gpus-per-trial."
        )
    return found
