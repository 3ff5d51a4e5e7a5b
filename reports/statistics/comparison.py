"""The difference between two cells with its uncertainty over seeds and examples, and the conclusion that it allows.

`hierarchical_bootstrap` has the method with its sources, `docs/statistics.md` explains it to users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meltpoint.reports.statistics.finals_scores import (
    FinalsScores,
    Problem,
    ResampledScores,
    Split,
    StoredScores,
    UnreadableError,
    scores_by_seed,
)
from meltpoint.reports.statistics.hierarchical_bootstrap import (
    Replicates,
    Side,
    of_models,
    probability_better,
    unpaired,
)
from meltpoint.reports.statistics.seeds import NO_VARIANCE, Design, Needs, Prior, failed, prior_of, rounded_up, welch
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import best_final
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.metrics import METRICS, gain, is_lower_better
from meltpoint.tasks.core.scoring import in_points
from meltpoint.tasks.core.wording import some

ALPHA = 0.05
"""A difference is claimed if its adjusted p-value is below this."""
MARGIN = 0.01
"""The default of `--margin`, as a fraction: modes within one point are level."""
ONE_SEED = "one seed says nothing about other runs"


@dataclass(frozen=True)
class Behind:
    """The distance by which a cell may be behind the other one of a comparison.

    Attributes:
        p: one-sided p-value of "behind by the margin or more"; None without an interval.
        bound: the largest distance it may be behind, at 95 %, one-sided; a fraction, below 0 if it is ahead.
    """

    p: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class ModelDifference:
    """The difference of two trained models, the cells' exported finalists: `upper` − `lower`, over examples alone."""

    delta: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """The difference of two cells of a task: `upper` − `lower`.

    Attributes:
        upper, lower: the cells' keys.
        split: of both scores.
        metric: of both scores.
        delta: the difference of the cells' means over seeds; a fraction.
        low, high: its 95 % interval over seeds and examples; None if it cannot be computed (`reason`).
        p: two-sided p-value of "no difference", before adjustment; None like the interval.
        p_holm: adjusted for all comparisons of the table (Holm 1979); None before `adjusted`, or without p.
        probability_better: P(A > B), the probability that one run of `upper` beats one of `lower` on new examples
            (Bouthillier et al. 2021, section 4); None like the interval.
        seeds: of the cell with fewer, leaving out a cell in which nothing is random; 1 if nothing is in either.
        examples: examples of the split (sentences, for labelling).
        needed_seeds: seeds with which a difference of this size would be claimed; None if no number of seeds would.
        reason: the reason for a missing interval, in a few words; "" if there is one.
        needed_examples: examples with which it would, if no number of seeds would (`Needs`).
        with_seeds: the seeds that go with `needed_examples`.
        seeds_error, examples_error: the standard errors of its two parts; None like the interval.
        about_tuning: True if `upper` is a cell's best setting and `lower` the same cell's published one.
        is_unreadable: True if p is missing because stored predictions are missing or damaged.
        upper_behind, lower_behind: the distance by which each may be behind the other (non-inferiority).
        seeds_freedom: degrees of freedom of the seed part.
        model: the same difference for the exported finalists, over examples alone; None without stored predictions.
        failed_runs: the seeds of runs that failed, of `upper` and of `lower` (`seeds`).
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
    probability_better: float | None = None
    seeds: int = 0
    examples: int = 0
    needed_seeds: int | None = None
    reason: str = ""
    needed_examples: int | None = None
    with_seeds: int | None = None
    seeds_error: float | None = None
    examples_error: float | None = None
    about_tuning: bool = False
    is_unreadable: bool = False
    upper_behind: Behind = Behind()
    lower_behind: Behind = Behind()
    seeds_freedom: float = 1.0
    model: ModelDifference | None = None
    failed_runs: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def behind(self, cell: CellKey) -> Behind:
        """The distance by which this one of the two cells may be behind the other."""
        return self.upper_behind if cell == self.upper else self.lower_behind

    @property
    def gain(self) -> float:
        """The difference with the sign that makes positive better: of an error, its negative."""
        return gain(self.metric, self.delta)

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
        """The conclusion in plain words: `fine-tuning is better`, or the sizes with which it could be told."""
        sides = ("tuning", "the published setting") if self.about_tuning else cell_names(self.upper, self.lower)
        if self.is_claimed:
            return " is better than ".join(sides if self.gain > 0 else sides[::-1])
        if self.reason:
            told = f"undecided: {self.reason}"
        elif self.p_holm is None:
            told = "undecided: not adjusted for the other comparisons of its table"
        else:
            needs = Needs(self.needed_seeds, self.needed_examples, self.with_seeds)
            told = not_yet(self.seeds, self.examples, needs)
        return f"tuning not shown to help: {told}" if self.about_tuning else told


class Comparer:
    """Compares cells of a sweep by the stored predictions of their finalists; caches its reads and results.

    Args:
        folder: the sweep's folder; None if nothing is stored, so that no comparison has an interval.
        resamples: bootstrap resamples of the examples.
        margin: the distance by which a cell may be behind another and still be level with it; a fraction.
        cells: of the sweep; their variances over seeds inform each other. Without them, only the recorded prior counts.
    """

    def __init__(
        self, folder: StoragePath | None, resamples: int = 4000, margin: float = MARGIN,
        cells: Sequence[CellSummary] = (),
    ) -> None:  # fmt: skip
        self.margin, self.cells = margin, cells
        self._priors: dict[tuple[Split, str], Prior] = {}
        self._stored = StoredScores(folder, resamples)
        self._known: dict[tuple[object, ...], Comparison] = {}

    def compare(
        self, upper: CellSummary, lower: CellSummary, split: Split = "test", metric: str = ""
    ) -> Comparison | None:
        """The difference of two cells of one task: on test if both have test scores, else on dev; None without scores.

        Args:
            split: "dev" to compare on dev even if there are test scores.
            metric: a metric other than the task's own; "" for the task's own.
        """
        return self._compared(FinalsScores(upper), FinalsScores(lower), split, metric)

    def tuning(self, cell: CellSummary) -> Comparison | None:
        """A cell's best setting − its published one, as `compare`; None without finals of both."""
        return self._compared(FinalsScores(cell), FinalsScores(cell, of_default=True), "test", "")

    def interval(self, cell: CellSummary) -> tuple[float, float] | None:
        """The 95 % interval of a cell's mean score over seeds and examples: on test if it has test scores, else on dev.

        It is that of the difference to a fixed score. None without stored predictions, or with one seed where runs
        differ by seed.
        """
        finals, metric = FinalsScores(cell), cell.header.metric
        split: Split = "test" if cell.test else "dev"
        try:
            scores = self._stored.scores(finals, split, metric)
        except Problem:
            return None
        if len(scores.seeds) < 2 and finals.is_random:
            return None
        fixed = Side(np.zeros(1), np.zeros((len(scores.resampled), 1)), NO_VARIANCE)
        low, high = unpaired(self._side(finals, scores, split, metric), fixed, scores.units).interval()
        return max(low, METRICS[metric.partition(".")[0]].lowest), min(high, 1.0) if in_points(metric) else high

    def _side(self, finals: FinalsScores, scores: ResampledScores, split: Split, metric: str) -> Side:
        prior = self._prior(split, metric)
        variance = prior.moderated(scores.observed, metric) if finals.is_random else NO_VARIANCE
        return Side(scores.observed, scores.resampled, variance)

    def _compared(self, upper: FinalsScores, lower: FinalsScores, split: Split, metric: str) -> Comparison | None:
        name = metric or upper.cell.header.metric
        for chosen in ("test", "dev") if split == "test" else ("dev",):
            scores = [scores_by_seed(one.finals, chosen, name) for one in (upper, lower)]
            if all(scores):
                key = (*(one.key for one in (upper, lower)), chosen, name)
                if key not in self._known:
                    self._known[key] = self._on(chosen, name, upper, lower, scores)
                return self._known[key]
        return None

    def _on(
        self, split: Split, metric: str, upper: FinalsScores, lower: FinalsScores, scores: Sequence[dict[int, float]]
    ) -> Comparison:  # fmt: skip
        values = [np.array(list(one.values())) for one in scores]
        plain = Comparison(
            upper.cell.header.key, lower.cell.header.key, split, metric, float(values[0].mean() - values[1].mean()),
            seeds=min((len(own) for own, one in zip(values, (upper, lower), strict=True) if one.is_random), default=1),
            about_tuning=lower.of_default,
            failed_runs=(failed_seeds(scores[0], metric), failed_seeds(scores[1], metric)),
        )  # fmt: skip
        try:
            return self._with_interval(plain, upper, lower)
        except Problem as problem:
            return replace(plain, reason=str(problem), is_unreadable=isinstance(problem, UnreadableError))

    def _with_interval(self, plain: Comparison, upper: FinalsScores, lower: FinalsScores) -> Comparison:
        if upper.finals == lower.finals:
            raise Problem("the published setting is the best one" if lower.of_default else "both are the same finals")
        try:
            ahead, behind = (self._stored.scores(one, plain.split, plain.metric) for one in (upper, lower))
        except Problem as problem:
            raise UnreadableError(str(problem)) from None
        if ahead.digest != behind.digest:
            raise Problem("they are scored on different examples")
        units, prior = ahead.units, self._prior(plain.split, plain.metric)
        sides = [
            self._side(finals, scores, plain.split, plain.metric)
            for finals, scores in ((upper, ahead), (lower, behind))
        ]
        models = _models(upper, ahead, lower, behind)
        model = ModelDifference(models.centre, *models.interval(), models.p())
        known = replace(plain, examples=ahead.examples, model=model)
        if plain.seeds < 2 and (upper.is_random or lower.is_random):
            parts = [(side.variance.value / side.seeds, max(1.0, side.variance.freedom)) for side in sides]
            error, freedom = welch(parts)
            known = replace(known, reason=ONE_SEED, seeds_error=error, seeds_freedom=freedom)
            return _with_needs(replace(known, examples_error=float(models.deviations.std())), 1)
        found = unpaired(sides[0], sides[1], units)
        low, high = found.interval()
        all_failed = [
            prior.all_failed(len(scores.seeds)) if finals.is_random else 0.0
            for finals, scores in ((upper, ahead), (lower, behind))
        ]
        worse = gain(plain.metric, found.centre) > 0
        one, other = _behind(found, plain.metric, self.margin)
        higher = probability_better(ahead.resampled, behind.resampled)
        compared = replace(
            known, low=low, high=high, p=min(1.0, found.p() + all_failed[worse]),
            probability_better=1.0 - higher if is_lower_better(plain.metric) else higher,  # ties count half
            seeds_error=max(found.scale, found.least_scale), seeds_freedom=found.freedom,
            examples_error=float(found.deviations.std()),
            upper_behind=_unless_failed(one, all_failed[1]),
            lower_behind=_unless_failed(other, all_failed[0]),
        )  # fmt: skip
        return _with_needs(compared, 1)

    def _prior(self, split: Split, metric: str) -> Prior:
        """The prior of the sweep's cells, each by this metric if it has it, else by its own."""
        if (split, metric) not in self._priors:
            cells = []
            for cell in self.cells:
                own = cell.header.metric
                scores = scores_by_seed(cell.finals, split, metric) or scores_by_seed(cell.finals, split, own)
                cells += [np.array(list(scores.values()))] if scores and in_points(own) else []
            self._priors[split, metric] = prior_of(cells) if in_points(metric) else Prior()
        return self._priors[split, metric]


