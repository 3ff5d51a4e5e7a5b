"""Reports from a worker to the driver: the events of a trial, and the one value behind every ending.

A trial without a result failed because of its setting, or was lost because of its worker, memory, disk or input. A lost
trial says nothing about its setting: it is retried, and its study ignores it.

A trial has an event at its start, one for each epoch, and one with its outcome, which may be the last epoch's.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError

from meltpoint.adapters.hardware import DETERMINISM, is_gpu_out_of_memory
from meltpoint.adapters.training.epochs import EpochResult, OutOfTimeError
from meltpoint.sweeps.ledger.records import Attempt, Cause
from meltpoint.sweeps.storage.object_client import StoreError

RETRIES: Mapping[Cause, int] = {"setting": 0, "input": 0, "worker": 3, "memory": 2, "disk": 0}
"""Retries of a trial in one command: machines may be preempted repeatedly, and memory is scarce until others end."""

TOGETHER_AFTER = 1
"""Number of lost workers up to which trials that trained side by side do so again; after that, each trains alone."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class ChangedInputError(ValueError):
    """The data, the encoder or the task file changed since the sweep was opened."""


class OutOfMemory(BaseModel):
    """A pass that did not fit a GPU's memory.

    Attributes:
        gpu: the GPU's name.
        rows, length: size of the pass: rows of the micro-batch, subword tokens of the longest row.
        is_shared: whether the trial had only a part of the GPU.
        together: number of trials that trained side by side, including this one.
        can_checkpoint: whether gradient checkpointing was off and may help.
    """

    model_config = ConfigDict(frozen=True)

    gpu: str
    rows: int
    length: int
    is_shared: bool
    together: int
    can_checkpoint: bool


