"""Hand-made sweeps: cells from the scores of their trials and finals, summaries from cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from meltpoint.adapters import settings
from meltpoint.adapters.training.epochs import EpochResult, best_epoch
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import HardwareRecord, TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, State, SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader, SweepFile, write_sweep
from meltpoint.sweeps.search.selection import best_of, finals_of, spread
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tests.tiny_parts import BAD, GOOD, save_tiny_bert

SPACE = """\
parameters:
  learning_rate: {log_uniform: [1.0e-5, 1.0e-4], first: 5.0e-5, source: "Devlin et al. 2018, A.3"}
  dropout: {uniform: [0.0, 0.3]}
  weight_decay: {fixed: 0.01, source: "A.2"}
  epochs: {choice: [2, 3, 4]}
  batch_size: {choice: [32]}
  precision: auto
  slanted_triangular.ratio: {integer: [16, 64], when: {schedule: [slanted_triangular]}}
"""
SETTING = {"learning_rate": 4.25e-5, "dropout": 0.1, "weight_decay": 0.01, "epochs": 3, "batch_size": 32}
HARDWARE = HardwareRecord(device="cpu", name="Test CPU", threads=1, gpu_share=0.0, precision="bf16", host="here")

Scores = Sequence[float | None]
MakeCell = Callable[..., CellSummary]
MakeSweep = Callable[..., SweepSummary]
TrainSweep = Callable[[Path, SweepSpec, dict[str, Any]], Path]


def epoch(number: int, metric: str, dev: float) -> EpochResult:
    return EpochResult(
        epoch=number, phase="train", step=10 * number, train_loss=0.5, dev={metric: dev}, train_seconds=1.0,
        dev_seconds=0.5, learning_rate=5e-5, finished_at=float(number),
    )  # fmt: skip


def record(header: CellHeader, number: int, **fields: Any) -> TrialRecord:
    dev = fields.get("dev", 0.5)
    values: dict[str, Any] = {
        "id": f"{header.mode}.{header.task}.{number}", "number": number, "encoder": header.encoder,
        "mode": header.mode, "task": header.task, "head": header.head, "variant": header.variant,
        "role": "search", "seed": 0, "setting": SETTING,
        "status": "finished", "metric": header.metric, "dev": dev, "best_epoch": 2, "hardware": HARDWARE,
        "epochs": [epoch(place, header.metric, dev or 0.0) for place in (1, 2, 3)],
        "data_fingerprint": header.data_fingerprint, "code_version": "0.1.0+abc",
        "started_at": float(number), "seconds": 60.0,
    }  # fmt: skip
    return TrialRecord(**(values | fields))


@pytest.fixture(scope="session")
def make_cell() -> MakeCell:
    """A cell from dev scores of its search trials and (dev, test) scores of its finals.

    A final's test score is a number, `"hidden"` (scored, no labels), or None (not scored yet). `beside` are other test
    metrics, the same for every final; `columns` names those that have a column of their own.
    """

    def make(
        mode: str = "fine_tuning", task: str = "sst2", *, encoder: str = "minilm", search: Scores = (0.8,),
        finals: Sequence[tuple[float, float | str | None]] = (), failed: Sequence[str] = (), planned: int | None = None,
        running: int = 0, metric: str = "accuracy", notes: tuple[str, ...] = (), input_notes: tuple[str, ...] = (),
        setting: dict[str, Any] | None = None, variant: str = "", head: str = "linear", seeds: int | None = None,
        beside: dict[str, float] | None = None, task_parameters: int | None = None, columns: tuple[str, ...] = (),
    ) -> CellSummary:  # fmt: skip
        header = CellHeader(
            encoder=encoder, mode=mode, task=task, head=head, kind="sentence_classification", metric=metric,
            planned=planned or len(search) + len(failed), space=SPACE, data_fingerprint="d" * 16, train_examples=6920,
            dev_examples=872, notes=notes, variant=variant, seeds=seeds, beside=columns,
        )  # fmt: skip
        common = {"input_notes": list(input_notes), "setting": setting or SETTING, "task_parameters": task_parameters}
        unscored = {"epochs": [], "best_epoch": None}
        tried = [
            record(header, number, dev=dev, **common, **(unscored if dev is None else {}))
            for number, dev in enumerate(search)
        ]
        broken = [
            record(header, 50 + number, dev=None, status="failed", error=error) for number, error in enumerate(failed)
        ]
        more = beside or {}
        tests = [{} if test == "hidden" else None if test is None else {metric: test, **more} for _, test in finals]
        ended = [
            record(header, 100 + seed, role="final", seed=seed, dev=dev, test=test, **common)
            for seed, ((dev, _), test) in enumerate(zip(finals, tests, strict=True))
        ]
        best = best_of(tried)
        kept = finals_of(best, ended)
        counts = {"planned": header.planned, "finished": len(tried), "stopped": 0, "failed": len(broken)}
        counts |= {"running": running, "missing": max(0, header.planned - len(tried) - len(broken) - running)}
        return CellSummary(
            header, counts, best, kept, spread([final.dev for final in kept if final.dev is not None]),
            spread([final.test[metric] for final in kept if final.test]),
            [f"{one.id}: {one.error}" for one in broken], search=[*tried, *broken], records=[*tried, *broken, *ended],
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def make_sweep() -> MakeSweep:
    """A summary of cells, with the specification that follows from them."""

    def make(*cells: CellSummary, state: State = "done", seeds: int = 2, **fields: Any) -> SweepSummary:
        columns = zip(*(cell.header.key[:3] for cell in cells), strict=True)
        encoders, modes, tasks = (tuple(dict.fromkeys(column)) for column in columns)
        values: dict[str, Any] = {"name": "first", "encoders": encoders, "modes": modes, "tasks": tasks, "trials": 4}
        spec = SweepSpec(**(values | {"seeds": seeds} | fields))
        return SweepSummary(spec.name, state, spec, "0.1.0+abc", list(cells))

    return make


def trained(ledger: Ledger, cell: OpenCell, searched: dict[str, Any], seed: int) -> tuple[Order, TrialRecord]:
    """A finalist, trained by the worker itself."""
    name, setting = f"{cell.mode}-final{seed}", settings.complete(searched, cell.mode, cell.head)
    order = Order(
        id=name, number=seed, role="final", encoder=cell.encoder, mode=cell.mode, task=cell.task_name, head=cell.head,
        seed=seed, setting=setting, data=cell.data, data_fingerprint=cell.data_fingerprint, encoder_fingerprint="",
        checkpoint=str(ledger.checkpoint(name)), cpus=1, gpus=0,
    )  # fmt: skip
    events = [event for events in worker.run((order,)) for event in events]
    last = events[-1]
    assert last.outcome is not None
    assert last.outcome.status == "finished", last
    best = best_epoch(last.attempt.epochs, "accuracy")
    assert best is not None
    return order, TrialRecord(
        **order.model_dump(include={"id", "number", "encoder", "mode", "task", "head", "role", "seed", "setting"}),
        status="finished", metric="accuracy", dev=best.dev["accuracy"], best_epoch=best.epoch, test={},
        data_fingerprint=cell.data_fingerprint, code_version="0", started_at=1.0, seconds=1.0, **dict(last.attempt),
    )  # fmt: skip


def header_of(cell: OpenCell, spec: SweepSpec) -> CellHeader:
    return CellHeader(
        encoder=cell.encoder, mode=cell.mode, task=cell.task_name, head=cell.head, kind=cell.task.kind,
        metric="accuracy", planned=spec.seeds, space=cell.space.dump(), data_fingerprint=cell.data_fingerprint,
        train_examples=cell.train_examples, dev_examples=cell.dev_examples,
        also_test=tuple(f"{name}/accuracy" for name in cell.task.also_test),
    )  # fmt: skip


@pytest.fixture(scope="session")
def train_sweep() -> TrainSweep:
    """Trains a specification's finals with one setting and scores them, without Ray: (folder, spec, setting) → folder.

    Each final's setting is a search trial's too, as selection wants it.
    """

    def train(place: Path, spec: SweepSpec, searched: dict[str, Any]) -> Path:
        ledger = Ledger(place / spec.name)
        ledger.create()
        headers = []
        for cell in open_cells(spec):
            for seed in range(spec.seeds):
                order, record = trained(ledger, cell, searched, seed)
                (scored,) = score_finalists([order.as_json()], [record.model_dump_json()], str(ledger.folder))
                assert scored["error"] is None, scored
                record = record.model_copy(update={"test": scored["test"]})
                ledger.write(record)
                search = {"id": f"{cell.mode}-search{seed}", "role": "search", "test": None}
                ledger.write(record.model_copy(update=search))
            headers.append(header_of(cell, spec))
        write_sweep(ledger, SweepFile(spec=spec, code="0", cells=tuple(headers)))
        return place

    return train


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers."""
    place = tmp_path_factory.mktemp("tiny-bert")
    save_tiny_bert(place, [*GOOD, *BAD, "film", "meal", "hotel", "the", "was"])
    return place
