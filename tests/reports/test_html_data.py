"""The page's data: which trials it has, a cell's errors, the examples about which cells disagree, and the curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meltpoint.reports.html.errors import _right_of, disagreements, errors_of
from meltpoint.reports.html.front import LINE_POINTS, MOST_SIMULATED, cost_charts, tuning_charts
from meltpoint.reports.html.page import row_shares
from meltpoint.reports.html.trials import MOST_CURVES, thinned, trial_rows
from meltpoint.reports.statistics.cost import trade_offs
from meltpoint.reports.statistics.tuning_curves import MOST_TRIALS, cell_curve
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import ScoredExamples, predictions_path, read_scored
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.results.sweep_file import read_sweep, write_sweep
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.reports.stored_sweeps import SETTING, MakeCell, MakeSweep, searched, store_sweep


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A sweep with stored predictions of a classification, a labelling and a regression task."""
    return store_sweep(tmp_path_factory.mktemp("stored"), "stored", ("accuracy", "span_f1", "pearson"), (0.6, 0.9))


@pytest.fixture(scope="module")
def stored(ledger: Ledger) -> SweepSummary:
    return summarise(ledger)


def cell_of(summary: SweepSummary, task: str, mode: str = "fine_tuning") -> CellSummary:
    return summary.cell(("minilm", mode, task))


def test_every_trial_is_in_the_table_the_best_first_and_failed_ones_last(make_cell: MakeCell) -> None:
    rows = trial_rows(searched(make_cell(search=(0.5, 0.9, 0.7), failed=("no room",))))
    assert rows.columns["dev"] == [0.9, 0.7, 0.5, None]
    assert rows.columns["number"] == [2, 3, 1, 51]
    assert rows.columns["status"] == ["finished"] * 3 + ["failed"]
    assert rows.columns["error"][3] == "no room"
    assert rows.notes == ()


def test_the_axes_are_the_searched_parameters_alone_logarithmic_where_the_range_is(make_cell: MakeCell) -> None:
    axes = {axis.name: axis for axis in trial_rows(searched(make_cell())).axes}
    assert list(axes) == ["learning_rate", "dropout", "epochs", "schedule", "slanted_triangular.ratio"]
    assert (axes["learning_rate"].log, axes["learning_rate"].low, axes["learning_rate"].high) == (True, 1e-5, 1e-4)
    assert (axes["dropout"].log, axes["epochs"].values) == (False, ("2", "3", "4"))


def test_a_parameter_without_effect_in_a_trial_has_no_value_there(make_cell: MakeCell) -> None:
    slanted = {"setting": {**SETTING, "schedule": "slanted_triangular"}}
    rows = trial_rows(searched(make_cell(search=(0.5, 0.6)), {}, slanted))
    at = [axis.name for axis in rows.axes].index("slanted_triangular.ratio")
    assert rows.columns["settings"][at] == [32, None], "the best trial is the second one"


def test_a_space_of_another_version_is_named_and_its_names_are_kept(make_cell: MakeCell) -> None:
    cell = make_cell()
    header = cell.header.model_copy(update={"space": "parameters:\n  gone: {uniform: [0, 1]}\n"})
    rows = trial_rows(replace(cell, header=header))
    assert [axis.name for axis in rows.axes] == ["gone"]
    assert "does not know the ranges of the search" in rows.notes[0]


