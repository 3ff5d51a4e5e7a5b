"""Numbers of seeds and examples with which a difference of a given size would be claimed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meltpoint.tasks.core.metrics import Floats

MOST_SEEDS = 1000
MOST_EXAMPLES = 10**8


@dataclass(frozen=True)
class Needs:
    """The sizes with which a difference as large as the one observed would be claimed.

    Attributes:
        seeds: with the examples that there are; None if more than `MOST_SEEDS`, or no number.
        examples: with `with_seeds` seeds; None where `seeds` suffice, or where there is no difference.
        with_seeds: the seeds there are, or more where the seeds' part alone is too wide for any number of examples.
    """

    seeds: int | None = None
    examples: int | None = None
    with_seeds: int | None = None


@dataclass(frozen=True)
class Design:
    """What was observed: the difference, and the two parts of its variance.

    Attributes:
        delta: the difference.
        seed_variance: variance of the seed part with one seed a cell.
        example_variance: variance of the example part.
        seeds, examples: n and N.
        freedom: degrees of freedom of the seed part; each further seed brings two, one a cell.
    """

    delta: float
    seed_variance: float
    example_variance: float
    seeds: int
    examples: int
    freedom: float

    def p(self, seeds: Floats, examples: Floats) -> Floats:
        """The p-values of this difference with other sizes, by Welch's t: the example part has all the freedom.

        Args:
            seeds, examples: sizes; one of them may be a single number.
        """
        from scipy.special import stdtr  # takes a second to import

        of_seeds = self.seed_variance / seeds
        variance = of_seeds + self.example_variance * self.examples / examples
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = np.where(
                of_seeds > 0, (self.freedom + 2 * (seeds - self.seeds)) * (variance / of_seeds) ** 2, 1e9
            )
            distance = np.where(variance > 0, abs(self.delta) / np.sqrt(variance), np.inf)
        p: Floats = 2 * stdtr(freedom, -distance)
        return p

    def needs(self, alpha: float, from_seeds: int = 2) -> Needs:
        """The sizes with which the difference would be claimed.

        Args:
            alpha: the level, divided by the factor of the table's adjustment.
            from_seeds: the smallest number of seeds to consider.
        """
        if self.delta == 0:
            return Needs()
        numbers = np.arange(from_seeds, MOST_SEEDS + 1, dtype=np.float64)
        enough = self._first(numbers, self.p(numbers, np.array(float(self.examples))), alpha)
        if enough is not None:
            return Needs(seeds=enough)
        # As many seeds as leave half of the variance to the examples.
        numbers = np.arange(self.seeds, MOST_SEEDS + 1, dtype=np.float64)
        alone = replace(self, seed_variance=2 * self.seed_variance)
        seeds = self._first(numbers, alone.p(numbers, np.array(np.inf)), alpha)
        if seeds is None:
            return Needs()
        sizes = np.geomspace(self.examples, MOST_EXAMPLES, 2000)
        more = self._first(sizes, self.p(np.array(float(seeds)), sizes), alpha)
        return Needs(examples=more, with_seeds=seeds)

    @staticmethod
    def _first(numbers: Floats, p_values: Floats, alpha: float) -> int | None:
        claimed = np.flatnonzero(p_values < alpha)
        return int(numbers[claimed[0]]) if len(claimed) else None
