"""The reach of a planned budget (`plan --explain`): tuning curves, tests over seeds, smallest differences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from meltpoint.reports.statistics import sample_sizes
from meltpoint.reports.statistics.tuning_curves import LEVELS, valid_trials
from meltpoint.sweeps.search.study import STARTUP_TRIALS
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.wording import counted, some

if TYPE_CHECKING:  # it imports torch
    from meltpoint.sweeps.driver.plan import PlannedCell

EXACT_UP_TO = 64
"""Of more random trials the range is given as that of so many, `or more`: opda's simulation takes long for them."""

NEEDED_TRIALS: Mapping[float, Mapping[int, int]] = {0.95: {2: 18, 4: 37, 8: 78}, 0.80: {2: 12, 4: 27, 8: 57}}
"""Level of the band → valid range → the fewest random trials that have it; computed with opda (tests/reports)."""

RECOMMENDED_SEEDS = 6
"""The fewest pairs with which an exact two-sided sign-flip test can have p < 0.05 (0.031; five: 0.0625)."""

NOTABLE = 0.02
"""The difference for which it is said how many seeds show it: two points."""

ASSUMPTIONS = (
    "assumed of differences: accuracy, a standard deviation over seeds of "
    f"{100 * sample_sizes.SEED_DEVIATION:g} point, independent examples, "
    f"cells that disagree on {sample_sizes.DISAGREEMENT:.0%} of them; "
    f"found in {sample_sizes.POWER:.0%} of sweeps at p < {sample_sizes.ALPHA:g}, before the adjustment for a table of "
    "several. Other metrics differ: F1 and Matthews are less certain at equal size, and words of one sentence count "
    "as fewer.".replace("%", " %")
)

NO_TEST_SIZE = " (test is not opened: its size is not declared, its labels are hidden, or there is none)"

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class CurvePart:
    """The reach of the search trials of some cells: up to which number of trials a tuning curve is valid.

    Attributes:
        cells: the cells' names.
        trials: search trials planned for each.
        random_trials: of them, the random ones, which a tuning curve is computed from.
        valid_trials_95, valid_trials_80: up to which number of trials it is valid, by the band's level; 0 is no curve.
        or_more: true if the ranges are those of `EXACT_UP_TO` trials.
        words: the same as a sentence, with what it would take.
    """

    cells: tuple[str, ...]
    trials: int
    random_trials: int
    valid_trials_95: int
    valid_trials_80: int
    or_more: bool
    words: str


@dataclass(frozen=True)
class SeedPart:
    """The reach of the seeds of some cells: the smallest p-value.

    Attributes:
        smallest_p: of an exact two-sided sign-flip test over the seeds.
        recommended_seeds: the fewest with which it can be below 0.05.
    """

    cells: tuple[str, ...]
    seeds: int
    smallest_p: float
    recommended_seeds: int
    words: str


@dataclass(frozen=True)
class DifferencePart:
    """The smallest difference between two cells of a task that seeds and examples can show.

    Attributes:
        task, metric: the task, and its metric; the difference is one of accuracy whatever that is.
        split: whose size `examples` is: test where its size is declared, else dev in its place.
        smallest_difference: a fraction; None for one seed.
        seeds_for_two_points: seeds that show a difference of 0.02; None if no number does, or more than 100.
        examples_for_two_points: examples below which no number of seeds shows it.
    """

    task: str
    metric: str
    seeds: int
    split: str
    examples: int
    smallest_difference: float | None
    seeds_for_two_points: int | None
    examples_for_two_points: int
    words: str


