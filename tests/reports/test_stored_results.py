"""Reports on a folder with stored predictions: their figures are those recomputed from the files alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.guidelines import ANALYSIS
from meltpoint.reports.report import report
from meltpoint.reports.results import results_of
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import spread

MakeCell = Callable[..., CellSummary]
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")
RATES = {"feature_extraction": 0.60, "fine_tuning": 0.88, "stack_and_finetune": 0.88}
DEFAULT_RATES = {"feature_extraction": 0.45, "fine_tuning": 0.88, "stack_and_finetune": 0.88}
EXAMPLES, SEEDS = 200, 6
LABELS = ("bad", "good")


def write_predictions(path: Path, right: np.ndarray) -> None:
    lines = []
    for place, is_right in enumerate(right):
        gold = LABELS[place % 2]
        guess = gold if is_right else LABELS[1 - place % 2]
        shares = {label: float(label == guess) for label in LABELS}
        lines.append(json.dumps({"id": str(place), "gold": gold, "prediction": guess, "probabilities": shares}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def share_right(path: Path) -> float:
    """Accuracy, from the lines of a file alone."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(line["gold"] == line["prediction"] for line in lines) / len(lines)


def stored_cell(folder: Path, mode: str, make_cell: MakeCell) -> CellSummary:
    """A cell with the predictions of its finals, and of its published setting's; those of `stack…` never ran."""
    cell = make_cell(mode, finals=[(0.8, 0.8)] * SEEDS)

    def finals(role: str, rate: float, learning_rate: float) -> list[TrialRecord]:
        made = []
        for final in cell.finals:
            draw = np.random.default_rng([final.seed, MODES.index(mode), role == "default"])
            right = draw.random(EXAMPLES) < rate
            own = ".default" if role == "default" else ""
            for split in ("dev", "test"):
                name = f"minilm.{mode}.sst2{own}.seed{final.seed}.{split}.jsonl"
                write_predictions(folder / "predictions" / name, right)
            score = {"accuracy": float(right.mean())}
            setting = final.setting | {"learning_rate": learning_rate}
            fields = {"id": f"{mode}.{role}.{final.seed}", "role": role, "test": score, "setting": setting}
            made.append(final.model_copy(update=fields | {"dev": score["accuracy"], "dev_metrics": score}))
        return made

    def over(records: list[TrialRecord]) -> Any:
        return spread([one.test["accuracy"] for one in records if one.test])

    won = finals("final", RATES[mode], 1e-4)
    default = [] if mode == MODES[2] else finals("default", DEFAULT_RATES[mode], 1e-3)
    return replace(
        cell, finals=won, dev=over(won), test=over(won), default_finals=default, default_dev=over(default),
        default_test=over(default),
    )  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path, make_cell: MakeCell, make_sweep: Callable[..., SweepSummary]) -> SweepSummary:
    """Three modes with six seeds: 🔥 far above ❄, ❄🔥 as good as 🔥; tuning helped ❄ alone."""
    folder = tmp_path / "first"
    (folder / "predictions").mkdir(parents=True)
    cells = [stored_cell(folder, mode, make_cell) for mode in MODES]
    return replace(make_sweep(*cells, seeds=SEEDS), folder=folder)


def mean_of(folder: Path, name: str) -> float:
    """The mean test accuracy over the files of a cell's seeds."""
    return float(np.mean([share_right(path) for path in (folder / "predictions").glob(f"{name}.seed*.test.jsonl")]))


def test_every_difference_and_gain_is_that_of_the_files(stored: SweepSummary) -> None:
    assert isinstance(stored.folder, Path)
    document = json.loads(report(stored, "json"))
    means = {mode: mean_of(stored.folder, f"minilm.{mode}.sst2") for mode in MODES}
    defaults = {mode: mean_of(stored.folder, f"minilm.{mode}.sst2.default") for mode in MODES[:2]}
    shown = [(one["a"], one["b"]) for one in document["deltas"] if one["in_family"]]
    assert shown == [(MODES[1], MODES[0]), (MODES[2], MODES[0]), (MODES[2], MODES[1])]
    for one in document["deltas"]:
        assert one["delta"] == pytest.approx(means[one["a"]] - means[one["b"]])
        assert one["low"] < one["delta"] < one["high"]
    for cell in document["cells"][:2]:
        assert cell["test_mean"] == pytest.approx(means[cell["mode"]])
        assert cell["tuning"]["delta"] == pytest.approx(means[cell["mode"]] - defaults[cell["mode"]])
        assert cell["tuning"]["low"] < cell["tuning"]["delta"] < cell["tuning"]["high"]


def test_conclusions_follow_the_predictions(stored: SweepSummary) -> None:
    results = results_of(stored)
    ice, fire, both = results.gains
    assert ice.words.startswith("tuning bought +")
    assert fire.words.startswith("tuning not shown to help: ")
    assert both.words == "the published setting was not run"
    first, _, second = results.family
    assert first.comparison.words == "fine-tuning is better than feature extraction"
    assert second.comparison.words.startswith(f"cannot be told with {SEEDS} seeds and {EXAMPLES} examples")
    assert not [line for line in results.legend if "six or more" in line]


def test_guidelines_advise_what_the_table_concludes(stored: SweepSummary, tmp_path: Path) -> None:
    ANALYSIS.run(AnalysisOptions(sweep=stored, ledger=None, out=tmp_path, formats=("csv",)))
    (row,) = csv.DictReader(io.StringIO((tmp_path / "guidelines.csv").read_text(encoding="utf-8")))
    delta = results_of(stored).family[0].comparison
    assert row["advice"] == "use 🔥"
    assert (float(row["Δ"]), float(row["low"]), float(row["high"])) == (delta.delta, delta.low, delta.high)


def test_predictions_that_were_lost_are_named_and_the_table_falls_back(stored: SweepSummary) -> None:
    assert isinstance(stored.folder, Path)
    (stored.folder / "predictions" / "minilm.fine_tuning.sst2.seed3.test.jsonl").unlink()
    text = report(stored, "md")
    assert "no interval: no stored predictions of seed 3; a ± is the standard error over seeds" in text
    assert "cannot be told: no stored predictions of seed 3" in text
