"""Simulations of the comparisons' statistics: false claims, power, and coverage of the intervals.

    python -m meltpoint.benchmarks.statistics_simulation [null] [power] [coverage] [--tables 1000] [--resamples 1000]

Prints Markdown tables; those of `docs/statistics.md` are its output. Every share has its simulation error: the half
width of a 95 % interval of a share of so many repetitions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from meltpoint.benchmarks.simulated_finals import KINDS, Finals
from meltpoint.reports.statistics.comparison import ALPHA
from meltpoint.reports.statistics.example_statistics import scorer
from meltpoint.reports.statistics.hierarchical_bootstrap import Estimate, estimate, parts
from meltpoint.reports.statistics.holm import holm
from meltpoint.reports.statistics.resampling import resampled
from meltpoint.sweeps.ledger.scored_examples import ScoredExamples
from meltpoint.tasks.core.metric import Floats

SEEDS = (3, 5, 10)
TABLE = ("accuracy", "f1", "matthews", "pearson")
"""The tasks of a simulated table, with three modes each: 12 comparisons."""
LEVEL, EFFECT = 0.85, 0.02
EXAMPLES, MORE_EXAMPLES = 400, 2000
SEED_SPREADS = (0.1, 0.03)
"""`Finals.seed_spread`: of an accuracy at `LEVEL`, 0.1 is about 0.8 points."""
MOST_SPREAD = 0.4


@dataclass(frozen=True)
class Side:
    """The scores of a mode's runs: (seeds,) and, on resamples of the examples, (resamples, seeds)."""

    observed: Floats
    resampled: Floats


def sides(finals: Finals, draw: np.random.Generator, resamples: int) -> list[Side]:
    """The scores of simulated finals, a side a mode."""
    return [scored(runs, finals, resamples) for runs in finals.draw(draw)]


def scored(runs: Sequence[ScoredExamples], finals: Finals, resamples: int) -> Side:
    """The scores of a mode's runs, by the code that scores stored predictions."""
    score = scorer(finals.metric, runs)
    observed = score(np.ones((1, finals.examples)))[0]
    return Side(observed, resampled(score, finals.examples, resamples, f"simulated {finals.metric}"))


def compared(upper: Side, lower: Side, examples: int) -> Estimate:
    """The estimate that a comparison would hold."""
    return estimate(upper.observed, lower.observed, upper.resampled, lower.resampled, examples)


def p_value(upper: Side, lower: Side, examples: int) -> float:
    """The p-value alone, which takes a tenth of the time."""
    return parts(upper.observed - lower.observed, upper.resampled - lower.resampled, examples).p()


def table_p_values(finals: Finals, draw: np.random.Generator, resamples: int) -> tuple[list[float], list[bool]]:
    """The p-values of a table's comparisons, and which of the differences are real."""
    p_values, real = [], []
    for metric in TABLE:
        found = sides(replace(finals, metric=metric), draw, resamples)
        for one, other in combinations(range(len(found)), 2):
            p_values.append(p_value(found[one], found[other], finals.examples))
            real.append(finals.levels[one] != finals.levels[other])
    return p_values, real


def false_claims(finals: Finals, tables: int, resamples: int, seed: int = 0) -> float:
    """The share of tables without any real difference in which some difference is claimed after Holm."""
    draw = np.random.default_rng(seed)
    found = [min(holm(table_p_values(finals, draw, resamples)[0])) < ALPHA for _ in range(tables)]
    return float(np.mean(found))


def power(finals: Finals, tables: int, resamples: int, seed: int = 0) -> tuple[float, float]:
    """The share of real differences that are claimed: were each the only comparison, and after Holm."""
    draw, alone, among = np.random.default_rng(seed), [], []
    for _ in range(tables):
        p_values, real = table_p_values(finals, draw, resamples)
        alone += [p < ALPHA for p, is_real in zip(p_values, real, strict=True) if is_real]
        among += [p < ALPHA for p, is_real in zip(holm(p_values), real, strict=True) if is_real]
    return float(np.mean(alone)), float(np.mean(among))


@dataclass(frozen=True)
class Coverage:
    """The shares of 95 % intervals that hold the true difference, by method, and the mean width of ours."""

    ours: float
    hierarchical: float
    examples_only: float
    width: float


def coverage(finals: Finals, repetitions: int, resamples: int, seed: int = 0) -> Coverage:
    """The coverage of the intervals of the difference between the first two modes."""
    draw, truth = np.random.default_rng(seed), true_difference(finals)
    hits, widths = [], []
    for _ in range(repetitions):
        upper, lower = sides(finals, draw, resamples)[:2]
        found = compared(upper, lower, finals.examples)
        intervals = [(found.low, found.high), plain_hierarchical(upper, lower, draw), plain_examples(upper, lower)]
        hits.append([low <= truth <= high for low, high in intervals])
        widths.append(found.high - found.low)
    ours, hierarchical, examples_only = np.mean(hits, axis=0).tolist()
    return Coverage(ours, hierarchical, examples_only, float(np.mean(widths)))


