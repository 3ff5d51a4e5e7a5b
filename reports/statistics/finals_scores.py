"""The scores of a cell's finals, from its records and, on resamples of the examples, from its stored predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from meltpoint.reports.statistics.example_statistics import scorer
from meltpoint.reports.statistics.resampling import resampled, units_of
from meltpoint.sweeps.ledger.predictions import predictions_path
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.ledger.scored_examples import ScoredExamples, read_scored
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.metrics import Floats
from meltpoint.tasks.core.task import Kind

Split = Literal["dev", "test"]
Key = TypeVar("Key")
Found = TypeVar("Found")


class Problem(Exception):  # noqa: N818
    """The reason, in a few words, why a comparison has no interval."""


class UnreadableError(Problem):
    """Stored predictions are missing or damaged."""


@dataclass(frozen=True)
class FinalsScores:
    """One side of a comparison: the finals of a cell's best setting, or of its published one."""

    cell: CellSummary
    of_default: bool = False

    @property
    def finals(self) -> list[TrialRecord]:
        """The finished finals, by seed."""
        return self.cell.default_finals if self.of_default else self.cell.finals


def scores_by_seed(finals: Sequence[TrialRecord], split: Split, metric: str) -> dict[int, float]:
    """Seed → the recorded score, for the finals that have one."""
    found: dict[int, float] = {}
    for final in finals:
        of_dev = {**final.dev_metrics, **({} if final.dev is None else {final.metric: final.dev})}
        scores = of_dev if split == "dev" else final.test or {}
        if metric in scores:
            found[final.seed] = scores[metric]
    return found


@dataclass(frozen=True)
class ResampledScores:
    """The scores of a cell's finals on a split, and on resamples of its examples.

    Attributes:
        seeds: of the finals.
        observed: (seeds,).
        resampled: (resamples, seeds).
        examples: examples of the split.
        digest: of the examples.
        units: what was resampled: groups where the task has a column of them, else examples. N of a variance.
    """

    seeds: tuple[int, ...]
    observed: Floats
    resampled: Floats
    examples: int
    digest: str
    units: int


class StoredScores:
    """Reads and resamples the stored predictions of cells, each file once.

    Args:
        folder: the sweep's folder, or None.
        resamples: bootstrap resamples of the examples.
    """

    def __init__(self, folder: StoragePath | None, resamples: int) -> None:
        self.folder, self.resamples = folder, resamples
        self._read: dict[StoragePath, ScoredExamples | Problem] = {}
        self._scores: dict[tuple[CellKey, bool, tuple[str, ...], Split, str], ResampledScores | Problem] = {}

    def scores(self, finals: FinalsScores, split: Split, metric: str) -> ResampledScores:
        """The scores of a cell's finals; there is at least one with a recorded score.

        Raises:
            Problem: predictions are missing, damaged, or do not give the recorded scores.
        """
        ids = tuple(final.id for final in finals.finals)
        key = (finals.cell.header.key, finals.of_default, ids, split, metric)
        return _once(self._scores, key, lambda: self._computed(finals, split, metric))

    def _computed(self, finals: FinalsScores, split: Split, metric: str) -> ResampledScores:
        recorded = scores_by_seed(finals.finals, split, metric)
        scored = [final for final in finals.finals if final.seed in recorded]
        runs = [self._run(finals.cell, final, split) for final in scored]
        for final, run in zip(scored, runs, strict=True):
            tolerance = final.dev_tolerance if split == "dev" else 0.0
            check_score(run, metric, recorded[final.seed], f"seed {final.seed}", tolerance)
        first = runs[0]
        if any(run.digest != first.digest for run in runs):
            raise Problem("its seeds are scored on different examples")
        units = units_of(first.count, first.groups)
        if units == 1 < first.count:
            raise Problem(f"all {first.count} examples are of one group")
        name = f"{finals.cell.header.task} {split}"
        return ResampledScores(
            tuple(final.seed for final in scored), np.array([recorded[final.seed] for final in scored]),
            resampled(scorer(metric, runs), first.count, self.resamples, name, first.groups), first.count, first.digest,
            units,
        )  # fmt: skip

    def _run(self, cell: CellSummary, final: TrialRecord, split: Split) -> ScoredExamples:
        if self.folder is None:
            raise Problem("no stored predictions")
        path = predictions_path(self.folder, cell_name(*cell.header.key), final, split)
        return _once(self._read, path, lambda: _read(path, final, cell.header.kind))


def _once(kept: dict[Key, Found | Problem], key: Key, compute: Callable[[], Found]) -> Found:
    """A result, or the problem with it, computed the first time that it is asked for."""
    if key not in kept:
        try:
            kept[key] = compute()
        except Problem as problem:
            kept[key] = problem
    found = kept[key]
    if isinstance(found, Problem):
        raise found
    return found


def _read(path: StoragePath, final: TrialRecord, kind: Kind) -> ScoredExamples:
    try:
        if not path.exists():
            raise Problem(f"no stored predictions of seed {final.seed}")
        return read_scored(path, kind)
    except (ValueError, OSError):
        raise Problem(f"damaged predictions: {path.name}") from None


def check_score(run: ScoredExamples, metric: str, recorded: float, whose: str, tolerance: float = 0.0) -> None:
    """Check that predictions give the recorded score, up to what sums in another order differ by.

    Args:
        whose: the predictions, in words.
        tolerance: what the score may differ by beside that (`TrialRecord.dev_tolerance`).

    Raises:
        Problem: they give another one, or none.
    """
    try:
        found = run.score(metric)
    except ValueError:
        raise Problem(f"{metric} cannot be computed from the predictions") from None
    if not math.isclose(found, recorded, abs_tol=1e-9 + tolerance):
        raise Problem(f"the predictions of {whose} do not give its recorded score")
