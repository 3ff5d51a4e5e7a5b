"""Searches replayed on recorded cells: which search finds a good setting with the fewest trials.

A search that asks for a setting gets the nearest recorded one that it has not had; so it is replayed hundreds of times
in seconds. What a search borrows comes from the other cells only.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from scipy import stats

from meltpoint.benchmarks.recorded_cells import (
    QUARTER,
    RecordedCell,
    best_together,
    of_opda,
    read_cell,
    siblings_of,
    write_cells,
    write_tasks,
)
from meltpoint.reports.statistics.comparison import MARGIN
from meltpoint.sweeps.search.early_ends import WORTH, Entrant, can_no_longer_win, checks, expected_gain
from meltpoint.sweeps.search.study import sampler
from meltpoint.tasks.core.task import DataSpec

RECORDINGS = Path(__file__).parent / "recordings"
REFERENCE = 16
"""The number of random trials whose median best is the goal: the default of `--trials`."""
DISTANCES, DEV_SIZES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12), (150, 500, 2000)
"""Differences of two cells in a race, and sizes of dev."""
GRID = (4, 2)
"""The values of the first and the second parameter of the eight-point grid."""
SLOWER = 5
"""One run of the Gaussian process for so many of other searches, since its proposals take seconds."""


@dataclass(frozen=True)
class Search:
    """The end of a replayed search.

    Attributes:
        finished: the trials that ran to their end.
        work: the cost of all its trials, without those of the cells from which it borrowed.
    """

    finished: Sequence[int]
    work: float


Sampler = Callable[[int], optuna.samplers.BaseSampler]
"""A seed → a sampler of Optuna."""
Lead = Callable[[RecordedCell, Sequence[RecordedCell], np.random.Generator], list[int]]
"""(cell, all others, random numbers) → the settings that are tried first; empty if there is nothing to borrow."""
Replay = Callable[[RecordedCell, Sequence[RecordedCell], np.random.Generator], Search | None]
"""(cell, all others, random numbers) → the search; None if it does not apply to the cell."""


def draws(cell: RecordedCell, count: int, random: np.random.Generator) -> list[int]:
    """Random settings without repetition."""
    return [int(one) for one in random.choice(len(cell.dev), count, replace=False)]


class Member:
    """A cell that is searched by a sampler of Optuna.

    Attributes:
        taken: its trials.
        borrowed: how many of them are the best settings of siblings.
    """

    def __init__(self, cell: RecordedCell, make: Sampler, random: np.random.Generator) -> None:
        self.cell, self.taken, self.borrowed = cell, list[int](), 0
        self.study = optuna.create_study(direction="maximize", sampler=make(int(random.integers(2**31))))

    def add(self, one: int) -> None:
        """Take a recorded setting as the next trial, and tell the sampler."""
        self.taken.append(one)
        params = {name: self.cell.settings[one].get(name) for name in self.cell.ranges}
        known = {name: value for name, value in params.items() if value is not None}
        self.study.add_trial(create_trial(
            state=TrialState.COMPLETE, params=known, value=float(self.cell.dev[one]),
            distributions={name: self.cell.ranges[name] for name in known},
        ))  # fmt: skip

    def ask(self) -> None:
        """Take the recorded setting nearest to the sampler's proposal, which is told in its place."""
        trial = self.study.ask(self.cell.ranges)
        self.study.tell(trial, state=TrialState.FAIL)
        self.add(self.cell.nearest(trial.params, self.taken))

    def borrow(self, siblings: Iterable[Member]) -> bool:
        """Take the best setting so far of the first sibling whose best one was not tried here; False without any."""
        for other in siblings:
            best = max(other.taken, key=lambda one: float(other.cell.dev[one]))
            nearest = self.cell.nearest(other.cell.settings[best], [])
            if nearest not in self.taken:
                self.add(nearest)
                self.borrowed += 1
                return True
        return False


def asked(
    cell: RecordedCell, count: int, make: Sampler, random: np.random.Generator, first: Sequence[int]
) -> list[int]:
    """The trials of a sampler of Optuna, after given ones."""
    member = Member(cell, make, random)
    for one in first:
        member.add(one)
    while len(member.taken) < count:
        member.ask()
    return member.taken


