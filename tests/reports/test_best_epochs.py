"""Best epochs: medians and shares of hand-made trials, recorded gaps, and the gap of a final that was trained."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.reports.analyses import analyse
from meltpoint.reports.analyses.best_epochs import ANALYSIS, cap_of, recorded_gap
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.core.finalists import part_of, spaced
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import CellSummary, summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.reports.conftest import SETTING, epoch, record


def cell_with(cell: CellSummary, *trials: dict[str, Any]) -> CellSummary:
    return replace(cell, search=[record(cell.header, number, **fields) for number, fields in enumerate(trials)])


def epochs(*scores: float, train: dict[int, float] | None = None) -> list[Any]:
    return [
        epoch(number, "accuracy", dev).model_copy(
            update={"train": {"accuracy": train[number]} if train and number in train else {}}
        ) for number, dev in enumerate(scores, 1)
    ]  # fmt: skip


def rows_of(make_sweep: Any, out: Path, *cells: CellSummary) -> list[dict[str, str]]:
    ANALYSIS.run(AnalysisOptions(make_sweep(*cells), Ledger(out / "first"), out, formats=("csv",)))
    with (out / "best_epochs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_medians_and_shares_are_those_of_the_finished_trials(make_cell, make_sweep, tmp_path):
    scheduled = {**SETTING, "schedule": "slanted_triangular"}
    cell = cell_with(
        make_cell(),
        {"epochs": epochs(0.5, 0.6, 0.7), "best_epoch": 3, "dev": 0.7},
        {"epochs": epochs(0.5, 0.9, 0.8), "best_epoch": 2, "dev": 0.9},
        {"epochs": epochs(0.5, 0.6, 0.8), "best_epoch": 3, "dev": 0.8, "setting": scheduled},
        {"epochs": epochs(0.6), "best_epoch": 1, "dev": 0.6, "setting": {**SETTING, "epochs": 10}},
        {"epochs": epochs(0.99), "best_epoch": 1, "dev": 0.99, "status": "stopped"},
    )
    (row,) = rows_of(make_sweep, tmp_path, cell)
    assert (row["trials"], row["count"]) == ("search", "4")
    assert [float(row[name]) for name in ("best epoch", "last epoch", "cap")] == [2.5, 3.0, 3.0]
    assert float(row["best is last"]) == 0.75
    assert float(row["best is last, constant rate"]) == 0.5
    assert float(row["dev"]) == pytest.approx(0.75)
    assert (row["gap recorded"], row["with a gap"]) == ("", "0")


def test_finals_have_a_row_of_their_own(make_cell, make_sweep, tmp_path):
    rows = rows_of(make_sweep, tmp_path, cell_with(make_cell(finals=((0.8, 0.8), (0.9, 0.8))), {}))
    assert [(row["trials"], row["count"]) for row in rows] == [("search", "1"), ("finals", "2")]


def test_the_recorded_gap_is_that_of_the_last_epoch_that_scores_train(make_cell):
    header = make_cell().header
    scored = record(header, 0, epochs=epochs(0.5, 0.6, 0.7, train={1: 0.5, 2: 0.9}))
    assert recorded_gap(scored) == pytest.approx(0.3)
    assert recorded_gap(record(header, 1, epochs=epochs(0.5), best_epoch=1)) is None


def test_the_cap_counts_every_phase(make_cell):
    header = make_cell("stack_and_finetune").header
    setting = {**SETTING, "stack_and_finetune.stack_epochs": 4, "stack_and_finetune.stack_learning_rate": 1e-3}
    assert cap_of(record(header, 0, setting=setting)) == 7


@given(st.integers(0, 500), st.integers(1, 50))
def test_spaced_places_are_distinct_in_order_and_as_many_as_asked_for(count: int, most: int):
    places = spaced(count, most)
    assert len(places) == min(count, most)
    assert places == sorted(set(places))
    assert all(0 <= place < count for place in places)


def test_a_part_of_a_split_keeps_every_window_of_its_examples():
    rows = [Row(example, offset, (1, example, offset), (), (0,), (0,)) for example in range(4) for offset in (0, 1)]
    part = part_of(EncodedSplit(rows, 4, word_counts=[2, 2, 2, 2]), [1, 3])
    assert [(row.example, row.pieces[1:]) for row in part.rows] == [(0, (1, 0)), (0, (1, 1)), (1, (3, 0)), (1, (3, 1))]
    assert (part.examples, part.word_counts) == (2, [2, 2])


@pytest.fixture(scope="module")
def trained(tiny_bert: Path, train_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was trained on eight sentences until it knows them."""
    spec = SweepSpec(
        name="known", encoders=(f"hf:{tiny_bert}",), modes=("fine_tuning",), tasks=("demo_sentiment",), trials=1,
        seeds=2, max_train_examples=24,
    )  # fmt: skip
    setting = {"learning_rate": 5e-3, "epochs": 3, "batch_size": 8, "dropout": 0.0, "max_pieces": 16}
    return train_sweep(tmp_path_factory.mktemp("storage"), spec, setting)


def gap_rows(out: Path) -> list[dict[str, str]]:
    with (out / "best_epochs_gap.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_gap_is_of_the_kept_finals_weights(trained: Path, tmp_path: Path):
    from meltpoint.sweeps.results.export import order_of
    from meltpoint.sweeps.worker.finalist_scoring import restore

    analyse("known", ["best_epochs"], trained, out=tmp_path, formats=["csv"])
    (row,) = gap_rows(tmp_path)
    ledger = Ledger(trained / "known")
    summary = summarise(ledger)
    kept = summary.cells[0].kept
    assert kept is not None
    trainer = restore([order_of(summary.spec, kept, ledger)])
    (train,) = trainer.evaluate(trainer.data.train, trainer.data.train_examples)
    assert (int(row["seed"]), int(row["examples"])) == (kept.seed, 24)
    assert float(row["train"]) == train.metrics["accuracy"]
    assert float(row["dev"]) == kept.dev
    assert float(row["gap"]) == pytest.approx(train.metrics["accuracy"] - kept.dev)


def test_a_final_without_weights_is_named_and_the_epochs_are_there_all_the_same(make_cell, make_sweep, tmp_path):
    summary = make_sweep(cell_with(make_cell(finals=((0.8, 0.8),)), {}))
    ledger = Ledger(tmp_path / "first")
    ledger.create()
    ANALYSIS.run(AnalysisOptions(summary, ledger, tmp_path, formats=("csv", "md")))
    assert gap_rows(tmp_path) == []
    assert "minilm.fine_tuning.sst2 has no gap: Cell" in (tmp_path / "best_epochs_gap.md").read_text(encoding="utf-8")
    assert (tmp_path / "best_epochs.csv").exists()
