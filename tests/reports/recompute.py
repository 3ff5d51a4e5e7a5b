"""Every figure of `report NAME --format json`, computed again from the stored predictions and the ledger's files.

    python -m meltpoint.tests.reports.recompute STORAGE NAME

Nothing of Meltpoint is imported: scores are scikit-learn's, seqeval's and SciPy's, the intervals are the method of
`docs/statistics.md` in plain loops with other random draws. Status 1 where a figure differs by more than its tolerance.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special, stats
from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score as span_precision
from seqeval.metrics import recall_score as span_recall
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

Document = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """A figure of the report beside the one computed here."""

    name: str
    reported: float | None
    computed: float | None
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """True if both are missing, or differ by no more than the tolerance."""
        if self.reported is None or self.computed is None:
            return self.reported is self.computed
        return abs(self.reported - self.computed) <= self.tolerance


EXACT = 1e-9
ERRORS = ("mae", "mse", "rmse")
NEAR = 0.08
"""In widths of the interval: its ends from 1 000 other resamples vary by about 0.02 of them."""


class Sweep:
    """The files of a finished sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["cells"]
        self.records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("trials/*.json"))]

    def cell(self, encoder: str, mode: str, task: str, variant: str = "") -> Document:
        """A cell's entry in `sweep.json`."""
        wanted = (encoder, mode, task, variant)
        return next(one for one in self.cells if key_of(one) == wanted)

    def _finished(self, cell: Document) -> list[Document]:
        own = [one for one in self.records if key_of(one) == key_of(cell) and one["status"] == "finished"]
        facts = [fact for fact in ("metric", "head", "data_fingerprint", "encoder_fingerprint") if fact in cell]
        return [one for one in own if all(one.get(fact) == cell[fact] for fact in facts)]

    def finals(self, cell: Document) -> list[Document]:
        """The finished finals of the best setting, by seed: the highest dev, then fewer epochs, then the first."""
        search = [one for one in self._finished(cell) if one["role"] == "search" and one.get("dev") is not None]
        if not search:
            return []
        best = min(search, key=lambda one: (-one["dev"], len(one.get("epochs", [])), one["number"]))
        return self._of(cell, "final", best["setting"])

    def defaults(self, cell: Document) -> list[Document]:
        """The finished finals of the published setting, by seed."""
        return self._of(cell, "default", cell.get("published"))

    def _of(self, cell: Document, role: str, setting: Any) -> list[Document]:
        found = [one for one in self._finished(cell) if one["role"] == role and one["setting"] == setting]
        return sorted(found, key=lambda one: int(one["seed"]))

    def prior(self, metric: str, split: str) -> tuple[float, float, float]:
        """The prior of the variances over seeds, each cell by this metric where it has it, else by its own."""
        cells = []
        for cell in self.cells:
            own = cell["metric"]
            scores = [
                {**one.get("dev_metrics", {}), own: one["dev"]} if split == "dev" else one.get("test") or {}
                for one in self.finals(cell)
            ]
            chosen = [one[metric] for one in scores if metric in one] or [one[own] for one in scores if own in one]
            cells += [chosen] if chosen and own not in ERRORS else []
        return prior_of(cells)

    def lines(self, cell: Document, final: Document, split: str) -> list[Document]:
        """A finalist's stored predictions; empty where there are none."""
        key = [part for part in key_of(cell) if part]
        name = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_") for part in key)
        name += ".default" if final["role"] == "default" else ""
        path = self.folder / "predictions" / f"{name}.seed{final['seed']}.{split}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]


def key_of(document: Document) -> tuple[str, str, str, str]:
    """Encoder, mode, task and variant of a cell or a trial."""
    return document["encoder"], document["mode"], document["task"], document.get("variant", "")


SCORES: dict[str, Callable[..., float]] = {
    "accuracy": accuracy_score, "matthews": matthews_corrcoef,
    "macro_f1": partial(f1_score, average="macro", zero_division=0), "span_f1": partial(span_f1, zero_division=0),
    "span_precision": partial(span_precision, zero_division=0), "span_recall": partial(span_recall, zero_division=0),
}  # fmt: skip


def full_score(metric: str, lines: Sequence[Document]) -> float:
    """A metric of one finalist's predictions, by the field's libraries."""
    gold, guessed = [one["gold"] for one in lines], [one["prediction"] for one in lines]
    if metric == "word_accuracy":
        return float(accuracy_score(*([tag for tags in side for tag in tags] for side in (gold, guessed))))
    if metric in ("pearson", "spearman"):
        return correlation(metric, gold, guessed)
    if metric == "f1":
        return float(f1_score(gold, guessed, pos_label=list(lines[0]["probabilities"])[1], zero_division=0))
    return float(SCORES[metric](gold, guessed))