def failed_seeds(scores: Mapping[int, float], metric: str) -> tuple[int, ...]:
    """The seeds of the runs that failed (`seeds.failed`)."""
    if not in_points(metric):
        return ()
    return tuple(seed for seed, bad in zip(scores, failed(np.array(list(scores.values()))), strict=True) if bad)


def _models(upper: FinalsScores, ahead: ResampledScores, lower: FinalsScores, behind: ResampledScores) -> Replicates:
    """The difference of the two exported finalists."""
    one, other = _exported(upper, ahead), _exported(lower, behind)
    scores = float(ahead.observed[one]), float(behind.observed[other])
    return of_models(*scores, ahead.resampled[:, one], behind.resampled[:, other], ahead.units)


def _exported(finals: FinalsScores, scores: ResampledScores) -> int:
    """The column of the finalist that `export --model` writes."""
    best = best_final([final for final in finals.finals if final.seed in scores.seeds])
    return scores.seeds.index(best.seed) if best is not None else 0


def _behind(found: Replicates, metric: str, margin: float) -> tuple[Behind, Behind]:
    """The distances of the upper and the lower cell; only for scores in points, since the margin is in points."""
    if not in_points(metric):
        return Behind(), Behind()
    low, high = found.interval(ALPHA)
    return Behind(found.below(-margin, -1), -low), Behind(found.above(margin), high)


