"""Searches replayed on recorded trials: which search finds a good setting with the fewest trials.

A recorded cell has the dev curve, the test score and the cost of many random settings. A search that asks for a setting
gets the nearest one that it has not had; so it is replayed hundreds of times in seconds. Cells are sweeps with
`--searcher random` (`write_tasks` writes their task files), or opda's tables of DeBERTa on MNLI (Lourie et al. 2023).
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from meltpoint.benchmarks.job import write_task
from meltpoint.reports.statistics.comparison import MARGIN
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.early_ends import WORTH, Entrant, can_no_longer_win, checks, expected_gain
from meltpoint.sweeps.search.study import STARTUP_TRIALS, sampler
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

Floats: TypeAlias = NDArray[np.float64]
Setting: TypeAlias = Mapping[str, Any]

QUARTER = 0.25
"""The share of its own schedule after which a trial may be stopped."""
REFERENCE = 16
"""The number of random trials whose median best is the goal: the default of `--trials`."""
DISTANCES, DEV_SIZES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12), (150, 500, 2000)
"""Differences of two cells in a race, and sizes of dev."""
FEWEST_VALUES = 7
"""A number with fewer values among the recorded settings is a choice."""


@dataclass(frozen=True)
class RecordedCell:
    """One encoder, mode and task with random settings, all trained to the end.

    Attributes:
        dev, test: (settings,) the best epoch's dev score and its test score, the higher the better.
        early: (settings,) the best dev score within a quarter of the setting's own schedule.
        work: (settings,) the cost of each, in any unit.
    """

    encoder: str
    mode: str
    task: str
    settings: Sequence[Setting]
    dev: Floats
    test: Floats
    early: Floats
    work: Floats

    @property
    def name(self) -> str:
        """`minilm probe sst2`."""
        return f"{self.encoder} {self.mode} {self.task}"

    @cached_property
    def ranges(self) -> dict[str, BaseDistribution]:
        """The searched parameters; those that span more than a factor of 20 are logarithmic."""
        found: dict[str, BaseDistribution] = {}
        for name in sorted({name for setting in self.settings for name in setting}):
            values = sorted({setting[name] for setting in self.settings if name in setting}, key=str)
            if len(values) >= FEWEST_VALUES and all(isinstance(value, int | float) for value in values):
                low, high = min(values), max(values)
                found[name] = FloatDistribution(low, high, log=low > 0 and high > 20 * low)
            elif len(values) > 1:
                found[name] = CategoricalDistribution(values)
        return found

    def place(self, setting: Setting) -> Floats:
        """A setting as a point; each range has length 1, and two different choices are as far apart as its ends."""
        point: list[float] = []
        for name, range_of in self.ranges.items():
            value = setting.get(name)
            if isinstance(range_of, CategoricalDistribution):
                point += [math.sqrt(0.5) * (value == choice) for choice in range_of.choices]
            elif isinstance(range_of, FloatDistribution):
                scaled = math.log if range_of.log else float
                inside = range_of.low if value is None else min(max(value, range_of.low), range_of.high)
                low, high = scaled(range_of.low), scaled(range_of.high)
                point.append((scaled(inside) - low) / (high - low))
        return np.array(point)

    @cached_property
    def places(self) -> Floats:
        """(settings, dimensions)."""
        return np.stack([self.place(setting) for setting in self.settings])

    def nearest(self, setting: Setting, taken: Sequence[int]) -> int:
        """The recorded setting nearest to one, among those that are not taken."""
        distances = ((self.places - self.place(setting)) ** 2).sum(axis=1)
        distances[list(taken)] = np.inf
        return int(distances.argmin())


@dataclass(frozen=True)
class Search:
    """The end of a replayed search: the trials that ran to their end, and its whole work."""

    finished: Sequence[int]
    work: float


Sampler = Callable[[int], optuna.samplers.BaseSampler]
"""A seed → a sampler of Optuna."""
Replay = Callable[[RecordedCell, Sequence[RecordedCell], np.random.Generator], Search]
"""(cell, its siblings, random numbers) → the search."""


def draws(cell: RecordedCell, count: int, random: np.random.Generator, taken: Sequence[int] = ()) -> list[int]:
    """Random settings without repetition."""
    left = np.setdiff1d(np.arange(len(cell.dev)), taken)
    return [int(one) for one in random.choice(left, count, replace=False)]


def asked(
    cell: RecordedCell, count: int, make: Sampler, random: np.random.Generator, first: Sequence[int]
) -> list[int]:
    """The trials of a sampler of Optuna, after given ones."""
    study = optuna.create_study(direction="maximize", sampler=make(int(random.integers(2**31))))
    taken: list[int] = []

    def add(one: int) -> None:
        taken.append(one)
        params = {name: cell.settings[one].get(name) for name in cell.ranges}
        known = {name: value for name, value in params.items() if value is not None}
        study.add_trial(create_trial(
            state=TrialState.COMPLETE, params=known, value=float(cell.dev[one]),
            distributions={name: cell.ranges[name] for name in known},
        ))  # fmt: skip

    for one in first:
        add(one)
    while len(taken) < count:
        trial = study.ask(cell.ranges)
        study.tell(trial, state=TrialState.FAIL)  # its nearest recorded setting is told in its place
        add(cell.nearest(trial.params, taken))
    return taken


def winners(cell: RecordedCell, siblings: Sequence[RecordedCell], count: int, random: np.random.Generator) -> list[int]:
    """The best settings of the siblings, in turn; each sibling has had 16 random trials."""
    ranked = []
    for sibling in siblings:
        tried = np.array(draws(sibling, REFERENCE, random))
        ranked.append([sibling.settings[one] for one in tried[np.argsort(-sibling.dev[tried])]])
    found: list[int] = []
    for turn in range(count):
        found.append(cell.nearest(ranked[turn % len(ranked)][turn // len(ranked)], found))
    return found


def stopped(cell: RecordedCell, begun: Sequence[int], kept: int) -> Search:
    """Trials of which all but the best `kept` end after a quarter of their own schedule."""
    every = np.array(begun)
    best = every[np.argsort(-cell.early[every])[:kept]]
    work = QUARTER * cell.work[every].sum() + (1 - QUARTER) * cell.work[best].sum()
    return Search([int(one) for one in best], float(work))


def whole(cell: RecordedCell, trials: Sequence[int]) -> Search:
    """Trials that all run to their end."""
    return Search(trials, float(cell.work[list(trials)].sum()))


def gaussian(seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's Gaussian process."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)


def sobol(seed: int) -> optuna.samplers.BaseSampler:
    """A scrambled Sobol sequence."""
    return optuna.samplers.QMCSampler(seed=seed, scramble=True)


def by_sampler(cell: RecordedCell, siblings: Sequence[RecordedCell], random: np.random.Generator, *, count: int,
               make: Sampler, borrowed: int = 0) -> Search:  # fmt: skip
    """A sampler of Optuna, after winners of the siblings or one random setting."""
    first = winners(cell, siblings, borrowed, random) if borrowed else draws(cell, 1, random)
    return whole(cell, asked(cell, count, make, random, first))


def at_random(cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator, *, count: int) -> Search:
    """Random settings."""
    return whole(cell, draws(cell, count, random))


def by_rungs(cell: RecordedCell, siblings: Sequence[RecordedCell], random: np.random.Generator, *, count: int,
             kept: int, borrowed: int = 0) -> Search:  # fmt: skip
    """Winners of the siblings in full, then random settings of which few run past a quarter."""
    first = winners(cell, siblings, borrowed, random) if borrowed else []
    rungs = stopped(cell, draws(cell, count, random, first), kept)
    return Search([*first, *rungs.finished], whole(cell, first).work + rungs.work)


def borrowed_alone(
    cell: RecordedCell, siblings: Sequence[RecordedCell], random: np.random.Generator, *, count: int
) -> Search:
    """Winners of the siblings and nothing else."""
    return whole(cell, winners(cell, siblings, count, random))


def until_worthless(
    cell: RecordedCell, _: Sequence[RecordedCell], random: np.random.Generator, *, make: Sampler
) -> Search:
    """At most 16 trials of a sampler; they end at the first check that expects too little of more (`--trials auto`)."""
    trials = asked(cell, REFERENCE, make, random, draws(cell, 1, random))
    for count in checks(REFERENCE):
        if expected_gain(sorted(map(float, cell.dev[trials[:count]]), reverse=True)) < WORTH * MARGIN:
            return whole(cell, trials[:count])
    return whole(cell, trials)


SEARCHES: dict[str, Replay] = {
    "random, 16": partial(at_random, count=16),
    "random, 8": partial(at_random, count=8),
    "Sobol, 8": partial(by_sampler, count=8, make=sobol),
    "TPE, 8": partial(by_sampler, count=8, make=sampler),
    "TPE, 16": partial(by_sampler, count=16, make=sampler),
    "TPE, auto": partial(until_worthless, make=sampler),
    "GP, 8": partial(by_sampler, count=8, make=gaussian),
    "16 begun, 4 kept at a quarter": partial(by_rungs, count=16, kept=4),
    "3 winners": partial(borrowed_alone, count=3),
    "3 winners, then TPE, 8 in all": partial(by_sampler, count=8, make=sampler, borrowed=3),
    "3 winners, then GP, 8 in all": partial(by_sampler, count=8, make=gaussian, borrowed=3),
    "3 winners, then 8 begun, 2 kept at a quarter": partial(by_rungs, count=8, kept=2, borrowed=3),
}


def figures(cell: RecordedCell, siblings: Sequence[RecordedCell], search: Replay, runs: int) -> dict[str, float]:
    """The share of runs that reach the median best of 16 random trials, their work in trials, and their mean test."""
    random = np.random.default_rng(0)
    goal = np.median([cell.dev[draws(cell, REFERENCE, random)].max() for _ in range(2000)])
    ends = [search(cell, siblings, random) for _ in range(runs)]
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


def siblings_of(cell: RecordedCell, cells: Sequence[RecordedCell]) -> list[RecordedCell]:
    """The same mode on the same task with other encoders; without any, the same mode and encoder on other tasks."""
    like = [one for one in cells if one.mode == cell.mode and one is not cell]
    same = [one for one in like if one.task == cell.task]
    return same or [one for one in like if one.encoder == cell.encoder]


def of_opda(path: Path) -> RecordedCell:
    """A table of opda's folder `data/deberta`: dev is MNLI matched, test mismatched, the work the number of epochs."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    settings, columns = [], []
    for row in rows:
        names = ("num_train_epochs", "train_batch_size", "learning_rate", "cls_drop_out")
        epoch = row["total_model_steps"] / row["num_train_epochs"]
        settings.append({**{name: row[name] for name in names}, "warmup": row["warmup_steps"] / epoch})
        dev, test = row["learning_curves"]["matched"], dict(row["learning_curves"]["mismatched"])
        step, best = max(dev, key=lambda point: point[1])
        early = [score for at, score in dev if at <= QUARTER * row["total_model_steps"] + 1] or [dev[0][1]]
        columns.append((best, test[step], max(early), row["num_train_epochs"]))
    encoder = path.name.partition("_")[0]
    return RecordedCell(encoder, "fine_tuning", "mnli", settings, *np.array(columns, dtype=np.float64).T)