def correlation(metric: str, gold: Sequence[float], guessed: Sequence[float]) -> float:
    """SciPy's Pearson or Spearman; 0 where a side is constant."""
    if len(set(gold)) < 2 or len(set(guessed)) < 2:
        return 0.0
    return float((stats.pearsonr if metric == "pearson" else stats.spearmanr)(gold, guessed).statistic)


def draw_score(metric: str, lines: Sequence[Document]) -> Callable[[Sequence[int]], float]:
    """Places of drawn examples → the metric on them, in plain arithmetic: libraries would take hours."""
    if metric.startswith("span_"):
        return _spans(metric, lines)
    if metric == "word_accuracy":
        right = [sum(a == b for a, b in zip(one["gold"], one["prediction"], strict=True)) for one in lines]
        sizes = [len(one["gold"]) for one in lines]
        return lambda drawn: sum(right[at] for at in drawn) / sum(sizes[at] for at in drawn)
    gold, guessed = np.array([one["gold"] for one in lines]), np.array([one["prediction"] for one in lines])
    if metric in ("pearson", "spearman"):
        ranked = stats.rankdata if metric == "spearman" else np.asarray
        return lambda drawn: float(np.corrcoef(ranked(gold[drawn]), ranked(guessed[drawn]))[0, 1])
    if metric == "accuracy":
        return lambda drawn: float((gold[drawn] == guessed[drawn]).mean())
    if metric == "f1":
        positive = list(lines[0]["probabilities"])[1]
        return lambda drawn: _f1(gold[drawn], guessed[drawn], positive)
    if metric == "macro_f1":
        return lambda drawn: statistics.fmean(
            _f1(gold[drawn], guessed[drawn], label) for label in set(gold[drawn]) | set(guessed[drawn])
        )
    return lambda drawn: _matthews(gold[drawn], guessed[drawn])


def _f1(gold: Any, guessed: Any, label: str) -> float:
    hits = int(((gold == label) & (guessed == label)).sum())
    return 2 * hits / int((gold == label).sum() + (guessed == label).sum()) if hits else 0.0


def _matthews(gold: Any, guessed: Any) -> float:
    labels = [*{*gold, *guessed}]
    in_gold, in_guessed = ([int((side == label).sum()) for label in labels] for side in (gold, guessed))
    size, hits = len(gold), int((gold == guessed).sum())
    joint = hits * size - sum(a * b for a, b in zip(in_gold, in_guessed, strict=True))
    scale = (size**2 - sum(a * a for a in in_gold)) * (size**2 - sum(b * b for b in in_guessed))
    return joint / math.sqrt(scale) if scale else 0.0


def _spans(metric: str, lines: Sequence[Document]) -> Callable[[Sequence[int]], float]:
    pairs = [(set(get_entities(one["gold"])), set(get_entities(one["prediction"]))) for one in lines]
    counts = [(len(gold & guessed), len(gold), len(guessed)) for gold, guessed in pairs]

    def score(drawn: Sequence[int]) -> float:
        hits, gold, guessed = (sum(counts[at][place] for at in drawn) for place in range(3))
        below = {"span_f1": (gold + guessed) / 2, "span_precision": guessed, "span_recall": gold}[metric]
        return hits / below if hits else 0.0

    return score


def moderated(scores: Sequence[float], prior: tuple[float, float, float], pooled: bool) -> tuple[float, float]:
    """The variance of a cell's runs and its degrees of freedom: drawn towards the prior, unless a run failed."""
    own, more = statistics.variance(scores), len(scores) - 1
    if not pooled or max(scores) - min(scores) > 0.08:
        return own, more
    return (prior[1] * prior[0] + more * own) / (prior[1] + more), prior[1] + more


