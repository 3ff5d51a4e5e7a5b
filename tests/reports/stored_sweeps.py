"""Hand-made sweeps with stored predictions, and readers of report files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meltpoint.reports.report import files_of
from meltpoint.reports.results import results_of
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import ScoredExamples, predictions_path, read_scored
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader, SweepFile, write_sweep
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks import get

MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
METRICS = {"accuracy": "mrpc", "span_f1": "conll2003", "pearson": "sick_r", "matthews": "cola"}
"""Metric → a task of the shipped ones that is scored by it."""


def read_csv(source: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file or text."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    return list(csv.DictReader(io.StringIO(text, newline="")))


def render(summary: SweepSummary, beside: str | None = None) -> dict[str, str]:
    """The report files: name → text; `beside` is the paper's table to compare with."""
    return files_of(results_of(summary, beside))


def as_read(path: Path, kind: Any, rows: Sequence[Mapping[str, Any]]) -> ScoredExamples:
    """Predictions, written to a file and read again."""
    path.write_text("".join(json.dumps({"id": str(n), **row}) + "\n" for n, row in enumerate(rows)), encoding="utf-8")
    return read_scored(path, kind)


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
        draw = np.random.default_rng(number)
        gold = GOLD[get(METRICS[metric]).of_kind.target](draw, examples)
        ease = draw.normal(scale=0.1, size=len(gold))
        for mode, level in zip(modes, levels, strict=True):
            runs = [_guessed(metric, gold, draw, level, ease) for _ in range(seeds)]
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


TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
SLOT = np.array([[4, 4, 4], [0, 2, 4], [1, 3, 4]], dtype=np.int32)
"""The three words of a sentence: no span, a place, a person."""
GOLD = {
    "label": lambda draw, count: (draw.random(count) < 0.35).astype(np.int32),
    "tags": lambda draw, count: draw.integers(0, 3, count),
    "score": lambda draw, count: draw.normal(size=count),
}
"""What is predicted → gold answers; for tags, the kind of each sentence."""


def _guessed(metric: str, gold: Any, draw: np.random.Generator, level: float, ease: Any) -> ScoredExamples:
    """A run that is right on about a share `level` of the examples, mostly of the easy ones, or so correlated."""
    ones, right = np.ones(len(gold), dtype=np.int64), draw.random(len(gold)) < level + ease
    if metric == "span_f1":
        guessed = np.where(right, gold, (gold + draw.integers(1, 3, len(gold))) % 3)
        return ScoredExamples("sequence_labelling", TAGS, SLOT[gold].ravel(), SLOT[guessed].ravel(), 3 * ones)
    if metric == "pearson":
        noise = (8 * ease + draw.normal(size=len(gold))) * np.sqrt(1 / level**2 - 1)
        return ScoredExamples("pair_regression", (), gold, gold + noise, ones)
    return ScoredExamples("pair_classification", ("no", "yes"), gold, np.where(right, gold, 1 - gold), ones)


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