def of_sweeps(on_dev: Path, on_test: Path) -> list[RecordedCell]:
    """The cells of a random sweep, with test scores from one of the same settings whose dev split was test."""
    test = {_key(record): record for record in _finished(on_test)}
    cells: dict[tuple[str, ...], list[tuple[TrialRecord, TrialRecord]]] = {}
    for record in _finished(on_dev):
        if _key(record) in test:
            cells.setdefault(record.cell, []).append((record, test[_key(record)]))
    return [_of_records(pairs) for pairs in cells.values()]


def _finished(folder: Path) -> list[TrialRecord]:
    return [one for one in Ledger(folder).records() if one.role == "search" and one.status == "finished"]


def _key(record: TrialRecord) -> str:
    return json.dumps([record.encoder, record.mode, record.task, dict(record.setting)], sort_keys=True)


def _of_records(pairs: Sequence[tuple[TrialRecord, TrialRecord]]) -> RecordedCell:
    columns = []
    for record, other in pairs:
        dev = [gain(record.metric, epoch.dev[record.metric]) for epoch in record.epochs]
        scored = {epoch.epoch: gain(record.metric, epoch.dev[record.metric]) for epoch in other.epochs}
        best = record.epochs[int(np.argmax(dev))].epoch
        early = dev[: max(1, math.floor(QUARTER * len(dev)))]
        columns.append((max(dev), scored.get(best, other.dev or 0.0), max(early), record.seconds))
    first = pairs[0][0]
    settings = [dict(record.setting) for record, _ in pairs]
    return RecordedCell(first.encoder, first.mode, first.task, settings, *np.array(columns, dtype=np.float64).T)


