"""Notes of a driver beside its heartbeat, for `status`: what a sweep does now. Nothing else depends on them."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from meltpoint.sweeps.ledger.claim import Claim, latest
from meltpoint.sweeps.storage.files import StoragePath, contents, write
from meltpoint.sweeps.storage.object_path import ObjectPath
from meltpoint.sweeps.storage.object_store import QUICK

Note = TypeVar("Note", bound=BaseModel)


def note(drivers: StoragePath, attempt: int, ending: str, what: BaseModel) -> None:
    """Write a driver's note, over its last one; nothing where it cannot be written.

    Args:
        drivers: the folder of the sweep's drivers.
        attempt: the driver's number.
        ending: of the note's file; one for each kind of note.
    """
    path = Claim(drivers, attempt).path.with_suffix(ending)
    with suppress(OSError):
        write(path.with_patience(QUICK) if isinstance(path, ObjectPath) else path, what.model_dump_json() + "\n")


def noted(drivers: StoragePath, ending: str, kind: type[Note]) -> Note | None:
    """The latest driver's note of a kind; None where it has written none, or that cannot be read."""
    claim = latest(drivers)
    if claim is None:
        return None
    try:
        return kind.model_validate_json(contents(claim.path.with_suffix(ending)))
    except (OSError, ValidationError, ValueError):
        return None
