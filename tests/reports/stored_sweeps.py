"""Hand-made sweeps with stored predictions, and cells whose trials have settings of a known space."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meltpoint.benchmarks.simulated_finals import Finals
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import ScoredExamples, predictions_path
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader, SweepFile, write_sweep
from meltpoint.sweeps.search.selection import best_of
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks import get

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
METRICS = {"accuracy": "mrpc", "span_f1": "conll2003", "pearson": "sick_r", "matthews": "cola"}
"""Metric → a task of the shipped ones that is scored by it."""


def store_sweep(
    storage: Path, name: str, metrics: Sequence[str], levels: Sequence[float], seeds: int = 4, examples: int = 60
) -> Ledger:  # fmt: skip
    """Write a sweep: one cell a mode and metric; its finals' scores are those of simulated predictions."""
    ledger = Ledger(storage / name)
    ledger.create()
    tasks, modes = [METRICS[metric] for metric in metrics], MODES[: len(levels)]
    cells = {(mode, task): _header(mode, task) for task in tasks for mode in modes}
    spec = SweepSpec(name=name, encoders=("minilm",), modes=modes, tasks=tuple(tasks), trials=1, seeds=seeds)
    write_sweep(ledger, SweepFile(spec=spec, code="0", cells=tuple(cells.values())))
    for number, metric in enumerate(metrics):
        found = Finals(metric, examples, seeds, tuple(levels)).draw(np.random.default_rng(number))
        for mode, runs in zip(modes, found, strict=True):
            cell = cells[mode, METRICS[metric]]
            ledger.write(_record(cell, "search", 0, dev=0.5))
            for seed, run in enumerate(runs):
                score = run.score(cell.metric)
                final = _record(cell, "final", seed, dev=score, test={cell.metric: score})
                ledger.write(final)
                for split in ("dev", "test"):
                    _write(predictions_path(ledger.folder, cell_name(*cell.key), final, split), run, cell)
    return ledger


def stored(storage: Path, summary: SweepSummary) -> Ledger:
    """Write a sweep of hand-made cells, with the records of their best trials and finals."""
    ledger = Ledger(storage / summary.name)
    ledger.create()
    for cell in summary.cells:
        for record in [*([cell.best] if cell.best else []), *cell.finals]:
            ledger.write(record)
    cells = tuple(cell.header for cell in summary.cells)
    write_sweep(ledger, SweepFile(spec=summary.spec, code=summary.code, cells=cells))
    return ledger


def _header(mode: str, task: str) -> CellHeader:
    return CellHeader(
        encoder="minilm", mode=mode, task=task, head="linear", kind=get(task).kind, metric=get(task).metric, planned=1,
        space="parameters: {}", data_fingerprint="d" * 16, train_examples=100, dev_examples=60,
    )  # fmt: skip


def _record(cell: CellHeader, role: str, seed: int, **scores: object) -> TrialRecord:
    values = {
        "id": f"{cell.mode}.{cell.task}.{role}{seed}".replace(".", "-"), "number": seed, "encoder": cell.encoder,
        "mode": cell.mode, "task": cell.task, "head": cell.head, "role": role, "seed": seed, "setting": {},
        "status": "finished", "metric": cell.metric, "data_fingerprint": cell.data_fingerprint, "code_version": "0",
        "started_at": float(seed), "seconds": 1.0, **scores,
    }  # fmt: skip
    return TrialRecord.model_validate(values)


def _write(path: object, run: ScoredExamples, cell: CellHeader) -> None:
    """The lines as `worker.finalist_scoring` writes them."""
    assert isinstance(path, Path)
    path.parent.mkdir(exist_ok=True)
    labels = list(get(cell.task).labels) if "classification" in cell.kind else list(run.labels)
    ends = np.cumsum(run.lengths)
    lines = []
    for place, (end, length) in enumerate(zip(ends, run.lengths, strict=True)):
        both = [side[end - length : end].tolist() for side in (run.gold, run.predicted)]
        if labels:
            both = [[labels[one] for one in side] for side in both]
        gold, guessed = both if cell.kind == "sequence_labelling" else [side[0] for side in both]
        line = {"id": str(place), "gold": gold, "prediction": guessed}
        if "classification" in cell.kind:
            line["probabilities"] = {label: float(label == guessed) for label in labels}
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


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
