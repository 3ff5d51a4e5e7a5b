"""The saved epochs of a trial: its training state next to its weights, so that a later attempt resumes there.

Each attempt writes its own file, `state.DRIVER-ATTEMPT.safetensors`, and stops saving once it sees a later attempt's
file: an abandoned worker that still runs overwrites nothing. Only the same trial uses a state, and only if the same
bits would follow. The driver removes it once the trial's record is in the ledger (`Ledger.write`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from safetensors import SafetensorError

from meltpoint.adapters.features.reading import free_bytes
from meltpoint.adapters.training.epochs import EpochResult, SavingRule
from meltpoint.adapters.training.saved_state import (
    DamagedStateError,
    TrainingState,
    read_about,
    read_state,
    restore,
    state_of,
    write_state,
)
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.sweeps.ledger.records import STATES
from meltpoint.sweeps.specification.provenance import COMPUTING, code_version, versions
from meltpoint.sweeps.storage.files import StoragePath, local_copy, rename, scratch_of, storage_path, storing
from meltpoint.sweeps.storage.object_client import OPTIONAL, StoreError
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.sweeps.worker.work_order import Order

SPARE_BYTES = 50 * 2**20
"""Disk space kept free in addition to a state, and to the same size again for the weights that training leaves."""

SUFFIX, DAMAGED = ".safetensors", ".damaged"


@dataclass(frozen=True)
class Resumed:
    """The epochs that a trial resumes from.

    Attributes:
        epochs: epochs of earlier attempts, with their end times.
        seconds: time that earlier attempts took for them.
    """

    epochs: tuple[EpochResult, ...] = ()
    seconds: float = 0.0


class EpochCheckpoints:
    """The saved states of one trial, as one attempt reads and writes them.

    Attributes:
        notes: faults of the states, one line each.
    """

    def __init__(self, order: Order, clock: Callable[[], float] = time.perf_counter) -> None:
        self.order, self.clock = order, clock
        folder = storage_path(order.checkpoint)
        # Training waits for these requests, so their timeouts are short.
        self.folder = folder.with_patience(OPTIONAL) if isinstance(folder, ObjectPath) else folder
        self.path = self.folder / f"state.{order.driver_attempt:06d}-{order.handed_out:04d}{SUFFIX}"
        self.notes: list[str] = []
        self._began, self._past = clock(), Resumed()
        self._rule = SavingRule(order.saving_share, clock)
        self._ended_at: list[float] = []
        self._is_over = False

    def resume(self, trainer: Trainer) -> Resumed:
        """Restore the newest usable state into a fresh trainer, if any."""
        about = self._newest(trainer)
        if about is not None:
            self._ended_at = list(about["ended_at"])
            results = trainer.trials[0].results
            epochs = [
                result.model_copy(update={"finished_at": at})
                for result, at in zip(results, self._ended_at, strict=True)
            ]
            self._past = Resumed(tuple(epochs), float(about["seconds"]))
        self._rule = SavingRule(self.order.saving_share, self.clock)
        return self._past

    def _newest(self, trainer: Trainer) -> dict[str, Any] | None:
        """Restore the newest usable state; returns the JSON stored with it, None if no state is usable."""
        try:
            found = (self._taken_from(path, trainer) for path in reversed(self._files()))
            return next((about for about in found if about is not None), None)
        except OSError as error:
            self.notes.append(
                f"its saved epochs could not be read ({error.strerror or error}); it started from the beginning"
            )
            return None

    def _taken_from(self, path: StoragePath, trainer: Trainer) -> dict[str, Any] | None:
        """Restore a file's state; returns the JSON stored with it, None if the file cannot be used."""
        try:
            with local_copy(path) as local:
                about = read_about(local)
                if about.get("belongs_to") != belongs_to(self.order, trainer):
                    return None
                restore(trainer, read_state(local))
        except FileNotFoundError:
            return None
        except DamagedStateError as error:
            aside = path.with_suffix(DAMAGED)
            with suppress(OSError):
                rename(path, aside)
            self.notes.append(f"a saved epoch was damaged ({error}); it was ignored and set aside as {aside}")
            return None
        return about

    def after_epoch(self, trainer: Trainer, ended: Sequence[EpochResult]) -> None:
        """Save the state, if the trial continues and saving pays (`SavingRule`); the trial survives a failure to save.

        Args:
            ended: the trial's epochs reported since the last call.
        """
        self._ended_at += [epoch.finished_at for epoch in ended]
        (trial,) = trainer.trials
        # Epochs of a shared first phase are reported only after the trainer has all of them.
        if self._is_over or not trainer.active or len(self._ended_at) < len(trial.results):
            return
        state: list[TrainingState] = []

        def state_bytes() -> int:
            state.append(state_of(trainer))
            return state[0].bytes

        if self._rule.is_due(state_bytes):
            self._save(trainer, state[0] if state else state_of(trainer))

    def _save(self, trainer: Trainer, state: TrainingState) -> None:
        began = self.clock()
        try:
            # A later attempt has the trial: this one saves no more.
            self._is_over = any(path.name > self.path.name for path in self._files())
            if self._is_over or free_bytes(scratch_of(self.folder)) < 2 * state.bytes + SPARE_BYTES:
                return
            seconds = self._past.seconds + self.clock() - self._began
            about = {"belongs_to": belongs_to(self.order, trainer), "ended_at": self._ended_at, "seconds": seconds}
            with storing(self.path) as file:
                write_state(file, state, about)
            for older in self._files():
                if older.name < self.path.name:
                    older.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:  # safetensors reports disk errors as its own
            self._is_over = not isinstance(error, StoreError)  # an unreachable store comes back; its cost counts
            reason = getattr(error, "strerror", None) or error
            note = f"its epochs could not be saved ({reason}); it continued without saving"
            self.notes += [note] if note not in self.notes else []
        finally:
            self._rule.note_save(self.clock() - began)

    def _files(self) -> list[StoragePath]:
        """The states of all attempts, oldest first."""
        found = [path for path in self.folder.glob(STATES) if path.name.endswith(SUFFIX)]
        return sorted(found, key=attrgetter("name"))


def belongs_to(order: Order, trainer: Trainer) -> dict[str, Any]:
    """The trial, and everything that decides the last bits of its numbers: a state is usable only if all are equal."""
    hardware = trainer.hardware
    installed = versions()
    return {
        "trial": order.id, "code": code_version(), "precision": trainer.precision, "processor": hardware.name,
        "device": trainer.device.type, "threads": hardware.threads if trainer.device.type == "cpu" else None,
        "versions": {name: installed[name] for name in COMPUTING if name in installed},
    }  # fmt: skip
