"""Trials that end without a result: by an error of their setting, or lost with a worker, its memory or the disk.

A lost trial says nothing about its setting: it is tried again, and no study hears of it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from meltpoint.sweeps.ledger.records import Cause

RETRIES: Mapping[Cause, int] = {"setting": 0, "input": 0, "worker": 3, "memory": 2, "disk": 1}
"""How many more times a command tries a trial: machines are preempted in a row, memory is scarce until others end, and
a full disk stays full unless a finished cell has just deleted weights."""

TOGETHER_AFTER = 1
"""Up to so many lost workers, trials that trained side by side do so again; then each is tried alone."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class ChangedInputError(ValueError):
    """The data, the encoder or the task file are not those that the sweep was opened on."""


@dataclass(frozen=True)
class Loss:
    """Why a trial ended without a result.

    Attributes:
        cause: what it is counted as.
        error: one line with the remedy.
    """

    cause: Cause
    error: str


def loss_of(text: str) -> Loss:
    """The loss behind what Ray says of a worker that did not answer.

    Args:
        text: the error's own words; its type is not always kept.
    """
    if "running low on memory" in text:
        advice = "a smaller batch_size or max_pieces, or fewer trials at a time (--cpus-per-trial)"
        return Loss("memory", f"its worker was killed because the machine ran low on memory; {advice}")
    if "its node has died" in text or "node was terminated" in text:
        return Loss("worker", "its machine was lost")
    return Loss("worker", "its worker died (killed by a person, a scheduler, or the kernel for memory)")


def is_full_disk(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota, has no room; safetensors says so in words alone."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    return any(f"os error {number}" in str(error) for number in NO_ROOM)