def _unless_failed(one: Behind, chance: float) -> Behind:
    """Add the chance that all runs of the other cell failed."""
    return one if one.p is None else replace(one, p=min(1.0, one.p + chance))


def adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one table with their p-values adjusted by Holm's step-down procedure, in the same order.

    Comparisons without a p-value stay unchanged, but for the seeds that those of one seed need. They still count if
    their predictions cannot be read; otherwise damage would turn other differences into claims.
    """
    tested = [place for place, one in enumerate(comparisons) if one.p is not None]
    unknown = [1.0] * sum(one.is_unreadable for one in comparisons)
    by_holm = dict(zip(tested, holm([*(comparisons[place].p or 0.0 for place in tested), *unknown]), strict=False))
    factor = sum(p >= ALPHA for p in by_holm.values()) + len(unknown)  # the factor that the next claim has to overcome
    found = list(comparisons)
    for place, p_holm in by_holm.items():
        own = p_holm / (comparisons[place].p or 1.0) if p_holm < ALPHA else factor
        found[place] = _with_needs(replace(comparisons[place], p_holm=p_holm), own)
    of_one_seed = [place for place, one in enumerate(comparisons) if one.reason == ONE_SEED]
    for place in of_one_seed:  # with more seeds, each of them would be in the family
        found[place] = _with_needs(comparisons[place], factor + len(of_one_seed))
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p-values, in the same order; claims below α have a chance of at most α that any of them is false.

    The k-th smallest of m, from 0, is multiplied by m − k; none is adjusted below a smaller one, or above 1.
    """
    count, highest = len(p_values), 0.0
    found = [0.0] * count
    for step, place in enumerate(sorted(range(count), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (count - step) * p_values[place]))
        found[place] = highest
    return found


