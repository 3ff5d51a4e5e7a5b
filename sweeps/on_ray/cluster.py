"""A Ray cluster: start a local one or join a running one, and notice when a part of it is gone. Light to import."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from meltpoint.sweeps.machine.services import (
    SUBMIT,
    TOKEN_REMEDY,
    cluster_address,
    join_fault,
    token_state,
)
from meltpoint.sweeps.machine.signals import sigterm_kept

SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_WARN_THRESHOLD_S": "30",
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",  # all workers start at once; `next_order` gives one order per idle worker
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # no experiment snapshots: they are never read, and each takes 19 ms
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # not every event has a score
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it only sets a flag, which Tune does not check while it waits (600 s)
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",  # Ray's 60 leave the driver no time to save when the head is lost
}
"""Environment variables that Ray reads when it is imported."""

MALLOC = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    f":glibc.malloc.trim_threshold={2**30}:glibc.malloc.mmap_threshold={2**25}"
)
"""A training step allocates and frees 100 MB or more. In small pages that is a page fault every 4 kB, and glibc keeps
at most 64 MB of it, so workers get huge pages and may keep 1 GB. A trial runs in a thread, whose own arena would have
no huge pages, so all threads share one arena. glibc before 2.35 ignores these settings."""

LOCAL_SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 is the address of all processes; Ray's default off Linux
    "RAY_idle_worker_killing_time_threshold_ms": "3600000",  # keeps the process that scores finalists
    "GLIBC_TUNABLES": MALLOC,
}
"""Further variables for a local cluster."""

JOIN_SETTINGS = {"RAY_NUM_REDIS_GET_RETRIES": "2"}
"""Further variables for a running cluster: Ray would try 20 times, 40 s each. `check_answers` has tried before."""

JOIN_SECONDS = 120.0
"""Time limit for a driver to join a cluster that answers, including the imports of Ray and Tune; it takes seconds."""

STOP_SECONDS = 5.0
"""Time that Ctrl-C waits for a starting cluster, to shut it down cleanly."""

LOST_SECONDS = 30.0
"""Time without an answer after which a part counts as lost. A head that restarts with its state kept elsewhere is back
by then, and the driver has time to save before Ray aborts the process (`RAY_gcs_rpc_server_reconnect_timeout_s`)."""
LOOK_SECONDS, PATIENCE_SECONDS = 2.0, 5.0


class Cluster:
    """Join a running Ray cluster, or start a local one and stop it at the end.

    Args:
        address: a running cluster, or None for a local one.
        cpus: CPUs of a local cluster; None for all of the machine's.
    """

    def __init__(self, address: str | None, cpus: int | None = None) -> None:
        self.address, self.cpus = address, cpus
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._is_hung = False

    def begin(self) -> None:
        """Start in the background; `join` raises any error.

        Raises:
            ValueError: no cluster answers at the address.
        """
        if self._thread is None:
            if self.address:
                check_answers(self.address)
            for name, value in {**SETTINGS, **(JOIN_SETTINGS if self.address else LOCAL_SETTINGS)}.items():
                os.environ.setdefault(name, value)
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
                f"--address {self.address}: it answers, but no driver could join in {JOIN_SECONDS:g} s; use the head's "
                "port (ray start --head --port 6379), and run the sweep on a node of that cluster."
            )
        if isinstance(self._error, Exception):  # Ray raises plain exceptions too, when its processes do not start
            where = f"--address {self.address}" if self.address else "A local Ray cluster"
            known = known_fault(self._error) if self.address else ""
            said = next(iter(str(self._error).splitlines()), type(self._error).__name__)[:200]
            raise ValueError(f"{where}: {known or f'Ray did not start ({said}); see `meltpoint doctor`.'}") from None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C does not wait for a cluster that fails to start; its processes end with this one.
        patience = 0.0 if self._is_hung else STOP_SECONDS if isinstance(error, KeyboardInterrupt) else None
        if self._thread is not None and self._started.wait(patience):
            import ray

            ray.shutdown()
            self._ended.set()
            self._thread.join()

    def _start(self) -> None:
        try:
            if self.address:
                self._init(address=self.address)
            else:  # "local" whatever RAY_ADDRESS says
                self._init(address="local", num_cpus=self.cpus, include_dashboard=False)
            import meltpoint.sweeps.on_ray.experiment  # noqa: F401 - takes a second, while the driver opens the data
        except BaseException as error:  # noqa: BLE001 - `join` raises it in the main thread
            self._error = error
        self._started.set()
        self._ended.wait()  # the kernel ends Ray's processes with the thread that made them (PR_SET_PDEATHSIG)

    def _init(self, **options: Any) -> None:
        import ray

        with sigterm_kept():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True, **options)


def check_answers(address: str) -> None:
    """Check within seconds that a cluster answers at `--address`.

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


def known_fault(error: BaseException | None) -> str:
    """The meaning and remedy of an error on joining a cluster; "" if it is unknown."""
    said = ""
    while error is not None:
        said += f"{error}\n"
        error = error.__cause__ or error.__context__
    if re.search("authenticat", said, re.IGNORECASE):
        return f"the cluster requires a token ({token_state(os.environ)}); {TOKEN_REMEDY}"
    if "Version mismatch" in said:
        mismatch = " ".join(said[said.index("Version mismatch") :].split())
        return f"{mismatch[:300]}; install the same Ray and Python on both sides."
    if "No node info found" in said:
        return f"no node of that cluster runs on this machine; {SUBMIT}."
    return ""


# A driver needs Ray's head and its own machine's raylet, but Ray does not report their loss. Without the head it aborts
# the process after a minute (in C++, without an exception); without the raylet Tune waits forever.

Address = tuple[str, int]


def parts() -> dict[str, Address]:
    """The parts to watch, in words → their addresses. The raylet is first, since its end can end a head."""
    import ray

    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
    own, head = node["NodeManagerAddress"], _address(context.gcs_address)
    return {
        f"the raylet of this machine ({own})": (own, int(node["NodeManagerPort"])),
        f"Ray's head ({head[0]}:{head[1]})": head,
    }


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def is_reachable(address: Address) -> bool:
    """True if a process listens there; the kernel accepts the connection even if the process is busy."""
    try:
        with socket.create_connection(address, timeout=PATIENCE_SECONDS):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def watched(
    watched_parts: Mapping[str, Address], on_lost: Callable[[str], None], lost_seconds: float = LOST_SECONDS
) -> Iterator[None]:
    """Watch parts of a cluster while the block runs.

    Args:
        on_lost: called once, in a separate thread, with a text: all parts that are unreachable when one counts as lost.
        lost_seconds: time without an answer after which a part counts as lost.
    """
    over = threading.Event()
    arguments = (watched_parts, on_lost, lost_seconds, over)
    threading.Thread(target=_watch, args=arguments, name="cluster-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(
    watched_parts: Mapping[str, Address], on_lost: Callable[[str], None], lost_seconds: float, over: threading.Event
) -> None:
    answered = dict.fromkeys(watched_parts, time.monotonic())
    while not over.wait(min(LOOK_SECONDS, lost_seconds / 5)):
        looked = time.monotonic()
        away = [part for part, address in watched_parts.items() if not is_reachable(address)]
        answered |= dict.fromkeys(watched_parts.keys() - set(away), looked)
        longest = max((time.monotonic() - answered[part] for part in away), default=0.0)
        if longest >= lost_seconds and not over.is_set():
            lost_first = sorted(away, key=lambda part: answered[part])
            on_lost(f"{' and '.join(lost_first)} did not answer for {longest:.0f} s")
            return
