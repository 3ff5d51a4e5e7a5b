"""Ray's machines: a local cluster that starts beside everything else, or one that runs already. Light to import."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from meltpoint.sweeps.machine.gpu_limits import FORKS_WORKERS
from meltpoint.sweeps.machine.ray_address import (
    PROXY_SWITCH,
    SUBMIT,
    TOKEN_REMEDY,
    cluster_address,
    join_fault,
    token_state,
    unused_proxy,
)
from meltpoint.sweeps.machine.signals import sigterm_kept
from meltpoint.sweeps.on_ray import patches
from meltpoint.sweeps.on_ray.cluster_watch import RAY_SETTINGS
from meltpoint.sweeps.on_ray.fork_server import ForkServer, machine_has_gpus

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

LOCAL_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The same for a local cluster: its processes take 127.0.0.1 as their address, and listen there alone. Ray's default on
Windows and macOS; elsewhere they take the machine's address, and listen on every interface."""

JOIN_SETTINGS = {"RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The same for a running cluster: Ray tries 20 times at 40 s each, and what does not answer is refused before."""

JOIN_SECONDS = 120.0
"""How long a cluster that answers may take to let a driver join, with the imports of Ray and Tune; it takes seconds."""

STOP_SECONDS = 5.0
"""How long Ctrl-C waits for a cluster that is starting, to shut it down in order."""


class Cluster:
    """Joins a running Ray cluster, or starts a local one and stops it in the end.

    Args:
        address: a running cluster, or None for a local one.
        cpus: of a local cluster; None for the machine's.
        encoder: (word, kind of task) that a local cluster's workers load at once, while the driver still prepares.

    Attributes:
        unused: a line about what of the environment it does not use; "" of nothing.
    """

    def __init__(self, address: str | None, cpus: int | None = None, encoder: tuple[str, str] | None = None) -> None:
        self.address, self.cpus, self.encoder = address, cpus, encoder
        self.unused = unused_proxy(address)  # before `begin` turns it off
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self.fork_server = ForkServer()
        self._is_hung = False

    def begin(self) -> None:
        """Start in the background; what goes wrong is raised by `join`.

        Raises:
            ValueError: no cluster answers at the address.
        """
        if self._thread is None:
            if self.address:
                check_answers(self.address)
            for name, value in {**SETTINGS, **(JOIN_SETTINGS if self.address else LOCAL_SETTINGS)}.items():
                os.environ.setdefault(name, value)
            if self.address is None:
                os.environ[PROXY_SWITCH] = "0"  # all of it is on 127.0.0.1, where no proxy leads
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
        if not self._started.wait(JOIN_SECONDS if self.address else None):
            self._is_hung = True
            raise ValueError(
                f"--address {self.address}: it answers, but lets no driver join in {JOIN_SECONDS:g} s; name the head's "
                "port (ray start --head --port 6379), and run the sweep on a node of that cluster."
            )
        if isinstance(self._error, Exception):  # Ray raises plain ones too, when its processes do not come up
            raise ValueError(self._in_words(self._error)) from None
        if self._error is not None:
            raise self._error

    def _in_words(self, error: Exception) -> str:
        """One line with the remedy for an error of joining or starting."""
        where = f"--address {self.address}" if self.address else "A local Ray cluster"
        known = known_fault(error) if self.address else ""
        return f"{where}: {known or f'Ray did not start ({first_line(error)}); see `meltpoint doctor`.'}"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C does not wait for a cluster that does not come up; its processes end with this one.
        patience = 0.0 if self._is_hung else STOP_SECONDS if isinstance(error, KeyboardInterrupt) else None
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
                    # "local" whatever RAY_ADDRESS says
                    self._init(address="local", num_cpus=self.cpus, include_dashboard=False, **private)
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
        if FORKS_WORKERS or not self.fork_server.is_open:
            return
        import ray

        if ray.cluster_resources().get("GPU", 0):  # type: ignore[no-untyped-call]
            self.fork_server.close()


def may_fork() -> bool:
    """True if a local cluster's workers may be forks: not on a machine with GPUs, where that was not yet measured."""
    return "fork_server" in patches.active() and (FORKS_WORKERS or not machine_has_gpus())


def check_answers(address: str) -> None:
    """Look whether a cluster answers at `--address`, in seconds.

    Raises:
        ValueError: none does; one line with the remedy.
    """
    target = cluster_address(address)
    fault = join_fault(target)
    if fault:
        named = f"--address {address}" + (f" ({target})" if target != address else "")
        raise ValueError(
            f"{named}: no Ray cluster answers there ({fault}); start it (ray start --head --port 6379), open that "
            "port, or leave --address out."
        )


def known_fault(error: BaseException) -> str:
    """The meaning of an error of joining a cluster, with the remedy; empty where that is not known."""
    said = "\n".join(str(one) for one in causes(error))
    if re.search("authenticat", said, re.IGNORECASE):
        return f"the cluster wants a token ({token_state(os.environ)}); {TOKEN_REMEDY}"
    if "Version mismatch" in said:
        mismatch = " ".join(said[said.index("Version mismatch") :].split())
        return f"{mismatch[:300]}; install the same Ray and Python here and there."
    if "No node info found" in said:
        return f"no node of that cluster runs on this machine; {SUBMIT}."
    return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it, the last one first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """The first line of an error's message, 200 characters at most."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