def _with_needs(one: Comparison, factor: float) -> Comparison:
    """Add the sizes that would be enough, at a level of ALPHA / factor."""
    assert one.seeds_error is not None
    assert one.examples_error is not None
    design = Design(
        one.delta, one.seeds * one.seeds_error**2, one.examples_error**2, one.seeds, one.examples, one.seeds_freedom
    )
    needs = design.needs(ALPHA / factor, 2 if one.is_claimed else one.seeds + 1)
    seeds = min(needs.seeds or one.seeds, one.seeds) if one.is_claimed else needs.seeds
    return replace(one, needed_seeds=seeds, needed_examples=needs.examples, with_seeds=needs.with_seeds)


MODES = {
    "fine_tuning": "fine-tuning", "stack_and_finetune": "stack-and-finetune", "lora": "LoRA", "lp_ft": "LP-FT",
    "norm_bias": "tuning norms and biases", "top_k": "tuning the top layers", "probe": "the probe",
}  # fmt: skip
"""Mode → its name in prose, where it is not its words."""


def cell_names(upper: CellKey, lower: CellKey) -> tuple[str, str]:
    """The names of two cells, as short as their difference allows: `fine-tuning`, `fine-tuning with crf`, `crf`."""
    return _name(upper, lower), _name(lower, upper)


def _name(cell: CellKey, other: CellKey) -> str:
    encoder, mode, _, variant = (*cell, "")[:4]
    other_encoder, other_mode, _, other_variant = (*other, "")[:4]
    name = MODES.get(mode, mode.replace("_", " "))
    words = [name] if mode != other_mode else []
    if variant != other_variant:
        words.append(f"with {variant or 'the default head'}" if words else variant or "the default head")
    if encoder != other_encoder:
        words.append(f"of {encoder}" if words else encoder)
    return " ".join(words) or name


def not_yet(seeds: int, examples: int, needs: Needs) -> str:
    """`undecided with 5 seeds and 408 examples; about 12 seeds would decide`.

    Args:
        seeds, examples: the sizes of the comparison.
        needs: the sizes that would be enough.
    """
    text = f"undecided with {some(seeds, 'seed')} and {some(examples, 'example')}"
    if needs.seeds is not None:
        return f"{text}; about {some(rounded_up(needs.seeds), 'seed')} would decide"
    if needs.examples is None:
        return text
    others = needs.with_seeds if needs.with_seeds is not None and needs.with_seeds > seeds else None
    more = "" if others is None else f" with {some(rounded_up(others), 'seed')}"
    return f"{text}; no number of seeds would decide, about {some(rounded_up(needs.examples), 'example')}{more} would"
