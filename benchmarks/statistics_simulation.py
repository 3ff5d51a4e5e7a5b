"""Simulations of the recommendation's statistics: false claims, power, and coverage of the intervals.

    python -m meltpoint.benchmarks.statistics_simulation [claims] [level] [power] [--tables 400]

Prints the Markdown tables of `docs/statistics.md`. A table has three modes and 1, 4 or 12 tasks; its p-values are
adjusted together, as a report's are. Every share is printed with its simulation error: the half-width of its 95 %
interval at that number of repetitions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np

from meltpoint.reports.statistics.comparison import ALPHA, MARGIN, holm
from meltpoint.reports.statistics.hierarchical_bootstrap import Replicates, Side, counts_of, of_models, unpaired
from meltpoint.reports.statistics.seeds import prior_of
from meltpoint.tasks.core.metrics import Floats

SEEDS, TASKS = (1, 2, 3, 5), (1, 4, 12)
MODES = 3
LEVEL, FAILED_LEVEL = 0.8, 0.5
SPREAD = 0.008
"""The usual standard deviation of a run, as a share of right answers: 0.8 points, the median of recorded finals."""
DIFFICULTY, LIKING = 2.0, 1.0
"""Standard deviations in logits: of an example for all modes, and for one mode. The coin toss's is π / √3 = 1.8."""
PER_LOGIT = 0.1
"""Share of right answers per logit, at `LEVEL`, with such examples."""
PER_GROUP = 5


@dataclass(frozen=True)
class Design:
    """The design of a simulated table.

    Attributes:
        examples, seeds, tasks: the number of each.
        lead: the last mode's lead over the others, as a share of right answers.
        spread: standard deviation of a run, as a share of right answers.
        log_spread: standard deviation of the logarithm of the seeds' deviation, drawn for each task and mode.
        failing: the probability that a run fails and ends at `FAILED_LEVEL`.
        grouped: examples come in groups of `PER_GROUP`, whose difficulty and liking they share.
    """

    examples: int
    seeds: int
    tasks: int = 1
    lead: float = 0.0
    spread: float = SPREAD
    log_spread: float = 0.0
    failing: float = 0.0
    grouped: bool = False

    @property
    def units(self) -> int:
        """Independent examples, or groups of them."""
        return self.examples // PER_GROUP if self.grouped else self.examples

    @property
    def levels(self) -> tuple[float, ...]:
        """The share of right answers of each mode's sound runs."""
        return (LEVEL,) * (MODES - 1) + (LEVEL + self.lead,)


@dataclass(frozen=True)
class Task:
    """One simulated task: each mode's runs, and their true shares of right answers, (modes, seeds)."""

    observed: Floats
    resampled: Floats
    truth: Floats


def draw_task(design: Design, draw: np.random.Generator, resamples: int) -> Task:
    """The runs of three modes on one set of examples, and their scores on resamples of its units."""
    units, shape = design.units, (MODES, design.seeds, 1)
    spread = design.spread / PER_LOGIT * np.exp(draw.normal(scale=design.log_spread, size=(MODES, 1, 1)))
    levels = np.array([intercept(level) for level in design.levels])[:, None, None]
    seeds = levels + draw.normal(size=shape) * spread
    seeds = np.where(draw.random(shape) < design.failing, intercept(FAILED_LEVEL), seeds)
    logits = seeds + DIFFICULTY * draw.normal(size=units) + LIKING * draw.normal(size=(MODES, 1, units))
    logits = np.repeat(logits, PER_GROUP, axis=2) if design.grouped else logits
    right = (draw.logistic(size=logits.shape) < logits).astype(np.float64)
    of_unit = right.reshape(*right.shape[:2], units, -1).sum(axis=3)
    counts = np.concatenate(list(counts_of(units, resamples, "simulated")))
    again = np.einsum("ru,msu->rms", counts, of_unit, optimize=True) / right.shape[2]
    return Task(right.mean(axis=2), again, _share(seeds[..., 0]))


def _share(logits: Floats) -> Floats:
    """The share of right answers over all examples of runs with these logits."""
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    spread = np.hypot(DIFFICULTY, LIKING)
    shares: Floats = np.average(expit(logits[..., None] + spread * nodes), axis=-1, weights=weights)
    return shares


@lru_cache
def intercept(level: float) -> float:
    """The logit of a mode whose share of right answers over all examples is `level`."""
    from scipy.optimize import brentq

    return float(brentq(lambda logit: float(_share(np.array(logit))) - level, -30, 30))


def compared(design: Design, tasks: Sequence[Task]) -> tuple[list[Replicates], list[float]]:
    """The distribution and the p-value of each pair of modes, task by task: later mode − earlier mode."""
    prior = prior_of([scores for task in tasks for scores in task.observed])
    found = []
    for task in tasks:
        if design.seeds == 1:
            found += [
                of_models(task.observed[b, 0], task.observed[a, 0], task.resampled[:, b, 0], task.resampled[:, a, 0],
                          design.units)
                for a, b in combinations(range(MODES), 2)
            ]  # fmt: skip
        else:
            sides = [
                Side(observed, task.resampled[:, mode], prior.moderated(observed, "accuracy"))
                for mode, observed in enumerate(task.observed)
            ]
            found += [unpaired(sides[b], sides[a], design.units) for a, b in combinations(range(MODES), 2)]
    failed = 0.0 if design.seeds == 1 else prior.all_failed(design.seeds)
    return found, [min(1.0, one.p() + failed) for one in found]


def true_differences(design: Design, tasks: Sequence[Task]) -> list[float]:
    """The true difference of each pair: of the recipes, or of the two models themselves if there is one seed."""
    if design.seeds == 1:
        return [float(task.truth[b, 0] - task.truth[a, 0]) for task in tasks for a, b in combinations(range(MODES), 2)]
    lead = design.lead * (1 - design.failing)  # counting failed runs
    return [lead * (b == MODES - 1) for _ in tasks for _, b in combinations(range(MODES), 2)]


