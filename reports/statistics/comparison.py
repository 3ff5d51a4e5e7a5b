"""The difference between two cells with its uncertainty over seeds and examples, and what it allows to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.storage.files import StoragePath

ALPHA = 0.05
"""A difference is claimed where its adjusted p-value is below this."""


@dataclass(frozen=True)
class Comparison:
    """The difference of two cells of a task: `upper` − `lower`.

    Attributes:
        upper, lower: the cells' keys.
        split: of both scores.
        metric: by which they are scored.
        delta: the difference of the means over their seeds, a fraction.
        low, high: its 95 % interval over seeds and examples; None where it cannot be computed (`reason`).
        p: two-sided p-value of "no difference", before adjustment; None like the interval.
        p_holm: adjusted for all comparisons of the table (Holm 1979); None before `adjusted`, or without p.
        p_sign_flip: exact two-sided sign-flip test over the pairs of seeds; None for fewer than two pairs.
        probability_better: P(A > B), the probability that one run of `upper` beats one of `lower` on new examples
            (Bouthillier et al. 2021, section 4); None like the interval.
        seeds: pairs of seeds that both cells have.
        examples: examples of the split (sentences, for labelling).
        needed_seeds: seeds with which a difference of this size would be claimed; None if no number of seeds would.
        reason: why there is no interval, in a few words; "" where there is one.
    """

    upper: CellKey
    lower: CellKey
    split: Literal["dev", "test"]
    metric: str
    delta: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_sign_flip: float | None = None
    probability_better: float | None = None
    seeds: int = 0
    examples: int = 0
    needed_seeds: int | None = None
    reason: str = ""

    @property
    def excludes_zero(self) -> bool:
        """True if there is an interval and 0 lies outside."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def is_claimed(self) -> bool:
        """True if the adjusted p-value is below `ALPHA`."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def words(self) -> str:
        """The conclusion in plain words: `fine-tuning is better`, or why it cannot be told and what would tell it."""
        raise NotImplementedError


class Comparer:
    """Compares cells of a sweep by the stored predictions of their finalists; keeps what it has read and computed.

    Args:
        folder: the sweep's folder; None where nothing is stored, so that no comparison has an interval.
        resamples: bootstrap resamples of the examples.
    """

    def __init__(self, folder: StoragePath | None, resamples: int = 4000) -> None:
        self.folder, self.resamples = folder, resamples

    def compare(
        self, upper: CellSummary, lower: CellSummary, split: Literal["dev", "test"] = "test", metric: str = ""
    ) -> Comparison | None:
        """The difference of two cells of one task: on test if both have test scores, else on dev; None without scores.

        Args:
            split: "dev" to compare on dev even if there are test scores.
            metric: a metric other than the task's own; "" for the task's own.
        """
        raise NotImplementedError


def adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one table with their p-values adjusted by Holm's step-down procedure, in the same order."""
    raise NotImplementedError
