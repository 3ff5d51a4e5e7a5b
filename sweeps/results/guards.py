"""Guards against wrong conclusions: warnings derived from a sweep's records, one line each, with the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from meltpoint.adapters import modes, settings
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.results.kept_results import Baseline
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import gain, is_lower_better
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some

Kind = Literal["baseline", "failed_runs", "few_steps", "result", "edge", "data"]

FEW_STEPS = 100
"""The threshold for a trained encoder. Zhang et al. 2021 (section 6) and Mosbach et al. 2021 (section 6): below some
hundreds of steps, a fine-tuned encoder is often no better than chance, and more steps fix this."""
EDGE = 0.02
"""The share of a range, at either end, in which a best value counts as being at the edge."""


@dataclass(frozen=True)
class Guard:
    """A warning about one cell.

    Attributes:
        cell: its key.
        kind: the kind of guard.
        text: the warning, without the cell's name.
    """

    cell: CellKey
    kind: Kind
    text: str


def guards(summary: SweepSummary) -> list[Guard]:
    """Every warning of a sweep, cell by cell."""
    return [guard for cell in summary.cells for guard in cell_guards(cell, summary.baseline_of(cell))]


def guard_lines(summary: SweepSummary) -> list[str]:
    """One line per warning, for tables and terminals; a fault of a task's data appears once for all its cells."""
    found = guards(summary)
    data = dict.fromkeys(f"{guard.cell[2]}: {guard.text}" for guard in found if guard.kind == "data")
    return [*data, *(f"{'.'.join(guard.cell)}: {guard.text}" for guard in found if guard.kind != "data")]


def cell_guards(cell: CellSummary, baseline: Baseline | None = None) -> Iterator[Guard]:
    """The warnings of one cell."""
    key = cell.header.key
    yield from (Guard(key, "data", line) for line in cell.header.warnings)
    if cell.best is None:
        return
    yield from (Guard(key, "baseline", line) for line in _against(cell, baseline))
    yield from (Guard(key, "failed_runs", line) for line in _failed_runs(cell, baseline))
    yield from (Guard(key, "few_steps", line) for line in _few_steps(cell.best))
    yield from (Guard(key, "result", line) for line in _result_notes(cell.finals or [cell.best]))
    yield from (Guard(key, "edge", line) for line in _edges(cell.header, cell.best))


def _against(cell: CellSummary, baseline: Baseline | None) -> Iterator[str]:
    if baseline is None or cell.dev is None or baseline.metric != cell.header.metric:
        return
    name, score = baseline.best
    side = "below" if is_lower_better(baseline.metric) else "above"
    if gain(baseline.metric, cell.dev.mean) <= gain(baseline.metric, score):
        yield (
            f"dev {score_text(cell.dev.mean, baseline.metric)} is not {side} {name} "
            f"({score_text(score, baseline.metric)}): the encoder adds nothing here; "
            "check the data, the steps and the trials before you compare this cell"
        )


def _failed_runs(cell: CellSummary, baseline: Baseline | None) -> Iterator[str]:
    """Finals that beat no baseline while others do: failed runs, as defined by Mosbach et al. 2021, section 3."""
    if baseline is None or baseline.metric != cell.header.metric:
        return
    name, score = baseline.worst
    scored = [(final, final.dev) for final in cell.finals if final.dev is not None]
    failed = [(final, dev) for final, dev in scored if gain(baseline.metric, dev) <= gain(baseline.metric, score)]
    if not 0 < len(failed) < len(scored):
        return
    seeds = ", ".join(f"seed {final.seed} has dev {score_text(dev, baseline.metric)}" for final, dev in failed)
    yield (
        f"{len(failed)} of {some(len(scored), 'final')} did not learn ({seeds}; {name} "
        f"{score_text(score, baseline.metric)}): the mean and ± mix two kinds of runs; a lower range of "
        "learning rates or more trials may find a setting with which every seed learns (Mosbach et al. 2021)"
    )


def _few_steps(best: TrialRecord) -> Iterator[str]:
    if best.mode not in modes.names() or not modes.get(best.mode).trains_encoder:
        return
    if all(epoch.encoder_frozen for epoch in best.epochs):  # none, or `top_k` with k = 0
        return
    steps = best.epochs[-1].step - max((epoch.step for epoch in best.epochs if epoch.encoder_frozen), default=0)
    if steps < FEW_STEPS:
        few = some(steps, "step")
        yield f"the best setting tuned the encoder for {few}: raise epochs or trials (Mosbach et al. 2021)"


def _result_notes(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Results that fall short of their mode, for example because the frozen phase was better."""
    noted = [f"seed {record.seed}: {note}" for record in records for note in record.result_notes()]
    if noted:
        yield "; ".join(noted)


def _edges(header: CellHeader, best: TrialRecord) -> Iterator[str]:
    """Best values at an end of a searched numeric range that could be wider."""
    limits = {parameter.name: (parameter.minimum, parameter.maximum) for parameter in settings.all_parameters()}
    for name, entry in header.space_entries().items():
        value, ends = best.setting.get(name), _ends(entry)
        if ends is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        place = _place(float(value), *ends)
        if place <= EDGE or place >= 1 - EDGE:
            side, end = ("bottom", ends[0]) if place <= EDGE else ("top", ends[1])
            if end in limits.get(name, ()):  # a dropout of 0
                continue
            yield f"{name} {value:.3g} is at the {side} of its range ({end:g}): widen it with --set or --space"


def _ends(entry: object) -> tuple[float, float, bool] | None:
    """(lowest, highest, whether logarithmic) of a continuous range; None for any other entry."""
    if not isinstance(entry, Mapping):
        return None
    for kind, is_log in (("uniform", False), ("log_uniform", True)):
        ends: Any = entry.get(kind)
        if isinstance(ends, list) and len(ends) == 2:
            return float(ends[0]), float(ends[1]), is_log
    return None


def _place(value: float, low: float, high: float, is_log: bool) -> float:
    """The relative position of a value in its range, from 0 to 1, on the range's own scale."""
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)
