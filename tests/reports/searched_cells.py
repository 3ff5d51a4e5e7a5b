"""Hand-made cells whose trials have settings of a space that this version knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import best_of

MakeCell = Callable[..., CellSummary]
MakeSweep = Callable[..., SweepSummary]
"""The fixtures of `conftest`."""

SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-5, 1.0e-4], first: 5.0e-5}
  dropout: {uniform: [0.0, 0.3]}
  weight_decay: {fixed: 0.01}
  epochs: {choice: [2, 4, 3]}
  schedule: {choice: [constant, slanted_triangular]}
  slanted_triangular.ratio: {uniform: [16, 64], when: {schedule: [slanted_triangular]}}
"""
SETTING = {
    "learning_rate": 4.25e-5, "dropout": 0.1, "weight_decay": 0.01, "epochs": 3, "schedule": "constant",
    "slanted_triangular.ratio": 32.0,
}  # fmt: skip


def searched(cell: CellSummary, *changes: Mapping[str, Any]) -> CellSummary:
    """The cell with `SPACE`, and with changed fields of its search trials in their order; `SETTING` without changes."""
    updates = [{"setting": SETTING, **(changes[at] if at < len(changes) else {})} for at in range(len(cell.search))]
    trials = [record.model_copy(update=update) for record, update in zip(cell.search, updates, strict=True)]
    header = cell.header.model_copy(update={"space": SPACE})
    return replace(cell, header=header, search=trials, best=best_of(trials))
