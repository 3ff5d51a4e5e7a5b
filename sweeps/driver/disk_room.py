"""The room on the storage's disk, as the driver meets with it: while there is none, no new trial begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from meltpoint.adapters.features.budget import free_bytes

LOOK_SECONDS = 2.0
AGAIN_SECONDS = 60.0
"""How long at most a trial waits that found no room: a quota's room is not in the figures for the whole disk, and a
trial that finds none again ends before it trains."""
GROWTH_BYTES = 2**24
"""Room that somebody made, and not the end of a temporary file."""


class DiskRoom:
    """The driver's knowledge of the room on the disk, from what found none.

    Attributes:
        is_short: whether no new trial may begin.

    Args:
        folder: the sweep's.
        say: is told once that there is no room, and once that there is some again.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.say, self.clock = folder, say, clock
        self.is_short = self._has_said = self._by_trial = False
        self._since = self._looked = 0.0
        self._free = 0

    def note_none(self, why: str, by_trial: bool = False) -> None:
        """A write found no room, or a trial, which needs more."""
        self.is_short, self._since, self._free = True, self.clock(), free_bytes(self.folder)
        self._by_trial = self._by_trial or by_trial
        self._looked = self._since
        if not self._has_said:
            self._has_said = True
            self.say(f"{why} ({self.folder}): no new trial begins until there is room; nothing is lost meanwhile.")

    def note_some(self, by_trial: bool = False) -> None:
        """A write found room, or a trial."""
        if self._has_said and (by_trial or not self._by_trial):
            self.is_short = self._has_said = self._by_trial = False
            self.say("There is room on the disk again: the sweep goes on.")

    def is_due(self) -> bool:
        """True if it is time to try again what found no room; every two seconds."""
        if self.clock() - self._looked < LOOK_SECONDS:
            return False
        self._looked = self.clock()
        return True

    def try_again(self) -> bool:
        """True if a trial may be tried again: there is more room than there was, or might be."""
        grown = free_bytes(self.folder) >= self._free + GROWTH_BYTES
        self.is_short = not grown and self.clock() - self._since < AGAIN_SECONDS
        return not self.is_short