@dataclass(frozen=True)
class Explanation:
    """The reach of a planned sweep in three parts, and the assumptions of its figures."""

    curves: tuple[CurvePart, ...]
    seeds: tuple[SeedPart, ...]
    differences: tuple[DifferencePart, ...]
    assumptions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The object `explain` of `plan --explain --json`."""
        return asdict(self)

    def sections(self) -> dict[str, list[str]]:
        """Heading → lines, for the screen."""
        parts: dict[str, Iterable[CurvePart | SeedPart | DifferencePart]] = {
            "Tuning curves": self.curves, "Seeds": self.seeds, "Differences": self.differences,
        }  # fmt: skip
        return {heading: [part.words for part in members] for heading, members in parts.items()}


def explain(cells: Iterable[PlannedCell]) -> Explanation:
    """The reach of the cells of a plan; cells of which the same is said are one part."""
    planned = list(cells)
    curves = _grouped(planned, lambda cell: (cell.searcher, cell.search_trials))
    seeds = _grouped(planned, lambda cell: cell.finals)
    tasks = _grouped(planned, lambda cell: (cell.task, cell.metric, cell.finals, cell.dev_examples, cell.test_examples))
    return Explanation(
        tuple(_curve_part(searcher, trials, members) for (searcher, trials), members in curves.items()),
        tuple(_seed_part(count, members) for count, members in seeds.items()),
        tuple(_difference_part(*facts) for facts in tasks),
        (ASSUMPTIONS,),
    )


def planned_random(searcher: str, trials: int) -> int:
    """The number of a cell's search trials that are random: all but the published setting, or TPE's first ones.

    TPE may draw some more at random, where trials begin before others have results.
    """
    others = {"random": trials, "tpe": min(trials, STARTUP_TRIALS)}.get(searcher, 0) - 1
    return max(0, others)


def _grouped(cells: Iterable[PlannedCell], key: Callable[[PlannedCell], T]) -> dict[T, list[PlannedCell]]:
    grouped: dict[T, list[PlannedCell]] = {}
    for cell in cells:
        grouped.setdefault(key(cell), []).append(cell)
    return grouped


def _names(cells: Iterable[PlannedCell]) -> tuple[str, ...]:
    return tuple(cell_name(*filter(None, (cell.encoder, cell.mode, cell.task, cell.variant))) for cell in cells)


def _of(names: tuple[str, ...]) -> str:
    """`minilm.fine_tuning.sst2` or `3 cells (minilm.fine_tuning.sst2, …)`."""
    return names[0] if len(names) == 1 else f"{some(len(names), 'cell')} ({names[0]}, …)"


def _curve_part(searcher: str, trials: int, cells: list[PlannedCell]) -> CurvePart:
    names, count = _names(cells), planned_random(searcher, trials)
    ranges = [valid_trials(min(count, EXACT_UP_TO), level) for level in LEVELS]
    start = f"{_of(names)}: {some(trials, 'trial')} by {searcher}, {count} of them random"
    more = count > EXACT_UP_TO
    words = f"{start}: {_range_words(ranges, more)} {_needed_words(ranges)}".strip()
    return CurvePart(names, trials, count, ranges[0], ranges[1], more, words)


def _range_words(ranges: list[int], more: bool) -> str:
    if not any(ranges):
        return "no tuning curve."
    parts = [
        f"{some(last, 'trial') if last else 'none'}{' or more' * more} ({level:.0%} band)".replace("%", " %")
        for level, last in zip(LEVELS, ranges, strict=True)
    ]
    return f"a tuning curve that is valid up to {', '.join(parts)}."


def _needed_words(ranges: list[int]) -> str:
    """The trials for a longer range, with the published setting, which is always one of them."""
    level, reached = LEVELS[-1], ranges[-1]
    needed = {k: count + 1 for k, count in NEEDED_TRIALS[level].items() if k > reached}
    if not needed:
        return ""
    parts = [f"--trials {count} for up to {k}" for k, count in needed.items()]
    return f"With --searcher random: {', '.join(parts)} ({level:.0%} band).".replace("%", " %")


def _seed_part(seeds: int, cells: list[PlannedCell]) -> SeedPart:
    names, p = _names(cells), sample_sizes.smallest_p(seeds)
    words = f"{_of(names)}: {some(seeds, 'seed')}: an exact two-sided sign-flip test cannot go below p = {p:.3g}"
    if seeds < RECOMMENDED_SEEDS:
        best = sample_sizes.smallest_p(RECOMMENDED_SEEDS)
        words += f"; {RECOMMENDED_SEEDS} or more are recommended (--seeds {RECOMMENDED_SEEDS}: p = {best:.3g})"
    return SeedPart(names, seeds, p, RECOMMENDED_SEEDS, f"{words}.")


def _difference_part(task: str, metric: str, seeds: int, dev: int, test: int | None) -> DifferencePart:
    split, examples = ("dev", dev) if test is None else ("test", test)
    smallest, needed = sample_sizes.smallest_difference(seeds, examples), sample_sizes.seeds_for(NOTABLE, examples)
    start = f"{task}: {some(seeds, 'seed')} and {some(examples, f'{split} example')}"
    start += NO_TEST_SIZE if test is None else ""
    start += "" if metric == "accuracy" else f", if {metric} were accuracy"
    if smallest is None:
        words = f"{start}: no difference can be shown with one seed."
    else:
        words = f"{start}: two modes have to differ by about {100 * smallest:.1f} points."
    words += " " + _two_points(needed, examples) if smallest is None or smallest > NOTABLE else ""
    least = sample_sizes.least_examples(NOTABLE)
    return DifferencePart(task, metric, seeds, split, examples, smallest, needed, least, words)


def _two_points(needed: int | None, examples: int) -> str:
    """The seeds or examples that a difference of two points would take."""
    if needed is not None:
        return f"Two points would take about {some(needed, 'seed')}."
    if (least := sample_sizes.least_difference(examples)) > NOTABLE:
        return (
            f"So many examples never show less than {100 * least:.1f} points, whatever the seeds; two points take more "
            f"than {some(sample_sizes.least_examples(NOTABLE), 'example')}."
        )
    return f"Two points would take more than {counted(sample_sizes.MOST_PLANNED_SEEDS)} seeds."
