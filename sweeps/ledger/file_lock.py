"""The file lock of a sweep's folder, which its driver takes beside the lease where the storage has locks.

Under one kernel a lock tells at once that a driver in another container has ended. Versions without leases had nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Self

from meltpoint.adapters.files import acquire, make_folders
from meltpoint.sweeps.ledger.claim import latest
from meltpoint.sweeps.ledger.owner import Owner
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.storage.object_path import ObjectPath

LOCK = "driver.lock"
CLAIM_SECONDS = 5.0
"""How long a driver that has the lock may take until it claims the lease, which takes milliseconds. A driver of an
older version never claims it."""


class FileLock:
    """A sweep's file lock; one that is never had in an object store, which has no locks.

    Args:
        file: the lock's file, open; None where there are no locks.
    """

    def __init__(self, file: IO[str] | None) -> None:
        self.file = file

    @classmethod
    @contextmanager
    def opened(cls, folder: StoragePath) -> Iterator[Self]:
        """Open the lock of a sweep's folder; it is freed after the block.

        Raises:
            ValueError: the folder cannot be written.
        """
        if isinstance(folder, ObjectPath):
            yield cls(None)
            return
        try:
            make_folders(folder)
            file = (folder / LOCK).open("a+")
        except OSError as error:
            raise ValueError(
                f"{error.filename or folder} cannot be written ({error.strerror}); let its owner run the sweep, "
                "or name a folder of yours with --storage DIR."
            ) from None
        with file:
            yield cls(file)

    def take(self) -> bool:
        """True if this process has the lock, or gets it now; False also where there are no locks."""
        return self._is_had(where_none=False)

    def note(self, owner: Owner) -> None:
        """Write into the file who has the lock, where this process has it."""
        if self.file is not None and self.take():
            self.file.truncate(0)
            self.file.write(str(owner))
            self.file.flush()

    def refuse_older_version(self, drivers: StoragePath) -> None:
        """Refuse a sweep whose lock is held while nobody has its lease, as a driver of an older version leaves it.

        A driver that was started at the same moment may have the lock and is about to claim the lease: it is given
        `CLAIM_SECONDS` for that.

        Args:
            drivers: the folder of the sweep's leases.

        Raises:
            ValueError: another process drives the sweep.
        """
        ends = time.monotonic() + CLAIM_SECONDS
        while _is_unclaimed(drivers) and not self._is_had(where_none=True):
            if time.monotonic() > ends:
                assert self.file is not None
                self.file.seek(0)
                raise ValueError(
                    f"Another process drives this sweep ({self.file.read().strip()}); wait for it, or stop it first."
                )
            time.sleep(0.05)

    def _is_had(self, where_none: bool) -> bool:
        if self.file is None:
            return where_none
        try:
            return acquire(self.file, shared=False, wait=False)
        except ValueError:  # a file system without locks
            return where_none


def _is_unclaimed(drivers: StoragePath) -> bool:
    claim = latest(drivers)
    return claim is None or claim.is_released()


def is_held(folder: StoragePath) -> bool:
    """True if another process has the lock of a sweep's folder. Writes nothing: a copy may be read-only."""
    path = folder / LOCK
    if isinstance(path, ObjectPath) or not path.exists():
        return False
    with path.open() as file:
        try:
            return not acquire(file, shared=True, wait=False)
        except ValueError:  # a file system without locks
            return False