def halved(rows: int) -> int:
    """The next smaller micro-batch."""
    return -(-rows // 2)


class TrialOutcome(BaseModel):
    """The outcome of one attempt at a trial. The endings, and who sees them:

    | status, cause | the trial … | seen by |
    |---|---|---|
    | finished | was trained to its last epoch, its weights are saved | the worker |
    | stopped | lost its rung (ASHA), or the time budget was spent | Tune's scheduler, the worker |
    | interrupted | was running at Ctrl-C, or at an error in the driver | the driver |
    | restarted | was ended together with another trial's worker, without a fault of its own | `hand_back` |
    | failed, setting | raised, was not finite, or did not fit the memory even row by row | the worker |
    | failed, memory, `out_of_memory` | did not fit the GPU, and restarts with less at a time | the worker |
    | failed, input | found files that changed since the sweep was opened | the worker |
    | failed, disk | found no disk space, and waits until there is some | the worker |
    | failed, memory | was killed by Ray's memory monitor | Tune's scheduler |
    | failed, worker | was lost with its worker or its machine | Tune's scheduler |
    | failed, worker | met a fault of the disk, the mount or the object store | the worker |
    | failed, worker | its GPU failed, and its worker ends with it | the worker |

    Attributes:
        status: a record's status, or one without a record: "interrupted" runs again with the next command, "restarted"
            at once, and neither counts as a retry.
        cause: why it failed; None if it did not.
        error: one line with the remedy; for a stopped trial, the rule that stopped it.
        out_of_memory: the pass that did not fit a GPU, if a smaller one may; not counted as a retry.
    """

    model_config = ConfigDict(frozen=True)

    status: Literal["finished", "stopped", "failed", "interrupted", "restarted"]
    cause: Cause | None = None
    error: str | None = None
    out_of_memory: OutOfMemory | None = None


STOPPED_EARLY = TrialOutcome(status="stopped", error="stopped early: its rung was lost")
STOPPED_BY_BUDGET = TrialOutcome(status="stopped", error="stopped by the time budget")
INTERRUPTED = TrialOutcome(status="interrupted")
RESTARTED = TrialOutcome(status="restarted", error="Tune stopped because another worker was killed; restarting it")


def failed(cause: Cause, error: str) -> TrialOutcome:
    """The outcome of a trial without a result."""
    return TrialOutcome(status="failed", cause=cause, error=error)


def lost_worker(text: str) -> TrialOutcome:
    """The outcome of trials whose worker did not answer.

    Args:
        text: Ray's error message; the error's type is not always kept.
    """
    if "running low on memory" in text:
        advice = "lower batch_size or max_pieces, or run fewer trials at a time (--cpus-per-trial)"
        return failed("memory", f"its worker was killed because the machine ran low on memory; {advice}")
    if "its node has died" in text or "node was terminated" in text:
        return failed("worker", "its machine was lost")
    return failed("worker", "its worker died (killed by a user, a scheduler, or the kernel for memory)")


def lost_gpu(error: BaseException) -> TrialOutcome:
    """The outcome of trials whose GPU failed (`is_broken_device`)."""
    return failed("worker", f"its GPU failed: {str(error).strip().splitlines()[0]}")


def outcome_of_error(error: Exception) -> TrialOutcome:
    """The outcome of a trial that raised in its worker."""
    if isinstance(error, OutOfTimeError):
        return STOPPED_BY_BUDGET
    if is_out_of_memory(error):
        return failed("setting", _out_of_memory(error))
    if isinstance(error, ChangedInputError):
        return failed("input", str(error))
    if is_full_disk(error):
        return failed("disk", getattr(error, "strerror", None) or "No space left on device")
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):  # a head's own file may be missing
        return failed("worker", str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}")
    if isinstance(error, SafetensorError) and "os error" in str(error):
        return failed("worker", f"its weights could not be written: {error}")
    if "does not have a deterministic implementation" in str(error):
        return failed("setting", f"{str(error).partition(',')[0]}; set {DETERMINISM}=0 in the environment to allow it")
    last = traceback.extract_tb(error.__traceback__)[-1]
    return failed("setting", f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")


def is_broken_device(error: BaseException | None) -> bool:
    """True if a GPU's context is lost (a memory fault, an illegal access): its process can no longer use it."""
    return isinstance(error, torch.AcceleratorError) and not is_gpu_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """True if the GPU's or the process's memory was too small."""
    return isinstance(error, MemoryError) or is_gpu_out_of_memory(error)


def _out_of_memory(error: BaseException) -> str:
    if is_gpu_out_of_memory(error):
        advice = "lower batch_size or max_pieces, or give each trial more memory (--gpus-per-trial)"
        return f"out of memory: {memory_error_in_short(error)}; {advice}"
    return "out of memory on the machine; lower batch_size or max_pieces"


def memory_error_in_short(error: BaseException) -> str:
    """The line of an out-of-memory error about its GPU, without the list of processes."""
    line, mark = str(error).splitlines()[0], " is free."
    head, found, _ = line.partition(mark)
    return head + mark if found else line


def is_full_disk(error: BaseException) -> bool:
    """True for the error of a full disk or quota; safetensors reports it only as text."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    return any(f"os error {number}" in str(error) for number in NO_ROOM)


class TrialEvent(BaseModel):
    """A worker's report on one trial: its start, an epoch or its end. Events cross processes pickled.

    Attributes:
        trial: the trial's id.
        attempt: the attempt so far; the last event repeats everything in earlier ones.
        seconds: worker seconds since it picked the order up, by its own clock and without its waits for the driver
            (`ResourceMeter.seconds`); None if not reported.
        score: of the reported epoch, the last of `attempt.epochs`: the task's metric on dev, negated for an error, so
            that higher is better. None without an epoch.
        percent: share of the trial's own schedule that is trained, 0 to 100.
        outcome: how the attempt ended; None before.
    """

    model_config = ConfigDict(frozen=True)

    trial: str
    attempt: Attempt = Attempt()
    seconds: float | None = None
    score: float | None = None
    percent: float = 0.0
    outcome: TrialOutcome | None = None

    @property
    def epoch(self) -> EpochResult | None:
        """The epoch that it reports, if any."""
        return None if self.score is None else self.attempt.epochs[-1]
