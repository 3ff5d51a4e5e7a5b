"""Formats of figures, of reports, and of errors, of which lower is better."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.training.epochs import best_epoch
from meltpoint.reports.formats import booktabs, duration, latex_text, percent, searched_names, setting_text, symbol
from meltpoint.reports.report import report
from meltpoint.reports.results import gain_in_words
from meltpoint.reports.statistics.comparison import Comparison
from meltpoint.reports.statistics.cost import Point, pareto
from meltpoint.sweeps.driver.cell_endings import place_tags
from meltpoint.sweeps.results.guards import _against
from meltpoint.sweeps.results.kept_results import Baseline
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import best_final, best_of, spread
from meltpoint.sweeps.tracking.dashboard import PLACE
from meltpoint.tests.reports.conftest import epoch


def test_a_fraction_is_shown_in_percent_points() -> None:
    assert [*map(percent, (0.8512, 1.0, -0.0004, -0.25, 0.0))] == ["85.1", "100.0", "0.0", "−25.0", "0.0"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"), (45.4, "45 s"), (59.6, "1 min"), (90, "1 min 30 s"), (3599.7, "1 h"), (4800, "1 h 20 min"),
        (7199, "2 h"), (86399, "1 d"), (97200, "1 d 3 h"),
    ],
)  # fmt: skip
def test_a_time_is_told_in_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_setting_is_short_and_shows_what_is_searched_and_active(make_cell: Callable[..., CellSummary]) -> None:
    searched = searched_names(make_cell().header)
    assert searched == ["learning_rate", "dropout", "epochs", "slanted_triangular.ratio"], "more than one value"
    setting: dict[str, Value] = {"learning_rate": 4.251e-5, "epochs": 3, "discriminative_rates": False}
    names = ["learning_rate", "epochs", "gradual_unfreezing", "discriminative_rates"]
    assert setting_text(setting, names) == "learning_rate 4.25e-5, epochs 3, discriminative_rates false"


ICE, FIRE, BOTH = "feature_extraction", "fine_tuning", "stack_and_finetune"


@pytest.fixture
def summary(make_cell, make_sweep) -> SweepSummary:
    cells = [
        make_cell(ICE, "sst2", finals=[(0.8, 0.81), (0.8, 0.83)], head="bcn"),
        make_cell(FIRE, "sst2", finals=[(0.9, 0.91), (0.9, 0.89)]),
        make_cell(BOTH, "sst2", finals=[(0.9, "hidden"), (0.88, "hidden")], notes=("test labels hidden",)),
        make_cell(ICE, "a_task", finals=[(0.7, 0.7), (0.7, 0.7)], notes=("a <b>note</b> & 50 % more",)),
    ]
    return make_sweep(*cells)


def test_the_latex_table_has_a_line_a_row_and_as_many_cells_as_columns(summary):
    text = report(summary, "tex")
    (table,) = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL)
    sides = re.search(r"\\begin\{tabular\}\{(\w+)\}", table).group(1)
    lines = [line for line in table.split("\n") if line.endswith(r"\\")]
    assert sides == "llrr"
    assert len(lines) == 1 + 3 + 3, "heads, modes, differences"
    assert all(len(re.split(r"(?<!\\)&", line)) == len(sides) for line in lines)
    assert table.count(r"\midrule") == 2
    assert r"\textbf{90.0 $\pm$ 1.4}" not in table, "no leader where one cell shows dev"
    assert r"frozen feature\_extraction & bcn" in table
    assert r"frozen + tuned stack\_and\_finetune" in table
    assert r"dev 89.0 $\pm$ 1.4\textsuperscript{" in table
    assert r"a\_task (accuracy)" in table
    assert re.search(r"^% \d: the test labels are hidden; dev is shown$", text, re.MULTILINE)


def test_nothing_is_left_in_latex_that_it_would_read_otherwise():
    every = r"\&%$#_{}~^−–±Δ≈×<>❄🔥↳" + "".join(symbol(mode) for mode in modes.names())
    written = latex_text(every)
    assert written.isascii()
    assert not re.search(r"(?<!\\)[&%#_]", written)
    assert booktabs("l", ["a"], [[["b"]], []], "50 %", "x", ["a\nnote"]).endswith("% a note\n")


TUNED, FROZEN = ("minilm", "fine_tuning", "reviews"), ("minilm", "feature_extraction", "reviews")


def compared(metric: str, delta: float) -> Comparison:
    low, high = sorted((delta / 2, delta * 2))
    return Comparison(TUNED, FROZEN, "test", metric, delta, low=low, high=high, p=0.001, p_holm=0.002)


@pytest.mark.parametrize(("metric", "winner"), [("mse", "fine-tuning"), ("pearson", "feature extraction")])
def test_the_words_of_a_difference_below_0_are_for_the_side_with_the_lower_error(metric, winner):
    assert compared(metric, -0.3).words.startswith(f"{winner} is better than")
    assert not compared(metric, 0.3).words.startswith(f"{winner} is better than")
    assert gain_in_words(compared("mae", -0.3)).startswith("tuning bought −0.300")
    assert gain_in_words(compared("mae", 0.3)).startswith("tuning cost +0.300")


@pytest.mark.parametrize(("metric", "best"), [("mse", 1), ("pearson", 0)])
def test_the_best_epoch_trial_and_final_have_the_lowest_error_and_are_never_nan(metric, best):
    epochs = [epoch(number, metric, score) for number, score in enumerate((0.5, 0.2, 0.2, float("nan")))]
    assert best_epoch(epochs, metric).epoch == best
    common = {"metric": metric, "status": "finished", "epoch_count": 2}
    trials = [SimpleNamespace(dev=dev, number=n, seed=n, id=str(n), **common) for n, dev in enumerate((0.5, 0.2, 0.3))]
    assert best_of(trials).number == best_final(trials).number == best


@pytest.mark.parametrize(("metric", "places"), [("mse", ("2", "1")), ("pearson", ("1", "2"))])
@pytest.mark.parametrize("is_scored", [True, False])
def test_the_first_place_of_a_task_in_mlflow_has_the_lowest_error(metric, places, is_scored):
    cells = [
        SimpleNamespace(
            header=SimpleNamespace(task="reviews", metric=metric, key=("minilm", mode, "reviews", "")),
            best=SimpleNamespace(dev=score), dev=None, default_test=None,
            test=spread([score, score]) if is_scored else None,
        )
        for mode, score in (("fine_tuning", 0.5), ("feature_extraction", 0.2))
    ]  # fmt: skip
    tags = place_tags(SimpleNamespace(cells=cells), recommended=[])
    assert [tags[cell.header.key][PLACE][0] for cell in cells] == list(places)
    starred = place_tags(SimpleNamespace(cells=cells), recommended=[cells[1].header.key])
    assert ["★" in starred[cell.header.key][PLACE] for cell in cells] == [False, True], "the recommended cell's"


def test_the_pareto_set_has_the_lower_errors():
    cheap, good, worse = Point(TUNED, 0.5, 1.0, "mse"), Point(FROZEN, 0.2, 3.0, "mse"), Point(TUNED, 0.4, 4.0, "mse")
    assert pareto([worse, good, cheap]) == [cheap, good]
    by_accuracy = [replace(point, metric="accuracy") for point in (worse, good, cheap)]
    assert pareto(by_accuracy) == [by_accuracy[2]]


def test_the_best_baseline_of_an_error_is_the_lowest_and_a_cell_has_to_be_below_it():
    known = Baseline(
        task="reviews", metric="mse", data_fingerprint="x", scores={"the mean score": 0.5, "linear": 0.3},
        train_examples=9,
    )  # fmt: skip
    assert known.best == ("linear", 0.3)

    def warned(mean: float) -> list[str]:
        cell = SimpleNamespace(dev=SimpleNamespace(mean=mean), header=SimpleNamespace(metric="mse"))
        return list(_against(cell, known))  # type: ignore[arg-type]

    assert warned(0.2) == []
    (line,) = warned(0.4)
    assert line.startswith("dev 0.400 is not below linear (0.300)")
