"""A further test split of a real sweep: scores, stored predictions, intervals; the test split's near-duplicates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from meltpoint.reports.analyses import analyse
from meltpoint.reports.results import results_of
from meltpoint.reports.statistics.cost import cost_rows
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.reports.stored_sweeps import read_csv
from meltpoint.tests.tiny_parts import TASK_YAML

SETTING = {"learning_rate": 2e-3, "epochs": 3, "batch_size": 8, "dropout": 0.0, "max_pieces": 16, "precision": "fp32"}


@pytest.fixture(scope="module")
def ledger(tiny_encoder: str, tiny_task: Path, train_sweep, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Two modes with two seeds; `far` is dev's file, and test nearly repeats a training sentence."""
    place = tmp_path_factory.mktemp("far")
    shutil.copytree(tiny_task.parent, place / "task")
    path = place / "task" / tiny_task.name
    path.write_text(TASK_YAML + "also_test: {far: dev.tsv}\n", encoding="utf-8")
    first = (path.parent / "train.tsv").read_text(encoding="utf-8").splitlines()[1]
    with (path.parent / "test.tsv").open("a", encoding="utf-8") as file:
        file.write(first.replace("the ", "the  ", 1) + "\n")
    spec = SweepSpec(
        name="far", encoders=(tiny_encoder,), modes=("feature_extraction", "fine_tuning"), tasks=(str(path),),
        head="linear", trials=1, seeds=2,
    )  # fmt: skip
    return Ledger(train_sweep(place, spec, SETTING) / "far")


def test_a_further_test_split_has_scores_predictions_and_an_interval_outside_the_adjusted_family(ledger):
    results = results_of(summarise(ledger))
    finals = [final for cell in results.summary.cells for final in cell.finals]
    assert [final.test["far/accuracy"] for final in finals] == [final.dev for final in finals], "it is dev's own file"
    (block,) = results.table.blocks
    assert block.tasks == (("tiny_reviews", "accuracy"), ("tiny_reviews", "far/accuracy"))
    ((own, far),) = [row.entries for row in block.differences]
    assert "[" in own.text
    assert "[" in far.text
    assert [delta.comparison.metric for delta in results.table.deltas if not delta.in_family] == ["far/accuracy"]
    (path, *_) = sorted((ledger.folder / "predictions").glob("*.fine_tuning.*.test.far.jsonl"))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    right = sum(line["gold"] == line["prediction"] for line in lines) / len(lines)
    assert right in {final.test["far/accuracy"] for final in finals if final.mode == "fine_tuning"}


def test_each_score_has_an_interval_in_the_table_of_costs(ledger):
    results = results_of(summarise(ledger))
    heads, *rows = cost_rows(results.summary, results.table.deltas, results.intervals)
    for row, cell in zip(rows, results.summary.cells, strict=True):
        low, high = results.intervals[cell.header.key]
        assert 0.0 <= low < cell.test.mean < high <= 1.0
        assert row[heads.index("score")] == f"{100 * cell.test.mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def test_near_duplicates_of_test_are_listed_once_every_finalist_is_scored_and_the_reading_is_logged(ledger, tmp_path):
    storage = ledger.folder.parent
    analyse("far", ["suspects"], storage, out=tmp_path / "scored", formats=["csv"])
    found = [row for row in read_csv(tmp_path / "scored" / "suspects.csv") if row["given"] == "test"]
    assert any(row["instead"].startswith("train ") and float(row["score"]) == 1.0 for row in found)
    (line,) = [json.loads(line) for line in ledger.test_checks.read_text(encoding="utf-8").splitlines()]
    assert (line["task"], line["found"]) == ("tiny_reviews", "suspects")

    shutil.copytree(ledger.folder, tmp_path / "storage" / "far")
    copy = Ledger(tmp_path / "storage" / "far")
    copy.test_checks.unlink()
    final = next(record for record in copy.records() if record.role == "final")
    copy.write(final.model_copy(update={"test": None}))
    analyse("far", ["suspects"], copy.folder.parent, out=tmp_path / "open", formats=["csv", "md"])
    assert {row["given"] for row in read_csv(tmp_path / "open" / "suspects.csv")} <= {"dev", "good", "bad"}
    said = (tmp_path / "open" / "suspects.md").read_text(encoding="utf-8")
    assert "tiny_reviews: test is read once its finalists are scored on it." in said
    assert not copy.test_checks.exists()
