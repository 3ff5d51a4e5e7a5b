"""The check that a worker's machine can train for a sweep: it has the driver's code, and sees the sweep's storage."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.worker.work_order import Order

NODE_ID = "ray.io/node-id"
"""The label of each of Ray's nodes that holds its id."""

VISIBLE_SECONDS = 5.0
"""How long a file that another machine has written may take to be seen on a network file system."""


def elsewhere(nodes: Iterable[str]) -> dict[str, str]:
    """Ray's label selector for all nodes but these; empty where there are none."""
    ids = ",".join(sorted(nodes))
    return {NODE_ID: f"!in({ids})"} if ids else {}


def unfit(order: Order, patience_seconds: float = VISIBLE_SECONDS) -> str | None:
    """One line on what makes this machine unfit for an order; None if it is fit, or the order takes any machine.

    Args:
        patience_seconds: how long the sweep's storage may take to show the order.
    """
    if not order.code_version:
        return None
    host, here = socket.gethostname(), code_version()
    if here != order.code_version:
        return (
            f"its machine {host} has Meltpoint's code {here}, and the driver has {order.code_version}; bring both to "
            "the same code"
        )
    fault = storage_fault(Path(order.checkpoint).parents[1], order.id, patience_seconds)
    return fault and f"its machine {host} {fault}; mount the sweep's storage there, under the same path"


def storage_fault(sweep_folder: Path, trial: str, patience_seconds: float) -> str | None:
    """The fault of a sweep's folder as seen from here, in a few words; None if a trial can be kept there.

    The driver notes a trial before it hands it out, and records it before it is scored; a folder with neither is
    another one.
    """
    ledger = Ledger(sweep_folder)
    deadline = time.monotonic() + patience_seconds
    while not (has := _has(ledger, trial)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not has:
        return f"does not see {sweep_folder}" if not sweep_folder.is_dir() else f"has another {sweep_folder}"
    probe = ledger.started / f".{uuid.uuid4().hex}.tmp"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"cannot write {ledger.started} ({os.strerror(error.errno or 0)})"
    return None


def _has(ledger: Ledger, trial: str) -> bool:
    return any((folder / f"{trial}.json").exists() for folder in (ledger.started, ledger.trials))