def winners(
    cell: RecordedCell, others: Sequence[RecordedCell], random: np.random.Generator, *, count: int
) -> list[int]:
    """The best settings of the siblings, in turn; each sibling has had 16 random trials."""
    ranked = []
    for sibling in siblings_of(cell, others):
        tried = np.array(draws(sibling, REFERENCE, random))
        ranked.append([sibling.settings[one] for one in tried[np.argsort(-sibling.dev[tried])]])
    found: list[int] = []
    for turn in range(count if ranked else 0):
        found.append(cell.nearest(ranked[turn % len(ranked)][turn // len(ranked)], found))
    return found


def portfolio(cell: RecordedCell, others: Sequence[RecordedCell], _: np.random.Generator, *, count: int) -> list[int]:
    """The settings that would be shipped if this cell's task were unknown: `best_together` of the other tasks."""
    like = [one for one in others if one.mode == cell.mode and one.ranges.keys() == cell.ranges.keys()]
    found: list[int] = []
    for setting in best_together([one for one in like if one.task != cell.task], count):
        found.append(cell.nearest(setting, found))
    return found


def opening(cell: RecordedCell, others: Sequence[RecordedCell], random: np.random.Generator) -> list[int]:
    """The first setting that would be shipped if this cell's task were unknown; a random one without other tasks."""
    return portfolio(cell, others, random, count=1) or draws(cell, 1, random)


def stopped(cell: RecordedCell, begun: Sequence[int], kept: int) -> Search:
    """Trials of which all but the best `kept` end after a quarter of their own schedule."""
    every = np.array(begun)
    best = every[np.argsort(-cell.early[every])[:kept]]
    work = QUARTER * cell.work[every].sum() + (1 - QUARTER) * cell.work[best].sum()
    return Search([int(one) for one in best], float(work))


def whole(cell: RecordedCell, trials: Sequence[int]) -> Search:
    """Trials that all run to their end."""
    return Search(trials, float(cell.work[list(trials)].sum()))


def at_random(
    cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator, *, count: int
) -> Search | None:
    """Random settings."""
    return whole(cell, draws(cell, count, random))


def by_grid(cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator) -> Search | None:
    """Eight points (Liu & Wang 2021): four values of the rate or strength, two of another parameter, drawn."""
    names = sorted(cell.ranges, key=lambda name: not getattr(cell.ranges[name], "log", False))
    axes = (
        {names[0]: GRID[0], str(random.choice(names[1:])): GRID[1]} if len(names) > 1 else {names[0]: math.prod(GRID)}
    )
    values = [inner(cell.ranges[name], count) for name, count in axes.items()]
    rest = {name: cell.settings[draws(cell, 1, random)[0]].get(name) for name in names if name not in axes}
    found: list[int] = []
    for point in itertools.product(*values):
        found.append(cell.nearest({**rest, **dict(zip(axes, point, strict=True))}, found))
    return whole(cell, found)


def inner(range_of: optuna.distributions.BaseDistribution, count: int) -> list[object]:
    """Evenly spread values of a range, or the first choices."""
    if isinstance(range_of, CategoricalDistribution):
        return list(range_of.choices[:count])
    assert isinstance(range_of, FloatDistribution)
    shares = (np.arange(count) + 0.5) / count
    if range_of.log:
        return [float(range_of.low * (range_of.high / range_of.low) ** share) for share in shares]
    return [float(range_of.low + (range_of.high - range_of.low) * share) for share in shares]


def by_sampler(cell: RecordedCell, others: Sequence[RecordedCell], random: np.random.Generator, *, count: int,
               make: Sampler, lead: Lead | None = None) -> Search | None:  # fmt: skip
    """A sampler of Optuna, after borrowed settings or one random setting."""
    first = lead(cell, others, random) if lead else draws(cell, 1, random)
    return whole(cell, asked(cell, count, make, random, first)) if first else None


def side_by_side(cell: RecordedCell, others: Sequence[RecordedCell], random: np.random.Generator, *, count: int,
                 make: Sampler) -> Search | None:  # fmt: skip
    """A cell and its siblings in turn, as a sweep searches them.

    Each begins with `opening`; at most a quarter of its trials are borrowed.
    """
    group = [Member(one, make, random) for one in (cell, *siblings_of(cell, others))]
    if len(group) == 1:
        return None
    for member in group:
        member.add(opening(member.cell, others, random)[0])
    for _ in range(1, count):
        for member in group:
            near = siblings_of(member.cell, [one.cell for one in group if one is not member])
            siblings = [one for cell in near for one in group if one.cell is cell]
            if member.borrowed >= count // 4 or not member.borrow(siblings):
                member.ask()
    return whole(cell, group[0].taken)


def by_rungs(cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator) -> Search | None:
    """16 random settings, of which four run past a quarter of their schedule."""
    return stopped(cell, draws(cell, REFERENCE, random), kept=4) if cell.can_stop else None


def until_worthless(
    cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator, *, make: Sampler
) -> Search | None:
    """At most 16 trials of a sampler; they end at the first check that expects too little of more (`--trials auto`)."""
    trials = asked(cell, REFERENCE, make, random, draws(cell, 1, random))
    for count in checks(REFERENCE):
        if expected_gain(sorted(map(float, cell.dev[trials[:count]]), reverse=True)) < WORTH * MARGIN:
            return whole(cell, trials[:count])
    return whole(cell, trials)


TPE, GP = partial(sampler, "tpe"), partial(sampler, "gp")
SEARCHES: dict[str, Replay] = {
    "random, 16": partial(at_random, count=16),
    "random, 8": partial(at_random, count=8),
    "grid of eight points": by_grid,
    "16 begun, 4 kept at a quarter": by_rungs,
    "TPE, 8": partial(by_sampler, count=8, make=TPE),
    "TPE, 16": partial(by_sampler, count=16, make=TPE),
    "TPE, auto": partial(until_worthless, make=TPE),
    "GP, 8": partial(by_sampler, count=8, make=GP),
    "TPE, 8, siblings side by side": partial(side_by_side, count=8, make=TPE),
    "GP, 8, siblings side by side": partial(side_by_side, count=8, make=GP),
    "3 winners, then TPE, 8 in all": partial(by_sampler, count=8, make=TPE, lead=partial(winners, count=3)),
    "1 shipped, then TPE, 8 in all": partial(by_sampler, count=8, make=TPE, lead=opening),
    "1 shipped, then GP, 8 in all": partial(by_sampler, count=8, make=GP, lead=opening),
    "3 shipped, then TPE, 8 in all": partial(by_sampler, count=8, make=TPE, lead=partial(portfolio, count=3)),
}


def figures(
    cell: RecordedCell, others: Sequence[RecordedCell], search: Replay, runs: int, whole_cell: RecordedCell
) -> dict[str, float] | None:
    """The share of runs that reach the median best of 16 random trials, their mean test, and their work in trials.

    The random trials are those of `whole_cell`, whose space may be larger. None if the search does not apply.
    """
    random = np.random.default_rng(0)
    goal = np.median([whole_cell.dev[draws(whole_cell, REFERENCE, random)].max() for _ in range(2000)])
    ends = [end for _ in range(runs) if (end := search(cell, others, random)) is not None]
    if not ends:
        return None
    best = [max(end.finished, key=lambda one: float(cell.dev[one])) for end in ends]
    return {
        "reached": float(np.mean(cell.dev[best] >= goal)), "test": float(np.mean(cell.test[best])),
        "trials": float(np.mean([end.work for end in ends]) / cell.work.mean()),
    }  # fmt: skip


def races(cell: RecordedCell, behind: float, dev_examples: int, runs: int) -> tuple[float, float]:
    """A cell against a copy of itself with better scores: how often the race drops it, and how often wrongly.

    Wrongly: the best of all its 16 random trials would have come within the margin of the copy's best. Both cells get
    the dev noise of independent samples of examples, on top of that in the record.

    Args:
        behind: the difference of the copies.
    """
    random, found = np.random.default_rng(0), np.zeros(2)
    for _ in range(runs):
        own, rival = (cell.dev[draws(cell, REFERENCE, random)] for _ in range(2))
        rival = np.minimum(1.0, rival + behind)
        own, rival = (random.binomial(dev_examples, np.clip(scores, 0, 1)) / dev_examples for scores in (own, rival))
        entrant = Entrant(("", "", cell.task), 0, REFERENCE, "accuracy", dev_examples, dict(enumerate(own.tolist())))
        leaders = {count: float(max(own[:count].max(), rival[:count].max())) for count in checks(REFERENCE)}
        if any(can_no_longer_win(entrant, count, leader, MARGIN) for count, leader in leaders.items()):
            found += 1, own.max() > rival.max() - MARGIN
    return float(found[0] / runs), float(found[1] / runs)


def main() -> None:
    """Replay every search on every cell, or help to record one."""
    parser = argparse.ArgumentParser(prog="recorded", description=__doc__)
    parser.add_argument("--opda", type=Path, help="opda's folder data/deberta, replayed too")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--fixed", nargs=2, default=(), metavar=("NAME", "VALUE"), help="search as if it were fixed")
    parser.add_argument("--races", action="store_true", help="also show whom a race drops")
    parser.add_argument("--tasks", help="write the two task files of this task to --out, and end")
    parser.add_argument("--data-dir")
    parser.add_argument("--max-train-examples", type=int)
    parser.add_argument("--sweep", nargs=2, type=Path, metavar=("ON_DEV", "ON_TEST"),
                        help="write the cells of two random sweeps to --out, and end")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    if options.tasks or options.sweep:
        if options.tasks:
            data = DataSpec(options.tasks, options.data_dir, options.max_train_examples)
            print(*write_tasks(data, options.out), sep="\n")
        else:
            on_dev, on_test = options.sweep
            print(*write_cells(on_dev, on_test, options.out), sep="\n")
        return
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    cells = [of_opda(path) for path in sorted(options.opda.glob("*.results.jsonl"))] if options.opda else []
    cells += [read_cell(path) for path in sorted(RECORDINGS.glob("*.jsonl.gz"))]
    if not cells:
        parser.error(f"no recorded cells in {RECORDINGS}; name opda's tables with --opda, or record some")
    show(cells, options.runs, options.fixed)
    if options.races:
        show_races(cells, options.runs)


def show(whole_cells: Sequence[RecordedCell], runs: int, fixed: Sequence[str] = ()) -> None:
    """Print each search's figures on each cell, then their medians as a table.

    With `fixed`, a parameter and a value, the searches have a space in which the parameter is fixed. The table's last
    columns have the trials with those of the siblings, which a sweep over their cells makes anyway, and the mean
    difference to the test scores of 16 random trials, with its 95 % interval over cells.
    """
    table: list[str] = []
    cells = [cell.only(*fixed) if fixed else cell for cell in whole_cells]
    if fixed and all(one is whole_cell for one, whole_cell in zip(cells, whole_cells, strict=True)):
        raise SystemExit(f"--fixed: no recorded cell tried {fixed[0]} = {fixed[1]}.")
    random = SEARCHES["random, 16"]
    reference = {one.name: (figures(one, [], random, runs, one) or {})["test"] for one in whole_cells}
    for name, search in SEARCHES.items():
        found = {}
        for cell, whole_cell in zip(cells, whole_cells, strict=True):
            others = [one for one in cells if one is not cell]
            ends = figures(cell, others, search, max(1, runs // SLOWER) if "GP" in name else runs, whole_cell)
            if ends is not None:
                siblings = len(siblings_of(cell, others))
                own = REFERENCE if "winners" in name else ends["trials"] if "siblings" in name else 0
                ends["with siblings"] = ends["trials"] + siblings * own
                found[cell.name] = ends
                print(f"{name:48}{cell.name:44}" + "".join(f"{value:9.3f}" for value in ends.values()), flush=True)
        if not found:
            continue
        apart = 100 * np.array([ends["test"] - reference[cell] for cell, ends in found.items()])
        half = stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 else 0
        medians = [np.median([ends[key] for ends in found.values()]) for key in ("reached", "trials", "with siblings")]
        table.append(
            f"| {name} | {len(found)} | {medians[0]:.2f} | {medians[1]:.1f} | {medians[2]:.1f} | "
            f"{apart.mean():+.2f} [{apart.mean() - half:+.2f}, {apart.mean() + half:+.2f}] |"
        )
    print("| search | cells | reached | trials | with siblings | test |\n|---|---:|---:|---:|---:|---:|")
    print(*table, sep="\n")


def show_races(cells: Sequence[RecordedCell], runs: int) -> None:
    """Print how often the race drops a cell, and how often wrongly, for each distance and size of dev."""
    for cell in cells:
        for size in DEV_SIZES:
            found = [
                f"{behind:.0%}: {'{:.2f} {:.3f}'.format(*races(cell, behind, size, runs))}" for behind in DISTANCES
            ]
            print(f"{cell.name:36} race, dev of {size:5}: dropped, wrongly, by the distance  {';  '.join(found)}")


if __name__ == "__main__":
    main()
