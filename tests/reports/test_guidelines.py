"""Table 1 from a sweep's finals: the advice that its comparisons allow, and the agreement of tasks against SciPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from meltpoint.reports.analyses import guidelines
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.guidelines import (
    EITHER,
    FREEZE,
    TUNE,
    kind_advice,
    over_tasks,
    paper_advice,
    run,
    verdict,
)
from meltpoint.reports.statistics.comparison import Comparison
from meltpoint.tests.fixed_comparer import FixedComparer
from meltpoint.tests.reports.stored_sweeps import read_csv

ICE, FIRE = "feature_extraction", "fine_tuning"
LOW, HIGH = [0.80, 0.81, 0.805], [0.85, 0.86, 0.84, 0.852]
HALF = 0.012


@pytest.fixture
def _fixed_intervals(monkeypatch):
    """Intervals of 1.2 points to each side, for sweeps without stored predictions."""
    monkeypatch.setattr(guidelines, "Comparer", lambda folder, cells: FixedComparer(HALF))


def finals(scores, test=True):
    return [(score, score if test else "hidden") for score in scores]


def options(sweep, out: Path, **fields) -> AnalysisOptions:
    return AnalysisOptions(sweep=sweep, ledger=None, out=out, formats=("csv", "md", "tex"), **fields)


def rows(paths: list[Path]) -> list[dict[str, str]]:
    (path,) = [path for path in paths if path.suffix == ".csv"]
    return read_csv(path)


def compared(delta: float, low: float, high: float, p_holm: float, **fields) -> Comparison:
    keys = (("minilm", FIRE, "sst2"), ("minilm", ICE, "sst2"))
    sizes = {"seeds": 5, "examples": 408} | fields
    return Comparison(*keys, "test", "accuracy", delta, low, high, p=p_holm, p_holm=p_holm, **sizes)


@pytest.mark.parametrize(
    ("metric", "delta", "low", "high", "p_holm", "expected"),
    [
        ("accuracy", 0.05, 0.03, 0.07, 0.001, "use 🔥"), ("accuracy", -0.05, -0.07, -0.03, 0.001, "use ❄"),
        ("accuracy", 0.02, 0.002, 0.04, 0.08, "undecided"),  # the interval excludes 0, the adjusted p does not
        ("accuracy", 0.02, -0.02, 0.06, 0.6, "undecided"), ("accuracy", 0.001, -0.004, 0.006, 0.9, "❄ ≈ 🔥"),
        ("accuracy", 0.004, 0.002, 0.006, 0.01, "use 🔥"),
        # of an error lower is better, and nothing is said in points
        ("mse", -0.2, -0.3, -0.1, 0.001, "use 🔥"), ("mse", 0.2, 0.1, 0.3, 0.001, "use ❄"),
        ("mse", -0.004, -0.006, -0.002, 0.01, "use 🔥"), ("mse", 0.001, -0.004, 0.006, 0.9, "undecided"),
    ],
)  # fmt: skip
def test_the_advice_is_what_the_comparison_allows(metric, delta, low, high, p_holm, expected):
    found = replace(compared(delta, low, high, p_holm), metric=metric)
    assert verdict(found, TUNE, FREEZE, EITHER) == expected


@pytest.mark.parametrize(
    ("deltas", "advice"),
    [
        ((0.10, 0.11, 0.12), "use 🔥"), ((-0.10, -0.11, -0.12), "use ❄"), ((0.01, 0.30), "undecided"),
        ((0.001, -0.001, 0.0), "❄ ≈ 🔥"), ((0.1, 0.1), "use 🔥"),
        ((-0.1, -0.1, 0.0, -0.2, -0.3, -0.05, -0.01), "use ❄"),
    ],
)  # fmt: skip
def test_the_interval_over_tasks_is_scipys_and_gives_the_advice_for_their_kind(deltas, advice):
    mean, low, high = over_tasks(deltas)
    if len(set(deltas)) > 1:
        expected = ttest_1samp(deltas, 0).confidence_interval(0.95)
        assert (mean, low, high) == pytest.approx((sum(deltas) / len(deltas), expected.low, expected.high))
    assert kind_advice(low, high) == advice


@pytest.mark.parametrize(
    ("encoder", "kind", "expected"),
    [
        ("bert-base", "pair_regression", "use 🔥"), ("elmo:folder", "pair_classification", "use ❄"),
        ("minilm", "pair_classification", "not studied"), ("minilm", "sequence_labelling", "❄ ≈ 🔥"),
        ("bert-base", "sentence_classification", "❄ ≈ 🔥"),
    ],
)  # fmt: skip
def test_the_papers_advice_stands_beside_it(encoder, kind, expected):
    assert paper_advice(encoder, kind) == expected


@pytest.mark.usefixtures("_fixed_intervals")
def test_the_table_has_a_row_a_task_and_one_for_the_kind(make_cell, make_sweep, tmp_path):
    cells = [
        make_cell(mode, task, finals=finals(scores, test))
        for task, test, ice, fire in (("sst2", True, LOW, HIGH), ("cola", False, HIGH, LOW))
        for mode, scores in ((ICE, ice), (FIRE, fire))
    ]
    written = run(options(make_sweep(*cells), tmp_path))
    assert [path.name for path in written] == ["guidelines.md", "guidelines.csv", "guidelines.tex"]
    sst2, cola, whole = rows(written)
    assert (sst2["task"], sst2["split"], sst2["seeds"], sst2["advice"]) == ("sst2", "test", "3 and 4", "use 🔥")
    delta = sum(HIGH) / 4 - sum(LOW) / 3
    assert (float(sst2["low"]), float(sst2["high"])) == pytest.approx((delta - HALF, delta + HALF))
    assert float(sst2["adjusted p"]) == pytest.approx(0.002), "Holm over the two tasks"
    assert (cola["split"], cola["advice"]) == ("dev", "use ❄")
    assert float(cola["Δ"]) == pytest.approx(-float(sst2["Δ"]))
    assert (whole["task"], whole["split"], whole["advice"]) == ("all of the kind", "", "undecided")
    assert whole["in words"] == "🔥 is ahead on 1 of 2 tasks"
    assert float(whole["Δ"]) == pytest.approx(0, abs=1e-12)
    expected = ttest_1samp([delta, -delta], 0).confidence_interval(0.95)
    assert (float(whole["low"]), float(whole["high"])) == pytest.approx((expected.low, expected.high))
    assert "| minilm | sentence classification | sst2 | test | 80.5 |" in (tmp_path / "guidelines.md").read_text(
        encoding="utf-8"
    )


def test_tasks_and_encoders_that_are_named_narrow_it(make_cell, make_sweep, tmp_path):
    cells = [make_cell(mode, task, finals=finals(LOW)) for task in ("sst2", "cola") for mode in (ICE, FIRE)]
    (row,) = rows(run(options(make_sweep(*cells), tmp_path, tasks=("cola",))))
    assert row["task"] == "cola"
    assert {path.stem for path in tmp_path.iterdir()} == {"guidelines"}, "heads of one size have no table"
    with pytest.raises(ValueError, match=r"^Unknown task of sweep first 'col'\. Did you mean cola"):
        run(options(make_sweep(*cells), tmp_path, tasks=("col",)))


@pytest.mark.usefixtures("_fixed_intervals")
def test_only_cells_of_the_largest_size_are_compared_and_single_modes_are_left_out(make_cell, make_sweep, tmp_path):
    def sized(cell, count):
        return replace(cell, header=cell.header.model_copy(update={"train_examples": count}))

    cells = [
        sized(make_cell(mode, finals=finals(scores), variant=variant), count)
        for mode, scores, count, variant in (
            (ICE, HIGH, 256, "n256"), (ICE, LOW, 6920, "all"), (FIRE, LOW, 256, "n256"), (FIRE, HIGH, 6920, "all"),
        )
    ]  # fmt: skip
    written = run(options(make_sweep(*cells, make_cell(ICE, "cola", finals=finals(LOW))), tmp_path))
    (row,) = rows(written)
    assert float(row["Δ"]) == pytest.approx(sum(HIGH) / 4 - sum(LOW) / 3), "❄ of all examples, though 256 are better"
    text = (tmp_path / "guidelines.md").read_text(encoding="utf-8")
    assert "Left out, without one of the two modes: minilm on cola." in text


@pytest.mark.usefixtures("_fixed_intervals")
def test_heads_of_several_sizes_are_set_against_each_other_mode_by_mode(make_cell, make_sweep, tmp_path):
    cells = [
        make_cell(mode, finals=finals(scores), head=head, variant=variant, task_parameters=size)
        for mode, head, variant, size, scores in (
            (ICE, "crf", "crf", 900, LOW), (ICE, "bilstm_crf", "bilstm-crf", 90_000, HIGH),
            (FIRE, "crf", "crf", 900, LOW), (FIRE, "crf", "crf-unfreezing", 900, HIGH),
            (FIRE, "bilstm_crf", "bilstm-crf", 90_000, LOW),
        )
    ]  # fmt: skip
    written = run(options(make_sweep(*cells), tmp_path))
    (row,) = rows([path for path in written if path.stem == "guidelines"])
    assert (row["❄"], row["🔥"]) == (row["🔥"], row["❄"]), "each mode's best on dev"
    frozen, tuned = rows([path for path in written if path.stem == "guidelines_heads"])
    assert (frozen["few"], frozen["parameters"], frozen["many"], frozen["parameters of many"]) == (
        "crf", "900", "bilstm_crf", "90000",
    )  # fmt: skip
    assert (frozen["advice"], frozen["P1 says"]) == ("add task parameters", "add many task parameters")
    assert (tuned["advice"], tuned["P1 says"]) == ("add few task parameters", "add minimal task parameters")
    delta = sum(HIGH) / 4 - sum(LOW) / 3
    assert (float(frozen["low"]), float(frozen["high"])) == pytest.approx((delta - HALF, delta + HALF))
    assert float(tuned["Δ"]) == pytest.approx(-float(frozen["Δ"]))
    assert "90,000" in (tmp_path / "guidelines_heads.md").read_text(encoding="utf-8")


def test_what_cannot_be_compared_is_refused_in_one_line(make_cell, make_sweep, tmp_path):
    alone = make_sweep(make_cell(FIRE, finals=finals(LOW)))
    with pytest.raises(ValueError, match="compares feature_extraction and fine_tuning; sweep 'first' does not"):
        run(options(alone, tmp_path))
    unfinished = make_sweep(make_cell(ICE), make_cell(FIRE, finals=finals(LOW)))
    with pytest.raises(ValueError, match=r"Cell 'minilm\.feature_extraction\.sst2' has no finals yet; finish"):
        run(options(unfinished, tmp_path))
    with pytest.raises(ValueError, match="name the sweep in place of '-'"):
        run(options(None, tmp_path))
    assert list(tmp_path.iterdir()) == []