def plain_hierarchical(upper: Side, lower: Side, draw: np.random.Generator) -> tuple[float, float]:
    """Percentiles of the plain bootstrap: seeds are drawn with replacement, then examples."""
    differences = upper.resampled - lower.resampled
    seeds = draw.integers(differences.shape[1], size=differences.shape)
    return percentiles(np.take_along_axis(differences, seeds, axis=1).mean(axis=1))


def plain_examples(upper: Side, lower: Side) -> tuple[float, float]:
    """Percentiles of the paired bootstrap over the examples alone, for the seeds as they are."""
    return percentiles((upper.resampled - lower.resampled).mean(axis=1))


def percentiles(replicates: Floats) -> tuple[float, float]:
    """The 2.5th and the 97.5th percentile."""
    low, high = np.quantile(replicates, (0.025, 0.975))
    return float(low), float(high)


@lru_cache
def true_difference(finals: Finals) -> float:
    """The difference of the first two modes over all seeds and examples; from a large simulation if it is not 0.

    Both modes get the same random numbers there, so that what they do to both leaves the difference alone.
    """
    if finals.levels[0] == finals.levels[1]:
        return 0.0
    large, everything = replace(finals, examples=10_000, seeds=10), np.ones((1, 10_000))
    means = []
    for level in finals.levels[:2]:
        alone = replace(large, levels=(level,))
        drawn = [alone.draw(np.random.default_rng(number))[0] for number in range(8)]
        means.append(np.mean([scorer(finals.metric, runs)(everything).mean() for runs in drawn]))
    return float(means[0] - means[1])


def error(share: float, repetitions: int) -> float:
    """The simulation error of a share: 1.96 standard errors."""
    return 1.96 * math.sqrt(share * (1 - share) / repetitions)


def null_table(tables: int, resamples: int) -> Iterator[str]:
    """Markdown: false claims; half as many tables of modes that differ as of one and the same mode."""
    yield f"| three modes × four tasks ({', '.join(TABLE)}), 12 comparisons | seeds | tables | with a false claim |"
    yield "|---|---|---|---|"
    for same_mode, title, count in (
        (True, "one mode, other seeds", tables),
        (False, "three modes, equally good", tables // 2),
    ):
        for seeds in SEEDS:
            finals = Finals("", EXAMPLES, seeds, (LEVEL,) * 3, same_mode)
            yield f"| {title} | {seeds} | {count} | {_share(false_claims(finals, count, resamples, seeds), count)} |"


def power_table(tables: int, resamples: int) -> Iterator[str]:
    """Markdown: power; a tenth of the tables, for each has eight real differences."""
    yield "| examples | seed spread | seeds | tables | found alone | found after Holm over 12 |"
    yield "|---|---|---|---|---|---|"
    count = max(1, tables // 10)
    for examples in (EXAMPLES, MORE_EXAMPLES):
        for spread in SEED_SPREADS:
            for seeds in SEEDS:
                finals = Finals("", examples, seeds, (LEVEL + EFFECT, LEVEL, LEVEL), False, spread)
                alone, among = power(finals, count, resamples, seeds)
                design = f"{examples} | {spread} | {seeds} | {count}"
                yield f"| {design} | {100 * alone:.0f} % | {100 * among:.0f} % |"


def coverage_table(tables: int, resamples: int) -> Iterator[str]:
    """Markdown: coverage for each metric, and where seeds vary more than the examples let see."""
    yield "| metric | examples | seed spread | seeds | intervals | this method | width | plain | examples alone |"
    yield "|---|---|---|---|---|---|---|---|---|"
    designs = [(metric, EXAMPLES, SEED_SPREADS[0]) for metric in KINDS]
    designs.append(("accuracy", MORE_EXAMPLES, MOST_SPREAD))
    for metric, examples, spread in designs:
        for seeds in SEEDS:
            finals = Finals(metric, examples, seeds, (LEVEL + EFFECT, LEVEL), seed_spread=spread)
            found = coverage(finals, tables, resamples, seeds)
            shares = [_share(one, tables) for one in (found.ours, found.hierarchical, found.examples_only)]
            design = [metric, examples, spread, seeds, tables]
            yield f"| {' | '.join(map(str, [*design, shares[0], f'{100 * found.width:.1f}', *shares[1:]]))} |"


def _share(share: float, repetitions: int) -> str:
    return f"{100 * share:.1f} % ± {100 * error(share, repetitions):.1f}"


PARTS: dict[str, Callable[[int, int], Iterator[str]]] = {
    "null": null_table,
    "power": power_table,
    "coverage": coverage_table,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help="null, power, coverage")
    parser.add_argument("--tables", type=int, default=1000, help="simulated tables, or intervals, a row")
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    for part in options.parts or PARTS:
        for line in PARTS[part](options.tables, options.resamples):
            print(line, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
