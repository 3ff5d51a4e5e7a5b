"""A small whole ledger to mutate, and its readers: `status`, `report`, `export`, `ensemble`, and going on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from meltpoint.sweeps.driver.start import asked_sweep, check_same
from meltpoint.sweeps.ledger import driver_notes, predictions
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.locks import latest
from meltpoint.sweeps.ledger.records import HardwareRecord, Trial, TrialRecord
from meltpoint.sweeps.search.locked_test import opened_trials
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.fuzz.targets import Mutation, Target, folder_bytes, json_lines, json_tree
from meltpoint.tests.sweeps.planning import epoch_of

NAME = "first"


def specification(encoder: str) -> SweepSpec:
    """A sweep of one small cell."""
    return SweepSpec(
        name=NAME, encoders=(encoder,), modes=("feature_extraction",), tasks=("demo_sentiment",), head="linear",
        trials=4, seeds=2, max_train_examples=20, default_finals=True,
    )  # fmt: skip


@cache
def cells_of(encoder: str) -> list[OpenCell]:
    """The open cells of that sweep; opened once a process."""
    return open_cells(specification(encoder))


def record_of(cell: OpenCell, proposal: Trial, dev: float, **changes: object) -> TrialRecord:
    """The record of a trial of one epoch."""
    facts = {
        **dict(Trial.of(proposal)), "head": cell.head, "status": "finished", "metric": cell.metric, "dev": dev,
        "dev_metrics": {"accuracy": dev}, "best_epoch": 1, "epochs": [epoch_of(1, dev)],
        "hardware": HardwareRecord(device="cpu", name="AVX2", threads=1, gpu_share=0, precision="fp32", host="here"),
        "data_fingerprint": cell.data_fingerprint, "encoder_fingerprint": cell.encoder_fingerprint,
        "code_version": code_version(), "started_at": 1.7e9 + proposal.number, "seconds": 3.0,
    }  # fmt: skip
    return TrialRecord.model_validate(facts | changes)


def make(folder: Path, encoder: str) -> None:
    """Write a ledger with every kind of file."""
    spec, cells = specification(encoder), cells_of(encoder)
    ledger = Ledger(folder / NAME)
    with ledger.driving():
        ledger.create()
        ledger.place(ledger.specification, json.dumps(asked_sweep(spec, cells, "on_the_fly").model_dump(mode="json")))
        planner = Planner(spec, cells, [])
        for number in range(4):
            proposal = planner.next()
            assert isinstance(proposal, Trial)
            planner.begin(proposal)
            changes = {"status": "failed", "error": "lost", "cause": "worker"} if number == 3 else {}
            planner.end(record := record_of(cells[0], proposal, 0.5 + number / 10, **changes))
            ledger.write(record)
        _finals(ledger, planner)
    (folder / NAME / "drivers" / "000001.inherited").write_text(json.dumps([r.id for r in ledger.records()]))
    ledger.budgets.write_text('{"time_budget_seconds": 60.0, "spent_at": 1700000000.0}\n')


def _finals(ledger: Ledger, planner: Planner) -> None:
    (progress,) = planner.cells.values()
    progress.cut = True
    first, second = planner.missing_finals(progress)
    cell = progress.cell
    ledger.write(record_of(cell, first, 0.7, test={"accuracy": 0.65}, test_fingerprint="abc"))
    ledger.write(
        record_of(cell, planner.missing_defaults(progress)[0], 0.5, test={"accuracy": 0.6}, test_fingerprint="abc")
    )
    ledger.start(second.model_dump())
    ledger.openings.write_text(json.dumps({"trial": first.id, "opened_at": 1.7e9}) + "\n")
    rows = [
        {"id": str(n), "gold": "bad", "prediction": "good", "probabilities": {"bad": 0.4, "good": 0.6}}
        for n in range(3)
    ]
    place = ledger.folder / "predictions" / f"{progress.cell.name}.seed0.dev.jsonl"
    place.parent.mkdir()
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (ledger.folder / "ensembles").mkdir()
    (ledger.folder / "ensembles" / "0123456789abcdef.json").write_text(json.dumps({
        "id": "0123456789abcdef", "task": "demo_sentiment", "kind": "sentence_classification", "metric": "accuracy",
        "members": [{"sweep": NAME, "encoder": "minilm", "mode": "fine_tuning", "head": "linear", "cell": "a.b.c",
                     "trials": [first.id], "seeds": [0]}],
        "dev": [{"accuracy": 0.7}], "test": [{"accuracy": 0.6}], "data_fingerprint": "abc", "made_at": 1.7e9,
    }))  # fmt: skip


def read_results(folder: Path) -> None:
    """`status`, `status --json`, `report` in every format, `export`."""
    from rich.console import Console

    from meltpoint.reports.report import report
    from meltpoint.reports.status_view import show_status
    from meltpoint.sweeps.results.export import export_cells
    from meltpoint.sweeps.results.summary import summarise
    from meltpoint.tests.reports.stored_sweeps import render

    ledger = Ledger(folder / NAME)
    summary = summarise(ledger)
    json.dumps(summary.as_json())
    show_status(summary, Console(quiet=True))
    render(summary)
    for form in ("md", "html", "csv", "tex"):
        report(summary, form, None)
    export_cells(summary, folder / NAME / "exports")


def going_on(encoder: str) -> object:
    """A reader of a ledger as the same `sweep` command reads it, up to its first trial."""

    def read(folder: Path) -> None:
        spec, cells = specification(encoder), cells_of(encoder)
        ledger = Ledger(folder / NAME)
        driver_notes.inherited(ledger.drivers)
        claim = latest(ledger.drivers)
        if claim is not None:
            claim.is_free(file_lock_is_free=True)
        check_same(ledger, asked_sweep(spec, cells, "on_the_fly"))
        planner = Planner(spec, cells, ledger.records(), opened=opened_trials(ledger))
        ledger.clean_started()
        planner.recall(ledger.unfinished())
        planner.next_together(1)
        for record in planner.counted():
            ledger.drop_checkpoint(record.id)

    return read


def read_predictions(folder: Path) -> None:
    """Predictions, as `ensemble` reads them."""
    (path,) = (folder / NAME / "predictions").glob("*.jsonl")
    predictions.read_scored(path, "sentence_classification").score("accuracy")


def _way(path: str) -> Mutation:
    return json_lines if path.endswith(".jsonl") else json_tree


def ledger_targets(base: Path, encoder: str) -> list[Target]:
    """The files of a sweep.

    Args:
        base: the storage with one sweep.
        encoder: as its specification names it.
    """
    files = {name: data for name, data in folder_bytes(base).items() if not name.endswith((".lock", ".beat"))}
    beat = {"first/drivers/000001.beat": b"released    \n"}
    ways: Mapping[str, Mutation] = {name: _way(name) for name in files}
    guess = {name for name in files if "/predictions/" in name}
    return [
        Target("results", files, read_results, ways, frozenset(guess)),
        Target("going_on", files | beat, going_on(encoder), ways, frozenset(guess)),  # type: ignore[arg-type]
        Target("predictions", {name: files[name] for name in guess}, read_predictions, ways),
    ]
