"""A watch over the parts of a Ray cluster that a driver cannot do without: the head, and the raylet of its own machine.

Ray does not tell a driver that one of them is gone: without the head it aborts the process after a minute (in C++,
without a word of Python's), without its raylet Tune waits for ever. The watch only opens connections, which a process
that is merely busy accepts in its kernel.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

LOST_SECONDS = 30.0
"""How long a part is unreachable before it counts as lost. A head that is started again with its state kept elsewhere
is back by then, and 30 s are left of the minute after which Ray aborts the process (`RAY_SETTINGS`)."""
LOOK_SECONDS, PATIENCE_SECONDS = 2.0, 5.0
RAY_SETTINGS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "120"}
"""What gives the driver time to save: Ray's own value is 60."""

Address = tuple[str, int]


@dataclass(frozen=True)
class Lost:
    """What is lost of the cluster.

    Attributes:
        part: in words; of several that are unreachable at that moment, the first one to be so comes first.
        seconds: how long the first one was unreachable.
    """

    part: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.part} did not answer for {self.seconds:.0f} s"


def parts() -> dict[str, Address]:
    """The parts of the joined cluster, in words → where they listen; the raylet, whose end can end a head, first."""
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
    """True if something listens there."""
    try:
        with socket.create_connection(address, timeout=PATIENCE_SECONDS):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def watched(
    watched_parts: Mapping[str, Address], on_lost: Callable[[Lost], None], lost_seconds: float = LOST_SECONDS
) -> Iterator[None]:
    """Watch parts of a cluster while the block runs.

    Args:
        on_lost: is told once, in a thread of its own, when a part is lost, of all that are unreachable then.
        lost_seconds: how long it is unreachable first.
    """
    over = threading.Event()
    arguments = (watched_parts, on_lost, lost_seconds, over)
    threading.Thread(target=_watch, args=arguments, name="cluster-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(
    watched_parts: Mapping[str, Address], on_lost: Callable[[Lost], None], lost_seconds: float, over: threading.Event
) -> None:
    answered = dict.fromkeys(watched_parts, time.monotonic())
    while not over.wait(min(LOOK_SECONDS, lost_seconds / 5)):
        looked = time.monotonic()
        away = [part for part, address in watched_parts.items() if not is_reachable(address)]
        answered |= dict.fromkeys(watched_parts.keys() - set(away), looked)
        longest = max((time.monotonic() - answered[part] for part in away), default=0.0)
        if longest >= lost_seconds and not over.is_set():
            on_lost(Lost(" and ".join(sorted(away, key=lambda part: answered[part])), longest))
            return
