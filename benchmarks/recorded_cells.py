"""Recorded cells: many random settings of one encoder, mode and task, each trained to its end.

They are kept in `recordings/`, one file a cell, one JSON line a setting. A cell is recorded by two sweeps with
`--searcher random` on the task files of `write_tasks`. opda's tables of DeBERTa on MNLI (Lourie et al. 2023) are read,
too.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from meltpoint.benchmarks.against_trainer import write_task
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

Floats: TypeAlias = NDArray[np.float64]
Setting: TypeAlias = Mapping[str, Any]

QUARTER = 0.25
"""The share of its own schedule after which a trial may be stopped."""
FEWEST_VALUES = 7
"""A number with fewer values among the recorded settings is a choice."""
CANDIDATES = 10
"""The best settings of each cell from which a portfolio is chosen."""
RECORDED = "_recorded"
"""The end of the name of a task that is written for a recording."""


@dataclass(frozen=True)
class RecordedCell:
    """One encoder, mode and task with random settings, all trained to the end.

    Attributes:
        dev, test: (settings,) the best epoch's dev score and its test score, the higher the better.
        early: (settings,) the best dev score within a quarter of the setting's own schedule.
        epochs: (settings,) the epochs of the schedule; 1 without any.
        work: (settings,) the cost of each, in any unit: the epochs, since times depend on what else the machine does.
    """

    encoder: str
    mode: str
    task: str
    settings: Sequence[Setting]
    dev: Floats
    test: Floats
    early: Floats
    epochs: Floats
    work: Floats

    @property
    def name(self) -> str:
        """`minilm probe sst2`."""
        return f"{self.encoder} {self.mode} {self.task}"

    @property
    def can_stop(self) -> bool:
        """True if every setting has a schedule of at least two epochs, known before it starts."""
        return bool(self.epochs.min() > 1)

    def only(self, name: str, value: str) -> RecordedCell:
        """The cell as if its space had fixed a value; the cell itself if no setting has that value."""
        kept = [at for at, setting in enumerate(self.settings) if setting.get(name) == value]
        columns = {one.name: getattr(self, one.name)[kept] for one in fields(self) if one.type == "Floats"}
        return replace(self, settings=[self.settings[at] for at in kept], **columns) if kept else self

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


def siblings_of(cell: RecordedCell, others: Sequence[RecordedCell]) -> list[RecordedCell]:
    """The same mode on the same task with other encoders, then the same mode and encoder on other tasks."""
    like = [one for one in others if one.mode == cell.mode and one.ranges.keys() == cell.ranges.keys()]
    same_task = [one for one in like if one.task == cell.task]
    return same_task + [one for one in like if one.encoder == cell.encoder and one.task != cell.task]


def best_together(cells: Sequence[RecordedCell], count: int) -> list[Setting]:
    """Settings chosen one after another, so that the best of them has the highest mean rank over the cells.

    The candidates are the best of each cell. A setting has the rank of its nearest neighbour in each cell, from 0 to 1.
    """
    candidates = [one.settings[at] for one in cells for at in np.argsort(-one.dev)[:CANDIDATES]]
    ranks = np.array([
        [(one.dev < one.dev[one.nearest(setting, [])]).mean() for one in cells] for setting in candidates
    ])  # fmt: skip
    chosen: list[Setting] = []
    reached = np.zeros(len(cells))
    for _ in range(min(count, len(candidates))):
        best = int(np.maximum(ranks, reached).mean(axis=1).argmax())
        reached = np.maximum(ranks[best], reached)
        chosen.append(candidates[best])
    return chosen


def of_opda(path: Path) -> RecordedCell:
    """A table of opda's folder `data/deberta`: dev is MNLI matched, test mismatched, the work the number of epochs."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    settings, columns = [], []
    for row in rows:
        names = ("num_train_epochs", "train_batch_size", "learning_rate", "cls_drop_out")
        total, epochs = row["total_model_steps"], row["num_train_epochs"]
        settings.append({**{name: row[name] for name in names}, "warmup": row["warmup_steps"] * epochs / total})
        dev, test = row["learning_curves"]["matched"], dict(row["learning_curves"]["mismatched"])
        step, best = max(dev, key=lambda point: point[1])
        early = max([score for at, score in dev if at <= QUARTER * total + 1] or [dev[0][1]])
        columns.append((best, test[step], early, epochs, epochs))
    encoder = path.name.partition(".")[0]
    return RecordedCell(encoder, "fine_tuning", "mnli", settings, *np.array(columns, dtype=np.float64).T)


def read_cell(path: Path) -> RecordedCell:
    """A file of `recordings/`: `minilm.probe.sst2.jsonl.gz`."""
    encoder, mode, task, *_ = path.name.split(".")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    columns = []
    for row in rows:
        dev = row["dev"]
        planned = len(dev) if len(dev) == row["setting"].get("epochs") else 1
        early = dev[: max(1, math.floor(QUARTER * len(dev)))]
        columns.append((max(dev), row["test"], max(early), planned, planned))
    return RecordedCell(encoder, mode, task, [row["setting"] for row in rows], *np.array(columns, dtype=np.float64).T)


def write_cells(on_dev: Path, on_test: Path, folder: Path) -> list[Path]:
    """Write the cells of a random sweep, with test scores from one of the same settings whose dev split was test.

    Raises:
        ValueError: the two trials of a setting have different numbers of epochs.
    """
    test = {_key(record): record for record in _finished(on_test)}
    cells: dict[str, list[dict[str, Any]]] = {}
    for record in _finished(on_dev):
        if _key(record) not in test:
            continue
        dev, other = _curve(record), _curve(test[_key(record)])
        if len(dev) != len(other):
            raise ValueError(f"{record.id}: {len(dev)} epochs on dev, {len(other)} on test; record without patience.")
        seconds = sum(epoch.train_seconds + epoch.dev_seconds for epoch in record.epochs)  # without other trials' time
        row = {"dev": dev, "test": other[int(np.argmax(dev))], "seconds": round(seconds, 3)}
        name = f"{Path(record.encoder).name}.{record.mode}.{record.task.removesuffix(RECORDED)}"
        cells.setdefault(name, []).append({"setting": dict(record.setting), **row})
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"{name}.jsonl.gz", rows) for name, rows in cells.items()]


def _finished(folder: Path) -> list[TrialRecord]:
    return [one for one in Ledger(folder).records() if one.role == "search" and one.status == "finished"]


def _key(record: TrialRecord) -> str:
    return json.dumps([record.encoder, record.mode, record.task, dict(record.setting)], sort_keys=True)


def _curve(record: TrialRecord) -> list[float]:
    return [round(gain(record.metric, epoch.dev[record.metric]), 5) for epoch in record.epochs]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows without the parameters that are the same in all of them, except the number of epochs."""
    names = {name for row in rows for name in row["setting"]}
    same = {name for name in names if len({json.dumps(row["setting"].get(name)) for row in rows}) == 1} - {"epochs"}
    lines = [
        json.dumps({**row, "setting": {name: value for name, value in row["setting"].items() if name not in same}})
        for row in rows
    ]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    return path


def write_tasks(data: DataSpec, folder: Path) -> list[Path]:
    """Two task files with the same train split; dev is dev in the one and the test split in the other."""
    from meltpoint.tasks.core.locked import open_test

    known, test = load_training_data(data), open_test(data)
    splits = {"dev": known.all_dev, "test": test.examples}
    return [
        write_task(folder / name, known.task, {"train": known.train, "dev": dev}, f"{known.task.name}{RECORDED}")
        for name, dev in splits.items()
    ]
