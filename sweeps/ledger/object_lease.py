"""The lease on a sweep in an object store: fenced by conditional writes in place of renames.

A driver reads a file's version, checks that it still has the sweep, and then writes on the condition that the version
is the same. Who takes over claims the next number, which is a conditional write too, and signs every record anew with
that number. So a write of the older driver, wherever it was halted and however late it arrives, finds another version
and fails; a record that it makes anew is not among those that the successor noted, and does not count (`is_late`).

Removals and moves of weights have no condition: they are checked for right before. What a late one can take away is a
checkpoint, which is trained again, or the note of a trial that runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from meltpoint.sweeps.ledger.lease import Lease
from meltpoint.sweeps.ledger.locks import Claim, Owner, beat_text, is_there
from meltpoint.sweeps.storage.files import StoragePath, for_each, remove
from meltpoint.sweeps.storage.object_path import ObjectPath


class ObjectLease(Lease):
    """A sweep's lease on an object store, held by this process."""

    @classmethod
    def settle(cls, claim: Claim, owner: Owner, took_over: bool) -> Self:
        """Write the first heartbeat; the claim alone shuts out all older drivers.

        Raises:
            LeaseLostError: another driver has the sweep already.
        """
        claim.write_beat(beat_text(1))
        lease = cls(claim, owner, took_over)
        lease.check()
        return lease

    def is_lost(self) -> bool:
        """True if another driver has the sweep."""
        return is_there(self._successor.path)

    @contextmanager
    def placing(self, path: StoragePath) -> Iterator[Path]:
        """As in a folder, from a folder of this machine's for temporary files."""
        with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
            beside = Path(scratch) / path.name
            yield beside
            self._replace(path, beside.read_bytes())

    def _replace(self, path: StoragePath, contents: bytes) -> None:
        """Write a file; once more where an older driver's write came in between."""
        assert isinstance(path, ObjectPath)
        while True:
            before = path.version()
            self.check()  # after the version was read: whoever takes over now changes it
            if path.replace_if(before, contents):
                return

    def move(self, path: StoragePath, target: StoragePath) -> None:
        """Copy the objects of a folder, then remove them.

        Raises:
            FileNotFoundError: there are none.
            LeaseLostError: another driver has the sweep.
        """
        assert isinstance(path, ObjectPath)
        assert isinstance(target, ObjectPath)
        self.check()
        files = list(path.files())
        if not files:
            raise FileNotFoundError(str(path))
        for file in files:
            file.copy_to(target / file.key.removeprefix(f"{path.key}/"))
        self.remove(path)

    def remove(self, path: StoragePath) -> None:
        """Remove a file or folder of the sweep, if it is there and can be removed: what is left over does no harm.

        Raises:
            LeaseLostError: another driver has the sweep.
        """
        self.check()
        with suppress(OSError):
            remove(path)

    def inherit(self, trials: Iterable[StoragePath]) -> None:
        """Sign all records with this driver's number, and write down which they are.

        A write that the driver before has under way is conditional on the version that it knows, and fails after that.

        Args:
            trials: the files of all records.
        """
        signed = list(trials)
        for_each(self._sign, signed)
        self._note_inherited(path.stem for path in signed)

    def _sign(self, path: StoragePath) -> None:
        """Write a record again with this driver's number; one that is damaged or gone stays so."""
        assert isinstance(path, ObjectPath)
        while True:
            before = path.version()
            try:
                record = json.loads(path.read_bytes())
                record["driver_attempt"] = self.attempt
            except (FileNotFoundError, ValueError, TypeError):
                return
            self.check()
            if path.replace_if(before, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()):
                return

    def _shut(self) -> None:
        """Nothing: a driver that released its lease writes no more, and the next one's claim shuts it out."""
