"""Reports of a worker to the driver: the events of a trial, and the one value behind every ending.

A trial without a result failed by an error of its setting, or was lost with its worker, its memory, its disk or its
input. A lost trial says nothing about its setting: it is tried again, and no study hears of it.

A trial has an event at its start, one for each epoch, and one with its outcome, perhaps that of its last epoch.
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
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import OutOfTimeError
from meltpoint.sweeps.ledger.attempt import Attempt
from meltpoint.sweeps.ledger.records import Cause
from meltpoint.sweeps.storage.object_store import StoreError

RETRIES: Mapping[Cause, int] = {"setting": 0, "input": 0, "worker": 3, "memory": 2, "disk": 0}
"""How many more times a command tries a trial: machines are preempted in a row, and memory is scarce until others end.
A full disk is no try: the trial waits for room."""

TOGETHER_AFTER = 1
"""Up to so many lost workers, trials that trained side by side do so again; then each is tried alone."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class ChangedInputError(ValueError):
    """The data, the encoder or the task file are not those that the sweep was opened on."""


class OutOfMemory(BaseModel):
    """A pass that a GPU's memory was too small for.

    Attributes:
        gpu: its name.
        rows, length: of a pass: the micro-batch, and the longest row's subword tokens.
        is_shared: whether the trial had a part of the GPU only.
        together: how many trials trained side by side, itself counted.
    """

    model_config = ConfigDict(frozen=True)

    gpu: str
    rows: int
    length: int
    is_shared: bool
    together: int


class TrialOutcome(BaseModel):
    """The outcome of one attempt at a trial. The endings, and who sees them:

    | status, cause | the trial … | seen by |
    |---|---|---|
    | finished | was trained to its last epoch, its weights are saved | the worker |
    | stopped | lost its rung (ASHA), or the time budget was spent | Tune's scheduler, the worker |
    | interrupted | was running at Ctrl-C, or at an error of the driver | the driver |
    | restarted | was ended with another trial's worker, by no loss of its own | `hand_back` |
    | failed, setting | raised, was not finite, or did not fit the memory row by row | the worker |
    | failed, memory, `out_of_memory` | did not fit the GPU, and begins again with less at a time | the worker |
    | failed, input | found other files than the sweep was opened on | the worker |
    | failed, disk | had no room on the disk, and waits until there is some | the worker |
    | failed, memory | was killed by Ray's memory monitor | Tune's scheduler |
    | failed, worker | was lost with its worker or its machine | Tune's scheduler |
    | failed, worker | could not leave its weights on the disk or in the object store | the worker |
    | failed, worker | its GPU failed, and its worker ends with it | the worker |

    Attributes:
        status: a record's status, or one without a record: "interrupted" runs again with the next command, "restarted"
            at once, and neither counts as a try.
        cause: why it failed; None where it did not.
        error: one line with the remedy; for a stopped trial, which rule stopped it.
        out_of_memory: what did not fit a GPU, where less may; that is no try.
    """

    model_config = ConfigDict(frozen=True)

    status: Literal["finished", "stopped", "failed", "interrupted", "restarted"]
    cause: Cause | None = None
    error: str | None = None
    out_of_memory: OutOfMemory | None = None


STOPPED_EARLY = TrialOutcome(status="stopped", error="stopped early: its rung was lost")
STOPPED_BY_BUDGET = TrialOutcome(status="stopped", error="stopped by the time budget")
INTERRUPTED = TrialOutcome(status="interrupted")
RESTARTED = TrialOutcome(status="restarted", error="Tune ended with a worker that was killed; it begins anew")


def failed(cause: Cause, error: str) -> TrialOutcome:
    """The outcome of a trial without a result."""
    return TrialOutcome(status="failed", cause=cause, error=error)


def lost_worker(text: str) -> TrialOutcome:
    """The outcome of trials whose worker did not answer.

    Args:
        text: Ray's error message; the error's type is not always kept.
    """
    if "running low on memory" in text:
        advice = "a smaller batch_size or max_pieces, or fewer trials at a time (--cpus-per-trial)"
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
    if isinstance(error, StoreError):
        return failed("worker", str(error))
    if is_full_disk(error):
        return failed("disk", getattr(error, "strerror", None) or "No space left on device")
    if isinstance(error, SafetensorError) and "os error" in str(error):
        return failed("worker", f"its weights could not be written: {error}")
    if "does not have a deterministic implementation" in str(error):
        return failed("setting", f"{str(error).partition(',')[0]}; {DETERMINISM}=0 in the environment allows it")
    last = traceback.extract_tb(error.__traceback__)[-1]
    return failed("setting", f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")


def is_broken_device(error: BaseException | None) -> bool:
    """True if a GPU's context is lost (a fault of its memory, an illegal access): its process can use it no more."""
    return isinstance(error, torch.AcceleratorError)


def is_out_of_memory(error: BaseException) -> bool:
    """True if a GPU's memory or the process's was too small."""
    return isinstance(error, MemoryError) or is_gpu_out_of_memory(error)


def _out_of_memory(error: BaseException) -> str:
    if is_gpu_out_of_memory(error):
        advice = "a smaller batch_size or max_pieces, or more memory a trial (--gpus-per-trial)"
        return f"out of memory: {memory_error_in_short(error)}; {advice}"
    return "out of memory on the machine; a smaller batch_size or max_pieces"


def memory_error_in_short(error: BaseException) -> str:
    """The line of an out-of-memory error about its GPU, without the list of all processes on it."""
    line, mark = str(error).splitlines()[0], " is free."
    head, found, _ = line.partition(mark)
    return head + mark if found else line


def is_full_disk(error: BaseException) -> bool:
    """True for the error of a full disk or quota; safetensors gives it as text alone."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    return any(f"os error {number}" in str(error) for number in NO_ROOM)


class TrialEvent(BaseModel):
    """A worker's word on one trial: that it begins, that an epoch ended, or how it ended. They cross processes pickled.

    Attributes:
        trial: its identity.
        attempt: the attempt as far as it has come, so that the last event says all that earlier ones said.
        seconds: of its worker, since it took the order up, by the worker's own clock and without its waits for the
            driver (`ResourceMeter.seconds`); None where it says nothing of it.
        score: of the epoch that it reports, the last of `attempt.epochs`: the task's metric on dev, of an error its
            negative, so that higher is better. None where it reports no epoch.
        percent: how much of the trial's own schedule is trained, 0 to 100.
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