def prior_of(cells: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """s₀², d₀ and the share of failed runs, from the scores of each cell's runs (Smyth 2004, section 6.2)."""
    runs = [(score, max(scores)) for scores in cells for score in scores]
    share = sum(best - score > 0.08 for score, best in runs) / len(runs)
    sound = [scores for scores in cells if len(scores) > 1 and max(scores) - min(scores) <= 0.08]
    weighted = [((len(scores) - 1) * statistics.variance(scores), len(scores) - 1) for scores in sound]
    value = (4 * 0.015**2 + sum(one for one, _ in weighted)) / (4 + sum(more for _, more in weighted))
    varied = [(math.log(one / more), more / 2) for one, more in weighted if one > 0]
    if len(varied) < 6:
        return value, 4.0, share
    logs = [log - float(special.digamma(half)) + math.log(half) for log, half in varied]
    excess = statistics.variance(logs) - statistics.fmean(float(special.polygamma(1, half)) for _, half in varied)
    candidates = [0.001 * step for step in range(1000, 4001)]
    return value, min(candidates, key=lambda one: abs(float(special.polygamma(1, one / 2)) - excess)), share


def interval(
    metric: str, upper: Sequence[Sequence[Document]], lower: Sequence[Sequence[Document]], resamples: int,
    prior: tuple[float, float, float], seed: int = 7,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    """The documented method in loops: a difference with its interval, its p-value and P(A > B).

    Args:
        upper, lower: the predictions of each seed.
        prior: of the sweep's variances over seeds.
    """
    draw, size = random.Random(seed), len(upper[0])
    scorers = [[draw_score(metric, lines) for lines in side] for side in (upper, lower)]
    everything = list(range(size))
    seen = [[score(everything) for score in side] for side in scorers]
    delta, wins, together = statistics.fmean(seen[0]) - statistics.fmean(seen[1]), 0.0, []
    between: tuple[list[float], list[float]] = ([], [])
    for _ in range(resamples):
        drawn = [draw.randrange(size) for _ in everything]
        first, second = ([score(drawn) for score in side] for side in scorers)
        own = [[a - b for a, b in zip(now, then, strict=True)] for now, then in zip((first, second), seen, strict=True)]
        together.append(statistics.fmean(own[0]) - statistics.fmean(own[1]))
        for kept_here, deviations in zip(between, own, strict=True):
            kept_here.append(statistics.variance(deviations))
        wins += statistics.fmean((a > b) + 0.5 * (a == b) for a in first for b in second)
    grown = size / (size - 1)
    interaction = grown * sum(statistics.fmean(one) / len(side) for one, side in zip(between, seen, strict=True))
    of_examples = grown * statistics.pvariance(together)
    kept = math.sqrt(grown * max(0.0, of_examples - interaction) / of_examples) if of_examples else 0.0
    parts = [kept * one for one in together]
    known = [moderated(side, prior, metric not in ERRORS) for side in seen]
    terms = [(value / len(side), freedom) for (value, freedom), side in zip(known, seen, strict=True)]
    variance = sum(value for value, _ in terms)
    freedom = variance**2 / sum(value**2 / more for value, more in terms if value) if variance else 1.0
    low_tail, high_tail = tails(delta, parts, math.sqrt(variance), math.sqrt(interaction), freedom)
    all_failed = prior[2] ** len(seen[1] if delta > 0 else seen[0])
    p = min(1.0, min(1.0, 2 * min(low_tail(0.0), high_tail(0.0))) + all_failed)
    reach = 20 * (math.sqrt(variance) + math.sqrt(interaction)) + 2 * max(map(abs, parts)) + 1e-6
    low, high = (
        float(optimize.brentq(lambda value, tail=tail: tail(value) - 0.025, delta, delta + side * reach))
        for tail, side in ((low_tail, -1), (high_tail, 1))
    )
    return delta, low, high, p, wins / resamples


Tail = Callable[[float], float]


def tails(delta: float, parts: Sequence[float], seen: float, least: float, freedom: float) -> tuple[Tail, Tail]:
    """P(D* ≤ value) and P(D* ≥ value)."""
    farthest = 1.5 * max(abs(one) for one in parts)
    laws = [stats.t(freedom, scale=seen or 1e-12), stats.norm(scale=least or 1e-12)]
    laws = laws if least > seen else laws[:1]
    below, above = np.array([*parts, -farthest]), np.array([*parts, farthest])
    return (
        lambda value: max(float(law.cdf(value - delta - below).mean()) for law in laws),
        lambda value: max(float(law.sf(value - delta - above).mean()) for law in laws),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment in loops: of each, the largest of the smaller ones' p × how many are not smaller."""
    ranked = sorted(range(len(p_values)), key=lambda at: p_values[at])
    steps = [min(1.0, (len(ranked) - step) * p_values[at]) for step, at in enumerate(ranked)]
    return [max(steps[: ranked.index(at) + 1]) for at in range(len(p_values))]


def cell_checks(sweep: Sweep, reported: Document, resamples: int) -> Iterator[Check]:
    """The scores of a cell, and what tuning bought it."""
    cell = sweep.cell(*key_of(reported))
    name, finals, defaults = ".".join(filter(None, key_of(cell))), sweep.finals(cell), sweep.defaults(cell)
    for split in ("dev", "test"):
        told = reported[f"{split}_mean"], reported[f"{split}_std"]
        yield from spread_checks(sweep, cell, finals, split, name, told)
        if defaults:
            told = reported[f"default_{split}_mean"], reported[f"default_{split}_std"]
            yield from spread_checks(sweep, cell, defaults, split, f"{name} default", told)
    tuning = reported.get("tuning")
    if tuning and tuning["low"] is not None:
        figures = {"metric": cell["metric"], **tuning}
        yield from interval_checks(sweep, (cell, cell), (finals, defaults), figures, f"{name} tuning", resamples)


def spread_checks(
    sweep: Sweep, cell: Document, finals: Sequence[Document], split: str, name: str,
    told: tuple[float | None, float | None],
) -> Iterator[Check]:  # fmt: skip
    """Each finalist's score against its predictions, then mean and deviation."""
    metric, scores = cell["metric"], []
    for final in finals:
        recorded = final["dev"] if split == "dev" else (final.get("test") or {}).get(metric)
        lines = sweep.lines(cell, final, split) if recorded is not None else []
        if lines:
            yield Check(f"{name} seed {final['seed']} {split}", recorded, full_score(metric, lines), EXACT)
        scores += [] if recorded is None else [recorded]
    yield Check(f"{name} {split}_mean", told[0], statistics.fmean(scores) if scores else None, EXACT)
    yield Check(f"{name} {split}_std", told[1], statistics.stdev(scores) if len(scores) > 1 else None, EXACT)


def delta_checks(sweep: Sweep, reported: Document, resamples: int) -> Iterator[Check]:
    """A difference between two cells."""
    encoder, task = reported["encoder"], reported["task"]
    pair = [(encoder, reported[side], task, reported.get(f"{side}_variant", "")) for side in "ab"]
    upper, lower = (sweep.cell(*key) for key in pair)
    name = f"Δ {' − '.join('.'.join(filter(None, key)) for key in pair)} {reported['metric']}"
    if reported["low"] is not None:
        finals = sweep.finals(upper), sweep.finals(lower)
        yield from interval_checks(sweep, (upper, lower), finals, reported, name, resamples)


def interval_checks(
    sweep: Sweep, cells: tuple[Document, Document], finals: tuple[list[Document], list[Document]], told: Document,
    name: str, resamples: int,
) -> Iterator[Check]:  # fmt: skip
    """A difference with its interval and p-value."""
    sides = list(zip(cells, finals, strict=True))
    runs = [[sweep.lines(cell, final, told["split"]) for final in own] for cell, own in sides]
    prior = sweep.prior(told["metric"], told["split"])
    delta, low, high, p, better = interval(told["metric"], runs[0], runs[1], resamples, prior)
    near = max(EXACT, NEAR * (high - low))
    figures = {"delta": (delta, EXACT), "low": (low, near), "high": (high, near), "p": (p, 0.01 + 0.25 * p)}
    figures |= {"probability_better": (better, 0.04)} if "probability_better" in told else {}
    for field, (computed, tolerance) in figures.items():
        yield Check(f"{name} {field}", told[field], computed, tolerance)


def holm_checks(deltas: Sequence[Document]) -> Iterator[Check]:
    """The adjusted p-values of a table, from those that it reports."""
    family = [one for one in deltas if one["p"] is not None and one.get("in_family", True)]
    for one, adjusted in zip(family, holm([one["p"] for one in family]), strict=True):
        yield Check(f"Δ {one['task']} {one['a']} − {one['b']} p_holm", one["p_holm"], adjusted, EXACT)


def checks(folder: Path, report: Document, resamples: int) -> list[Check]:
    """All checks of a sweep's report."""
    sweep = Sweep(folder)
    found = [check for cell in report["cells"] for check in cell_checks(sweep, cell, resamples)]
    found += [check for delta in report["deltas"] for check in delta_checks(sweep, delta, resamples)]
    return found + list(holm_checks(report["deltas"]))


def main() -> int:
    """The command line."""
    storage, name = sys.argv[1:3]
    words = ["-m", "meltpoint.launch", "report", name, "--storage", storage, "--format", "json"]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, encoding="utf-8")
    found = checks(Path(storage) / name, json.loads(done.stdout), 2000)
    different = [check for check in found if not check.is_equal]
    for check in different:
        print(f"{check.name}: the report says {check.reported}, computed again: {check.computed}")
    print(f"{len(found) - len(different)} of {len(found)} figures are equal within their tolerance")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