def table(design: Design, draw: np.random.Generator, resamples: int) -> list[Task]:
    """The tasks of one table."""
    return [draw_task(design, draw, resamples) for _ in range(design.tasks)]


def claims(design: Design, tables: int, resamples: int, seed: int = 0) -> tuple[float, float]:
    """The share of tables with a false claim after Holm, and the share of intervals that hold the true difference.

    A claim is false if the true difference has the other sign, or is 0.
    """
    draw, wrong, covered = np.random.default_rng(seed), [], []
    for _ in range(tables):
        tasks = table(design, draw, resamples)
        found, p_values = compared(design, tasks)
        true = true_differences(design, tasks)
        claimed = [p < ALPHA for p in holm(p_values)]
        wrong.append(any(c and one.centre * t <= 0 for c, one, t in zip(claimed, found, true, strict=True)))
        low, high = found[0].interval()  # the first pair only: independent across tables
        covered.append(low <= true[0] <= high)
    return float(np.mean(wrong)), float(np.mean(covered))


def power(design: Design, tables: int, resamples: int, seed: int = 0) -> float:
    """The share of tables in which the better mode is claimed over both others on the first task."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(tables):
        adjusted = holm(compared(design, table(design, draw, resamples))[1])
        found.append(adjusted[1] < ALPHA and adjusted[2] < ALPHA)  # pairs (0, 2) and (1, 2)
    return float(np.mean(found))


def level_claims(design: Design, tables: int, resamples: int, seed: int = 0) -> float:
    """The share of tables in which the first and cheapest mode is called level with all others on some task."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(tables):
        tasks = table(design, draw, resamples)
        prior = prior_of([scores for task in tasks for scores in task.observed])
        pairs, _ = compared(design, tasks)
        of_task = [pairs[3 * place : 3 * place + 2] for place in range(design.tasks)]  # the others − the first
        tested = [max(pair.above(MARGIN) for pair in own) + prior.all_failed(design.seeds) for own in of_task]
        found.append(min(holm(tested)) < ALPHA)
    return float(np.mean(found))


REGIMES: dict[str, dict[str, Any]] = {
    "equal": {}, "equal, 2 points": {"spread": 0.02}, "log-sd 0.5": {"log_spread": 0.5},
    "one in twenty fails": {"failing": 0.05},
}  # fmt: skip
"""Label → how the variances over seeds are drawn."""


Rows = Iterator[Sequence[object]]


def claims_table(tables: int, resamples: int) -> Rows:
    """False claims and coverage without any true difference of the recipes."""
    yield "seeds' variances", "tasks", "examples", "groups", "seeds", "tables", "a false claim", "intervals that cover"
    sizes = ((200, False), (500, False), (500, True), (2000, False))
    for (words, regime), tasks, (examples, grouped), seeds in product(REGIMES.items(), TASKS, sizes, SEEDS):
        count = max(1, tables // (1 if tasks == 1 else 2))
        design = replace(Design(examples, seeds, tasks, grouped=grouped), **regime)
        shares = (share_text(share, count) for share in claims(design, count, resamples, seeds))
        yield words, tasks, examples, design.units if grouped else "no", seeds, count, *shares


def level_table(tables: int, resamples: int) -> Rows:
    """The shares of tables that call the cheapest mode level, if behind by the margin (false) and if as good."""
    yield "seeds' variances", "tasks", "examples", "seeds", "tables", "behind by the margin: false", "as good"
    for (words, regime), tasks, examples, seeds in product(REGIMES.items(), (1, 12), (500, 2000), SEEDS[1:]):
        base = replace(Design(examples, seeds, tasks), **regime)
        behind = replace(base, lead=MARGIN / (1 - base.failing))
        shares = (share_text(level_claims(one, tables, resamples, seeds), tables) for one in (behind, base))
        yield words, tasks, examples, seeds, tables, *shares


def power_table(tables: int, resamples: int) -> Rows:
    """The share of tables that claim the better mode over both others."""
    yield "lead", "examples", "seeds' variances", "tasks", "seeds", "tables", "claimed over both others"
    sizes = ((0.15, 500), (0.05, 2000), (0.02, 2000))
    for (lead, examples), (words, regime), tasks, seeds in product(sizes, REGIMES.items(), (1, 4), SEEDS[1:]):
        found = power(replace(Design(examples, seeds, tasks, lead), **regime), tables, resamples, seeds)
        yield f"+{100 * lead:.0f}", examples, words, tasks, seeds, tables, share_text(found, tables)


def error(share: float, repetitions: int) -> float:
    """The simulation error of a share: 1.96 standard errors."""
    return 1.96 * math.sqrt(share * (1 - share) / repetitions)


def share_text(share: float, repetitions: int) -> str:
    """A share with its simulation error, such as `1.2 % ± 0.7`."""
    return f"{100 * share:.1f} % ± {100 * error(share, repetitions):.1f}"


PARTS: dict[str, Callable[[int, int], Rows]] = {"claims": claims_table, "level": level_table, "power": power_table}
"""Name → (tables, resamples) → the heads and the rows of a table of `docs/statistics.md`."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--tables", type=int, default=400, help="simulated tables or intervals per row")
    parser.add_argument("--resamples", type=int, default=500)
    options = parser.parse_args()
    for part in options.parts or PARTS:
        for number, row in enumerate(PARTS[part](options.tables, options.resamples)):
            print(f"| {' | '.join(map(str, row))} |", flush=True)
            if number == 0:
                print("|---" * len(row) + "|")
        print(flush=True)


if __name__ == "__main__":
    main()
