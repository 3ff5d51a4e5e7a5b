"""Findings of a sweep, and its overview."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meltpoint.reports.formats import bounds_text, duration, interval_text, p_text, symbol
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import NOT_RUN, NOT_YET, SweepResults, TuningGain, ran_nowhere
from meltpoint.reports.table_values import Delta
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.cost import NOTHING, spread_text
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.scoring import difference_text

NO_DEFAULTS = (
    "The published setting's finals were not run, so the gain from tuning is unknown (by default, they run only if "
    "they are under a tenth of the runs; `--default-finals` requests them)."
)
DEFAULTS_COME = "The published setting's finals have not run yet."

DELTA_HEADS = ("encoder", "task", "Δ", "value", "95 % interval", "adjusted p", "P(A > B)", "conclusion")
DELTA_SIDES = "lllrrrrl"
GAIN_HEADS = ("encoder", "mode", "task", "published setting", "winner − published setting")
GAIN_SIDES = "lllrl"


def advice_lines(recommendations: Sequence[Recommendation]) -> list[str]:
    """A line for each task: the recommendation and its details, after the task's name if there are several."""
    lines = ((one.task, " ".join([one.sentence, *one.details])) for one in recommendations)
    return [f"{task}: {line}" if len(recommendations) > 1 else line for task, line in lines]


def delta_row(delta: Delta) -> list[str]:
    """The cells of a difference under `DELTA_HEADS`."""
    known = delta.comparison
    value = f"{'dev ' if known.split == 'dev' else ''}{difference_text(known.delta, known.metric)}"
    bounds = NOTHING if known.low is None or known.high is None else bounds_text(known.low, known.high, known.metric)
    chance = NOTHING if known.probability_better is None else f"{known.probability_better:.2f}"
    p = NOTHING if known.p_holm is None else p_text(known.p_holm)
    return [delta.encoder, delta.task, delta.title, value, bounds, p, chance, known.words]


def delta_line(delta: Delta) -> str:
    """`minilm sst2, Δ 🔥 − ❄: +8.2 [+6.5, +9.9], adjusted p 0.004, P(A > B) 0.98: fine-tuning is better`."""
    known = delta.comparison
    parts = [difference_text(known.delta, known.metric)]
    if known.low is not None and known.high is not None:
        parts = [interval_text(known.delta, known.low, known.high, known.metric)]
    parts[0] += " on dev" if known.split == "dev" else ""
    parts += [] if known.p_holm is None else [f"adjusted p {p_text(known.p_holm)}"]
    parts += [] if known.probability_better is None else [f"P(A > B) {known.probability_better:.2f}"]
    return f"{delta.encoder} {delta.task}, {delta.title}: {', '.join(parts)}: {known.words}"


def delta_lines(results: SweepResults) -> list[str]:
    """A line for each difference of the table."""
    return [delta_line(delta) for delta in results.family]


def gain_lines(results: SweepResults) -> list[str]:
    """The gains from tuning, a line for each cell; cells with the same text share one."""
    if ran_nowhere(results.gains):
        return [without_defaults(results)] if results.gains else []
    grouped: dict[str, list[str]] = {}
    for gain in results.gains:
        grouped.setdefault(gain.words, []).append(_name(gain))
    return [f"{', '.join(names)}: {words}" for words, names in grouped.items()]


def gain_rows(gains: Sequence[TuningGain]) -> list[list[str]]:
    """The cells under `GAIN_HEADS`."""
    return [[*_words_of(gain), _default_score(gain), gain.words] for gain in gains]


def without_defaults(results: SweepResults) -> str:
    """The sentence shown if no cell has the published setting's finals."""
    return DEFAULTS_COME if results.summary.state == "running" else NO_DEFAULTS


def _default_score(gain: TuningGain) -> str:
    """The published setting's score, or a dash before it has run."""
    cell = gain.cell
    over, prefix = (cell.default_test, "") if cell.default_test else (cell.default_dev, "dev ")
    if over is None or gain.words in (NOT_RUN, NOT_YET):
        return NOTHING
    return prefix + spread_text(over, cell.header.metric)


def _words_of(gain: TuningGain) -> list[str]:
    head = gain.cell.header
    return [head.encoder, f"{symbol(head.mode)} {head.variant}".strip(), head.task]


def _name(gain: TuningGain) -> str:
    return " ".join(_words_of(gain))


@dataclass(frozen=True)
class SweepRow:
    """A sweep in a list.

    Attributes:
        name: its name.
        state: as in `status`; "damaged" if its files cannot be read.
        cells, cells_done: number of cells, and of cells with every finalist scored.
        trials, trials_planned: number of finished search trials, and of planned ones.
        encoders, modes, tasks: of its cells.
        started_at: start of its first trial, in seconds since 1970; None before.
        seconds: of training.
        fault: the reason why it, or some of its records, cannot be read; "" if none.
    """

    name: str
    state: str
    cells: int = 0
    cells_done: int = 0
    trials: int = 0
    trials_planned: int = 0
    encoders: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    started_at: float | None = None
    seconds: float = 0.0
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        """The object in `list sweeps --json`."""
        return asdict(self)

    def as_row(self) -> dict[str, object]:
        """The row of the table."""
        began = "" if self.started_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(self.started_at))
        return {
            "name": self.name, "state": self.state, "cells done": f"{self.cells_done}/{self.cells}",
            "trials": f"{self.trials}/{self.trials_planned}", "began": began,
            "training": duration(self.seconds) if self.seconds else "", "encoders": list(self.encoders),
            "tasks": list(self.tasks), "fault": self.fault,
        }  # fmt: skip


def sweep_rows(storage: StoragePath) -> list[SweepRow]:
    """The sweeps of a storage, the latest to begin first; damaged sweeps and those not begun come last."""
    rows = [_row(storage, path.parent.name) for path in storage.glob("*/sweep.json")]
    return sorted(rows, key=lambda row: (-(row.started_at or 0.0), row.name))


def _row(storage: StoragePath, name: str) -> SweepRow:
    try:
        summary = summarise(Ledger(storage / name), leaves_out=True)
    except ValueError as error:
        return SweepRow(name, "damaged", fault=str(error))
    except OSError as error:  # for example, another user's file
        return SweepRow(name, "damaged", fault=f"{error.strerror or error} ({error.filename or storage / name})")
    return _of(summary)


def _of(summary: SweepSummary) -> SweepRow:
    cells = summary.cells
    heads = [cell.header for cell in cells]
    starts = [record.started_at for cell in cells for record in (*cell.search[:1], *cell.finals[:1])]
    return SweepRow(
        name=summary.name, state=summary.state, cells=len(cells), cells_done=sum(cell.is_done for cell in cells),
        trials=sum(cell.counts["finished"] for cell in cells),
        trials_planned=sum(cell.counts["planned"] for cell in cells),
        encoders=_distinct([head.encoder for head in heads]), modes=_distinct([head.mode for head in heads]),
        tasks=_distinct([head.task for head in heads]), started_at=min(starts, default=None),
        seconds=sum(cell.seconds for cell in cells), fault="; ".join(summary.damaged),
    )  # fmt: skip


def _distinct(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
