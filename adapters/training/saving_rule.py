"""The rule by which a trial's state is saved after an epoch: saving may take 2 % of the time that it secures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LARGEST_SHARE = 0.02
"""The largest share of the training time since the last save that a save may take."""
SHARE = "MELTPOINT_SAVING_SHARE"
"""The environment variable that sets another share: 0.1 loses less on machines that are often taken away."""

FIRST_SECONDS, FIRST_BYTES_PER_SECOND = 0.05, 100e6
"""The assumed cost of a trial's first save, a slow network file system's; of later ones, it is the last one's."""


def largest_share() -> float:
    """The share that the environment sets, or else the usual one.

    Raises:
        ValueError: the environment variable is no number from 0 to 1.
    """
    said = os.environ.get(SHARE, str(LARGEST_SHARE))
    try:
        share = float(said)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{SHARE}={said}: write a share from 0 to 1, as 0.02.")
    return share


class SavingRule:
    """The times of one trial's epochs and saves: both are measured.

    An epoch that is long enough is saved at once; of short ones several are secured by one save, or none.

    Args:
        share: the largest one.

    Attributes:
        cost: seconds that the last save took; None before the first.
    """

    def __init__(self, share: float = LARGEST_SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock, self._since = share, clock, clock()
        self.cost: float | None = None

    def is_due(self, state_bytes: Callable[[], int]) -> bool:
        """True if the state is to be saved after the epoch that has ended.

        Args:
            state_bytes: its size, asked for only where that decides.
        """
        allowed = self.share * (self.clock() - self._since)
        if self.cost is not None:
            return self.cost <= allowed
        return allowed >= FIRST_SECONDS and FIRST_SECONDS + state_bytes() / FIRST_BYTES_PER_SECOND <= allowed

    def note_save(self, seconds: float) -> None:
        """A save took so long, whether or not it succeeded; the next secures the time from here."""
        self.cost, self._since = seconds, self.clock()