def write_tasks(data: DataSpec, folder: Path) -> list[Path]:
    """Two task files with the same train split; dev is dev in the one and the test split in the other."""
    from meltpoint.tasks.core.locked import open_test

    known, test = load_training_data(data), open_test(data)
    splits = {"dev": known.all_dev, "test": test.examples}
    return [
        write_task(folder / name, known.task, {"train": known.train, "dev": dev}, f"{known.task.name}_recorded")
        for name, dev in splits.items()
    ]


def main() -> None:
    """Replay every search on every cell, or write the task files of a recording."""
    parser = argparse.ArgumentParser(prog="recorded", description=__doc__)
    parser.add_argument("--opda", type=Path, help="opda's folder data/deberta")
    parser.add_argument("--sweep", nargs=2, type=Path, action="append", default=[], metavar=("ON_DEV", "ON_TEST"),
                        help="the folders of two random sweeps")  # fmt: skip
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--tasks", help="write the task files of this task to --out, and end")
    parser.add_argument("--data-dir")
    parser.add_argument("--max-train-examples", type=int)
    parser.add_argument("--out", type=Path, default=Path("recorded"))
    options = parser.parse_args()
    if options.tasks:
        for path in write_tasks(DataSpec(options.tasks, options.data_dir, options.max_train_examples), options.out):
            print(path)
        return
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    cells = [of_opda(path) for path in sorted(options.opda.glob("*_tuning.results.jsonl"))] if options.opda else []
    cells += [cell for pair in options.sweep for cell in of_sweeps(*pair)]
    show(cells, options.runs)
    show_races(cells, options.runs)


def show(cells: Sequence[RecordedCell], runs: int) -> None:
    """Print each search's figures on each cell, and their medians over cells."""
    for name, search in SEARCHES.items():
        found = []
        for cell in cells:
            siblings = siblings_of(cell, cells)
            if siblings or "winners" not in name:
                found.append(figures(cell, siblings, search, runs))
                print(f"{name:48}{cell.name:36}" + "".join(f"{value:9.3f}" for value in found[-1].values()), flush=True)
        medians = [float(np.median([one[key] for one in found])) for key in ("reached", "test", "trials")]
        print(f"{name:48}{f'median of {len(found)} cells':36}" + "".join(f"{value:9.3f}" for value in medians))


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
