"""The sweeps of a storage, one row each: state, cells, trials, time; read from the ledgers alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meltpoint.reports.formats import duration
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.storage.files import StoragePath


@dataclass(frozen=True)
class SweepRow:
    """A sweep in a list.

    Attributes:
        name: its name.
        state: as in `status`; "damaged" where its files cannot be read.
        cells, cells_done: how many there are, and how many have every finalist scored.
        trials, trials_planned: search trials that finished, and that are planned.
        encoders, modes, tasks: of its cells.
        started_at: when its first trial began, in seconds since 1970; None before.
        seconds: of training.
        fault: why it cannot be read, or which of its records; "" otherwise.
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
    """The sweeps of a storage, the one that began last first; damaged ones and those that have not begun at the end."""
    rows = [_row(storage, path.parent.name) for path in storage.glob("*/sweep.json")]
    return sorted(rows, key=lambda row: (-(row.started_at or 0.0), row.name))


def _row(storage: StoragePath, name: str) -> SweepRow:
    try:
        summary = summarise(Ledger(storage / name), leaves_out=True)
    except ValueError as error:
        return SweepRow(name, "damaged", fault=str(error))
    except OSError as error:  # another user's, say
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
