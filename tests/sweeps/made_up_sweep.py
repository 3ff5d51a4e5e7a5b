"""Sweeps with made-up records, written through the tracker: what the dashboard shows of many cells, without training.

`python -m meltpoint.tests.sweeps.made_up_sweep STORAGE NAME CELLS TRIALS` writes one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from meltpoint.adapters import settings
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.search_spaces import files
from meltpoint.sweeps.driver.cell_endings import cell_endings, cell_figures, place_tags
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import HardwareRecord, Trial, TrialRecord, cell_key, identity
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.results.sweep_file import CellHeader, SweepFile, write_sweep
from meltpoint.sweeps.search.selection import best_of
from meltpoint.sweeps.specification.cells import OpenCell, cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking.tracker import Tracker

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
TASKS = {"sst2": "accuracy", "mrpc": "f1", "cola": "matthews", "stsb": "spearman"}
EPOCHS, SEEDS, CODE = 4, 3, "made up"
BEGAN = 1.75e9


def cells_of(count: int) -> list[Any]:
    """So many cells: three modes on each of four tasks; beyond them, on further tasks."""
    names = [*TASKS, *(f"task_{number:02d}" for number in range(len(TASKS), math.ceil(count / len(MODES))))]
    places = [(mode, name) for name in names for mode in MODES]
    return [_cell(mode, task, TASKS.get(task, "accuracy")) for mode, task in places[:count]]


def _cell(mode: str, task: str, metric: str) -> Any:
    """What the tracker and the results read of an opened cell."""
    allowed = {parameter.name: parameter for parameter in settings.parameters(mode, "linear")}
    space = files.find(mode, "minilm", task, "linear", allowed, every={p.name: p for p in settings.all_parameters()})
    return SimpleNamespace(
        key=cell_key("minilm", mode, task), name=cell_name("minilm", mode, task), encoder="minilm", mode=mode,
        task_name=task, head="linear", variant="", data_fingerprint="0" * 16, documents_fingerprint="",
        encoder_fingerprint="1" * 16, train_examples=3000, dev_examples=500,
        notes=("made up, for the pictures of the documentation",), task=SimpleNamespace(metric=metric), space=space,
    )  # fmt: skip


def _header(cell: Any, trials: int) -> CellHeader:
    return CellHeader(
        encoder=cell.encoder, mode=cell.mode, task=cell.task_name, head=cell.head, kind="sentence_classification",
        metric=cell.task.metric, planned=trials, space=cell.space.dump(), data_fingerprint=cell.data_fingerprint,
        encoder_fingerprint=cell.encoder_fingerprint, train_examples=cell.train_examples,
        dev_examples=cell.dev_examples, seeds=SEEDS, published=dict(cell.space.first()),
    )  # fmt: skip


def _proposals(cell: Any, trials: int, rng: np.random.Generator) -> Iterator[Trial]:
    for number in range(trials):
        setting = dict(cell.space.first() if number == 0 else cell.space.sample(rng))
        name = identity({"cell": cell.name, "number": number, "role": "search"})
        yield OpenCell.trial(cell, name, number, "search", setting, 0, "first" if number == 0 else "tpe")


def _record(cell: Any, proposal: Trial, quality: float, rng: np.random.Generator) -> TrialRecord:
    """A trial whose dev score rises to its quality, with its best epoch last but one."""
    metric = cell.task.metric
    began = BEGAN + 60.0 * proposal.number + rng.uniform(0, 20)
    heights = [quality * (1 - 0.35 * math.exp(-1.1 * number)) for number in range(EPOCHS)]
    heights[-1] = heights[-2] - 0.004
    epochs = [
        EpochResult(
            epoch=number + 1, phase="train", step=94 * (number + 1), train_loss=1.1 * math.exp(-0.6 * number) + 0.05,
            dev={metric: height}, train_seconds=9.0, dev_seconds=1.0, learning_rate=1e-4,
            finished_at=began + 10.0 * (number + 1),
        )
        for number, height in enumerate(heights)
    ]  # fmt: skip
    best = max(epochs, key=lambda epoch: epoch.dev[metric])
    is_final = proposal.role != "search"
    return TrialRecord(
        id=proposal.id, number=proposal.number, encoder=cell.encoder, mode=cell.mode, task=cell.task_name,
        head=cell.head, role=proposal.role, seed=proposal.seed, setting=proposal.setting, status="finished",
        suggested_by=proposal.suggested_by, metric=metric, dev=best.dev[metric], dev_metrics=best.dev,
        best_epoch=best.epoch, epochs=epochs, test={metric: best.dev[metric] - 0.01} if is_final else None,
        data_fingerprint=cell.data_fingerprint, encoder_fingerprint=cell.encoder_fingerprint, code_version=CODE,
        started_at=began, seconds=10.0 * EPOCHS + 2.0, trained_parameters=22_000_000,
        peak_memory_bytes=1_400_000_000, peak_memory_kind="gpu_allocated",
        hardware=HardwareRecord(
            device="cuda:0", name="a GPU", threads=4, gpu_share=0.5, precision="bf16", host="a machine"
        ),
    )  # fmt: skip


def _records_of(cell: Any, trials: int, rng: np.random.Generator) -> Iterator[tuple[Trial, TrialRecord]]:
    """A cell's search trials, and the finals of its best and of its published setting."""
    height = 0.72 + 0.06 * MODES.index(cell.mode) * (1 if cell.task_name != "mrpc" else -0.4) + rng.uniform(0, 0.05)
    found = []
    for proposal in _proposals(cell, trials, rng):
        found.append((proposal, _record(cell, proposal, height + rng.normal(0, 0.015), rng)))
        yield found[-1]
    best = best_of(record for _, record in found)
    assert best is not None
    for role, setting in (("final", best.setting), ("default", dict(cell.space.first()))):
        for seed in range(SEEDS if setting != best.setting or role == "final" else 0):
            name = identity({"cell": cell.name, "seed": seed, "role": role})
            proposal = OpenCell.trial(cell, name, seed, role, dict(setting), seed)  # type: ignore[arg-type]
            lower = 0.0 if role == "final" else 0.02
            yield proposal, _record(cell, proposal, height + 0.01 - lower + rng.normal(0, 0.006), rng)


