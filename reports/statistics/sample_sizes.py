"""Numbers of seeds and examples that a claim needs, and conclusions of comparisons in plain words."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.tasks.core.metrics import Floats
from meltpoint.tasks.core.wording import some

MOST_SEEDS = 1000
MOST_EXAMPLES = 10**8


@dataclass(frozen=True)
class Needs:
    """The sizes with which a difference as large as the one observed would be claimed.

    Attributes:
        seeds: with the present examples; None if more than `MOST_SEEDS`, or if no number is enough.
        examples: with `with_seeds` seeds; None if `seeds` is enough, or if there is no difference.
        with_seeds: the present seeds, or more if the seed part alone is too wide for any number of examples.
    """

    seeds: int | None = None
    examples: int | None = None
    with_seeds: int | None = None


@dataclass(frozen=True)
class Design:
    """An observed difference, and the two parts of its variance.

    Attributes:
        delta: the difference.
        seed_variance: variance of the seed part with one seed per cell.
        example_variance: variance of the example part.
        seeds, examples: n and N.
        freedom: degrees of freedom of the seed part; each further seed adds two, one per cell.
    """

    delta: float
    seed_variance: float
    example_variance: float
    seeds: int
    examples: int
    freedom: float

    def p(self, seeds: Floats, examples: Floats) -> Floats:
        """The p-values of this difference with other sizes, by Welch's t; the example part has infinite freedom.

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


MODES = {
    "feature_extraction": "feature extraction",
    "fine_tuning": "fine-tuning",
    "stack_and_finetune": "stack-and-finetune",
    "lora": "LoRA",
    "lp_ft": "LP-FT",
    "norm_bias": "norms and biases",
    "top_k": "top layers",
}


def cell_names(upper: CellKey, lower: CellKey) -> tuple[str, str]:
    """The names of two cells, as short as their difference allows: `fine-tuning`, `fine-tuning with crf`, `crf`."""
    return _name(upper, lower), _name(lower, upper)


def _name(cell: CellKey, other: CellKey) -> str:
    encoder, mode, _, variant = (*cell, "")[:4]
    other_encoder, other_mode, _, other_variant = (*other, "")[:4]
    words = [MODES.get(mode, mode.replace("_", " "))] if mode != other_mode else []
    if variant != other_variant:
        words.append(f"with {variant or 'the default head'}" if words else variant or "the default head")
    if encoder != other_encoder:
        words.append(f"of {encoder}" if words else encoder)
    return " ".join(words) or MODES.get(mode, mode.replace("_", " "))


def not_yet(seeds: int, examples: int, needs: Needs) -> str:
    """`cannot be told with 5 seeds and 408 examples; about 12 seeds would`.

    Args:
        seeds, examples: the sizes of the comparison.
        needs: the sizes that would be enough.
    """
    text = f"cannot be told with {some(seeds, 'seed')} and {some(examples, 'example')}"
    if needs.seeds is not None:
        return f"{text}; about {some(_rounded(needs.seeds), 'seed')} would"
    if needs.examples is None:
        return text
    others = needs.with_seeds if needs.with_seeds is not None and needs.with_seeds > seeds else None
    more = "" if others is None else f" with {some(_rounded(others), 'seed')}"
    return f"{text}; no number of seeds would, about {some(_rounded(needs.examples), 'example')}{more} would"


def _rounded(number: int) -> int:
    """A number rounded up to two significant digits: it follows from a variance that is itself a rough figure."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // step) * step