@pytest.mark.parametrize(("count", "most"), [(10, 10), (11, 10), (5000, 400), (7, 3), (3, 1)])
def test_thinning_keeps_the_best_and_evenly_others_in_order(count: int, most: int) -> None:
    kept = thinned(range(count), most)
    assert len(kept) == min(count, most)
    assert kept == sorted(set(kept))
    assert kept[: most // 2] == list(range(min(count, most // 2)))
    gaps = np.diff(kept[most // 2 :])
    assert count <= most or not len(gaps) or gaps.max() - gaps.min() <= 1


def test_what_is_thinned_is_said(make_cell: MakeCell) -> None:
    cell = searched(make_cell(search=tuple(np.linspace(0, 1, 200))))
    rows = trial_rows(cell, most_rows=100)
    assert len(rows.columns["id"]) == 100
    assert len(rows.curves) == MOST_CURVES
    assert rows.notes == (
        "The table has 100 of 200 trials: the best 50 by dev, and others evenly by rank. `meltpoint.load_sweep` has "
        "all.",
        "Learning curves are drawn of 60 of 100 trials: the best 30 by dev, and others evenly by rank.",
    )


def test_cells_share_the_rows_of_a_page_in_proportion() -> None:
    assert row_shares([3, 4], most=7) == [3, 4]
    assert row_shares([3000, 1000, 0], most=400) == [300, 100, 1]


def test_learning_curves_are_the_epochs_of_the_trials(make_cell: MakeCell) -> None:
    cell = make_cell(search=(0.5, 0.9))
    curves = dict(trial_rows(cell).curves)
    assert curves[0] == [(1, 0.9), (2, 0.9), (3, 0.9)]


def test_the_confusion_matrix_counts_the_stored_predictions_of_all_seeds(stored: SweepSummary) -> None:
    cell = cell_of(stored, "mrpc")
    found = errors_of(cell, stored.folder)
    assert (found.split, sum(count for row in found.matrix for count, _ in row)) == ("test", 4 * 60)
    assert cell.test is not None
    right = sum(found.matrix[at][at][0] for at in range(len(found.labels)))
    assert right / 240 == pytest.approx(cell.test.mean)
    assert found.notes == ("test, 4 seeds together: 240 predicted examples.",)


def test_many_labels_are_a_list_of_confusions(stored: SweepSummary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meltpoint.reports.html.errors.MOST_LABELS", 2)
    found = errors_of(cell_of(stored, "conll2003"), stored.folder)
    counts = [count for _, _, count in found.pairs]
    assert found.matrix == ()
    assert counts == sorted(counts, reverse=True)
    assert all(gold != predicted for gold, predicted, _ in found.pairs)
    assert "are too many for a matrix" in found.notes[1]


def test_residuals_are_of_the_mean_prediction(stored: SweepSummary) -> None:
    cell = cell_of(stored, "sick_r")
    found = errors_of(cell, stored.folder)
    assert stored.folder is not None
    runs = [
        read_scored(predictions_path(stored.folder, cell_name(*cell.header.key), final, "test"), "pair_regression")
        for final in cell.finals
    ]
    assert len(found.residuals) == 60
    assert found.residuals[7][1] == pytest.approx(np.mean([run.predicted[7] for run in runs]), abs=1e-4)


def test_a_cell_whose_test_is_closed_shows_nothing_of_it(stored: SweepSummary) -> None:
    cell = cell_of(stored, "mrpc")
    closed = replace(cell, test=None, finals=[final.model_copy(update={"test": None}) for final in cell.finals])
    assert errors_of(closed, stored.folder).split == "dev"
    one = replace(cell, test=replace(cell.test, count=3))  # type: ignore[type-var]
    assert errors_of(one, stored.folder).split == "dev", "one seed is not scored on test yet"


def test_a_cell_without_predictions_says_so(make_cell: MakeCell) -> None:
    assert errors_of(make_cell(), None).notes == ("There are no finals yet.",)
    lacking = errors_of(make_cell(finals=[(0.8, 0.8)]), None)
    assert lacking.notes == ("Not shown: the summary was not read from a folder.",)


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    summary = summarise(store_sweep(tmp_path, "damaged", ("accuracy",), (0.6, 0.9), seeds=2))
    (damaged,) = (tmp_path / "damaged" / "predictions").glob("*fine_tuning*seed1.test.jsonl")
    damaged.write_text("{}\n", encoding="utf-8")
    (note,) = errors_of(cell_of(summary, "mrpc"), summary.folder).notes
    assert "line 1: not an example" in note


def test_disputed_examples_are_those_with_the_widest_gap_between_cells(stored: SweepSummary) -> None:
    found = {one.task: one for one in disagreements(stored)}
    shares = []
    for mode in ("feature_extraction", "fine_tuning"):
        cell = cell_of(stored, "mrpc", mode)
        assert stored.folder is not None
        paths = [predictions_path(stored.folder, cell_name(*cell.header.key), one, "dev") for one in cell.finals]
        runs = [read_scored(path, "pair_classification") for path in paths]
        shares.append(np.mean([run.predicted == run.gold for run in runs], axis=0))
    gaps = np.abs(shares[0] - shares[1])
    shown = [gaps[int(example.id)] for example in found["mrpc"].examples]
    assert shown == sorted(gaps, reverse=True)[: len(shown)]
    assert shown
    assert f"{int((gaps > 0).sum())} of 60 dev examples are disputed" in found["mrpc"].notes[0]
    assert set(found) == {"mrpc", "conll2003", "sick_r"}


def demo_sweep(tmp_path: Path, fingerprint: str, ids: list[str], gold: list[str]) -> SweepSummary:
    """Two cells on `demo_sentiment` that disagree about every dev example."""
    ledger = store_sweep(tmp_path, "demo", ("accuracy",), (0.6, 0.9), seeds=1)
    sweep = read_sweep(ledger)
    headers = [
        cell.model_copy(
            update={"task": "demo_sentiment", "kind": "sentence_classification", "data_fingerprint": fingerprint}
        )
        for cell in sweep.cells
    ]
    spec = sweep.spec.model_copy(update={"tasks": ("demo_sentiment",)})
    write_sweep(ledger, sweep.model_copy(update={"spec": spec, "cells": tuple(headers)}))
    for path in (tmp_path / "demo" / "trials").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | {"task": "demo_sentiment", "data_fingerprint": fingerprint}))
    labels = sorted(set(gold))
    for mode, is_right in (("feature_extraction", False), ("fine_tuning", True)):
        lines = []
        for name, label in zip(ids, gold, strict=True):
            guess = label if is_right else next(one for one in labels if one != label)
            shares = {one: float(one == guess) for one in labels}
            lines.append(json.dumps({"id": name, "gold": label, "prediction": guess, "probabilities": shares}) + "\n")
        for split in ("dev", "test"):
            file = tmp_path / "demo" / "predictions" / f"minilm.{mode}.demo_sentiment.seed0.{split}.jsonl"
            file.write_text("".join(lines), encoding="utf-8")
    return summarise(Ledger(tmp_path / "demo"))


def test_a_sentence_without_words_is_right_by_no_share() -> None:
    run = ScoredExamples(
        "sequence_labelling", ("O", "B"), np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([2, 0, 1, 0])
    )
    assert _right_of(run).tolist() == [0.5, 0.0, 1.0, 0.0]


def test_the_texts_of_disputed_examples_are_devs(tmp_path: Path) -> None:
    data = load_training_data(DataSpec("demo_sentiment"))
    ids = [example.id for example in data.dev]
    gold = [data.task.labels[int(example.label)] for example in data.dev]  # type: ignore[arg-type]
    (found,) = disagreements(demo_sweep(tmp_path, data.fingerprint, ids, gold))
    assert [example.text for example in found.examples] == [one.texts[0] for one in data.dev[: len(found.examples)]]
    assert found.examples[0].given[1].startswith(gold[0])
    assert "(1 of 1)" in found.examples[0].given[1]


def test_other_data_than_the_sweeps_gives_no_texts_and_that_is_said(tmp_path: Path) -> None:
    (found,) = disagreements(demo_sweep(tmp_path, "0" * 16, ["a", "b"], ["x", "y"]))
    assert [example.text for example in found.examples] == ["", ""]
    assert "The texts are left out: the task's data has changed since the sweep." in found.notes


def test_the_test_split_is_never_opened_for_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("test was opened")

    monkeypatch.setattr("meltpoint.tasks.core.sources.read_locked_split", refuse)
    data = load_training_data(DataSpec("demo_sentiment"))
    gold = [data.task.labels[int(one.label)] for one in data.dev]  # type: ignore[arg-type]
    (found,) = disagreements(demo_sweep(tmp_path, data.fingerprint, [one.id for one in data.dev], gold))
    assert found.examples[0].text


def randomly(cell: CellSummary) -> CellSummary:
    return searched(cell, *({"suggested_by": "random"} for _ in cell.search))


def test_tuning_curves_and_bands_are_those_of_the_analysis(make_cell: MakeCell, make_sweep: MakeSweep) -> None:
    cell = randomly(make_cell(search=tuple(np.linspace(0.5, 0.9, 20))))
    (chart,), notes = tuning_charts(make_sweep(cell))
    curve = cell_curve(cell).curve
    assert curve is not None
    (line,) = chart.data["lines"]
    shown = curve.at([float(k) for k in np.geomspace(1.0, curve.end, LINE_POINTS)])
    assert [y for _, y in line["points"]] == pytest.approx([100 * one.median for one in shown], abs=1e-3)
    for place, band in enumerate(line["bands"]):
        known = [found for one in shown if (found := one.bands[place]) is not None]
        assert [(low, high) for _, low, high in band] == [
            pytest.approx((100 * low, 100 * high), abs=1e-3) for low, high in known
        ]
    assert any("valid up to" in note for note in notes)


def test_of_too_many_random_trials_the_first_are_drawn_and_the_command_for_more_is_named(
    make_cell: MakeCell, make_sweep: MakeSweep
) -> None:
    scores = tuple(np.random.default_rng(0).random(MOST_SIMULATED + 5).tolist())
    many, first = (randomly(make_cell(search=taken)) for taken in (scores, scores[:MOST_SIMULATED]))
    (chart,), notes = tuning_charts(make_sweep(many))
    assert chart == tuning_charts(make_sweep(first))[0][0]
    assert any(f"the first {MOST_SIMULATED} random trials only, 5 more left out" in note for note in notes)
    assert notes[-1].endswith(f"`meltpoint analyse first tuning_curves` counts up to {MOST_TRIALS} of them.")


def test_score_against_cost_is_that_of_the_table(stored: SweepSummary) -> None:
    charts = cost_charts(stored.cells)
    groups = trade_offs(stored.cells)
    shown = [point["score"] for chart in charts for group in chart.data["groups"] for point in group["points"]]
    assert shown == pytest.approx([100 * point.score for group in groups for point in group.by_run], abs=1e-3)