def write(storage: Path, name: str, cell_count: int, trials: int, uri: str | None = None) -> SweepSummary:
    """Write a sweep's ledger and its runs in MLflow.

    Args:
        uri: an MLflow server; None for the SQLite store in the storage.
    """
    cells = cells_of(cell_count)
    spec = SweepSpec(name=name, encoders=("minilm",), modes=MODES, tasks=tuple(TASKS), trials=trials, seeds=SEEDS)
    ledger = Ledger(storage / name)
    write_sweep(ledger, SweepFile(spec=spec, code=CODE, cells=tuple(_header(cell, trials) for cell in cells)))
    tracker = Tracker(name, uri or default_uri(storage), storage, print)
    tracker.open(cells, spec.model_dump_json())
    tracker.flush()
    rng = np.random.default_rng(0)
    for cell in cells:
        for proposal, record in _records_of(cell, trials, rng):
            ledger.write(record)
            tracker.begin(proposal, CODE, record.started_at)
            for epoch in record.epochs:
                tracker.epoch(proposal.id, epoch)
            tracker.end(record)
        tracker.flush()
    return close(tracker, ledger, cells)


def close(tracker: Tracker, ledger: Ledger, cells: list[Any]) -> SweepSummary:
    """End a sweep whose trials are written."""
    summary = summarise(ledger)
    figures = [(cell.header.key, cell_figures(cell)) for cell in summary.cells]
    endings = cell_endings(summary, {cell.key: cell for cell in cells})
    tracker.close(figures, True, {"report.md": f"# Sweep {summary.name}\n"}, place_tags(summary), endings)
    assert tracker.trouble is None, tracker.trouble
    return summary


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
