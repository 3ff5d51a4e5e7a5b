"""Table 1 from a sweep's finals: Welch's interval against SciPy, and the advice that follows from it."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from scipy.stats import ttest_ind

from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.core.welch import MeanDifference, average, mean_difference
from meltpoint.reports.analyses.guidelines import ANALYSIS, advice, paper_advice
from meltpoint.sweeps.search.selection import spread

ICE, FIRE = "feature_extraction", "fine_tuning"
LOW, HIGH = [0.80, 0.81, 0.805], [0.85, 0.86, 0.84, 0.852]


def finals(scores, test=True):
    return [(score, score if test else "hidden") for score in scores]


def options(sweep, out: Path, **fields) -> AnalysisOptions:
    return AnalysisOptions(sweep=sweep, ledger=None, out=out, formats=("csv", "md", "tex"), **fields)


def rows(paths: list[Path]) -> list[dict[str, str]]:
    (path,) = [path for path in paths if path.suffix == ".csv"]
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_the_interval_is_scipys_for_unequal_variances():
    difference = mean_difference(spread(HIGH), spread(LOW))
    expected = ttest_ind(HIGH, LOW, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert difference.mean == pytest.approx(sum(HIGH) / 4 - sum(LOW) / 3)
    assert difference.freedom == pytest.approx(expected.df)
    assert difference.interval == pytest.approx((interval.low, interval.high))


def test_the_mean_over_tasks_has_the_error_of_a_mean_of_independent_differences():
    one, other = mean_difference(spread(HIGH), spread(LOW)), mean_difference(spread(LOW), spread(LOW))
    difference = average([one, other])
    assert difference.mean == pytest.approx((one.mean + other.mean) / 2)
    assert difference.error == pytest.approx(math.hypot(one.error, other.error) / 2)
    assert min(one.freedom, other.freedom) <= difference.freedom <= one.freedom + other.freedom
    assert average([one, MeanDifference(0.1, None, None)]).interval is None


def test_seeds_that_agree_to_the_last_digit_leave_no_interval():
    difference = mean_difference(spread([0.8, 0.8]), spread([0.7, 0.7]))
    assert difference.interval == (difference.mean, difference.mean)
    assert advice(difference) == "use 🔥"


@pytest.mark.parametrize(
    ("upper", "lower", "expected"),
    [
        (HIGH, LOW, "use 🔥"),
        (LOW, HIGH, "use ❄"),
        (LOW, LOW, "cannot be told"),
        ([0.9, 0.7], [0.75, 0.76], "cannot be told"),
        ([0.801, 0.802, 0.803], [0.802, 0.801, 0.803], "❄ ≈ 🔥"),
        ([0.8040, 0.8041, 0.8042], [0.8000, 0.8001, 0.8002], "use 🔥 (by under one point)"),
        ([0.9], [0.7, 0.71], "cannot be told"),
    ],
)
def test_the_advice_is_what_the_interval_allows(upper, lower, expected):
    assert advice(mean_difference(spread(upper), spread(lower))) == expected


@pytest.mark.parametrize(
    ("encoder", "kind", "expected"),
    [
        ("bert-base", "pair_regression", "use 🔥"),
        ("elmo:folder", "pair_classification", "use ❄"),
        ("minilm", "pair_classification", "not studied"),
        ("minilm", "sequence_labelling", "❄ ≈ 🔥"),
        ("bert-base", "sentence_classification", "❄ ≈ 🔥"),
    ],
)
def test_the_papers_advice_stands_beside_it(encoder, kind, expected):
    assert paper_advice(encoder, kind) == expected


def test_the_table_has_a_row_a_task_and_one_for_the_kind(make_cell, make_sweep, tmp_path):
    cells = [
        make_cell(mode, task, finals=finals(scores, test))
        for task, test, ice, fire in (("sst2", True, LOW, HIGH), ("cola", False, HIGH, LOW))
        for mode, scores in ((ICE, ice), (FIRE, fire))
    ]
    written = ANALYSIS.run(options(make_sweep(*cells), tmp_path))
    assert [path.name for path in written] == ["guidelines.md", "guidelines.csv", "guidelines.tex"]
    sst2, cola, whole = rows(written)
    expected = ttest_ind(HIGH, LOW, equal_var=False).confidence_interval(0.95)
    assert (sst2["task"], sst2["split"], sst2["seeds"], sst2["advice"]) == ("sst2", "test", "3 and 4", "use 🔥")
    assert (float(sst2["low"]), float(sst2["high"])) == pytest.approx((expected.low, expected.high))
    assert (cola["split"], cola["advice"]) == ("dev", "use ❄")
    assert float(cola["Δ"]) == pytest.approx(-float(sst2["Δ"]))
    assert (whole["task"], whole["split"], whole["advice"]) == ("all of the kind", "", "❄ ≈ 🔥")
    assert float(whole["Δ"]) == pytest.approx(0, abs=1e-12)
    assert "| minilm | sentence classification | sst2 | test | 80.5 |" in (tmp_path / "guidelines.md").read_text(
        encoding="utf-8"
    )


def test_one_seed_is_told_as_too_few(make_cell, make_sweep, tmp_path):
    cells = [make_cell(ICE, finals=finals([0.8])), make_cell(FIRE, finals=finals([0.9, 0.91]))]
    (row,) = rows(ANALYSIS.run(options(make_sweep(*cells), tmp_path)))
    assert (row["advice"], row["low"], row["high"]) == ("cannot be told", "", "")
    assert float(row["Δ"]) == pytest.approx(0.105)


def test_tasks_and_encoders_that_are_named_narrow_it(make_cell, make_sweep, tmp_path):
    cells = [make_cell(mode, task, finals=finals(LOW)) for task in ("sst2", "cola") for mode in (ICE, FIRE)]
    (row,) = rows(ANALYSIS.run(options(make_sweep(*cells), tmp_path, tasks=("cola",))))
    assert row["task"] == "cola"
    with pytest.raises(ValueError, match=r"^Unknown task of sweep first 'col'\. Did you mean cola"):
        ANALYSIS.run(options(make_sweep(*cells), tmp_path, tasks=("col",)))


def test_heads_of_several_sizes_are_set_against_each_other_mode_by_mode(make_cell, make_sweep, tmp_path):
    cells = [
        make_cell(mode, finals=finals(scores), head=head, variant=variant, task_parameters=size)
        for mode, head, variant, size, scores in (
            (ICE, "crf", "crf", 900, LOW), (ICE, "bilstm_crf", "bilstm-crf", 90_000, HIGH),
            (FIRE, "crf", "crf", 900, LOW), (FIRE, "crf", "crf-unfreezing", 900, HIGH),
            (FIRE, "bilstm_crf", "bilstm-crf", 90_000, LOW),
        )
    ]  # fmt: skip
    written = ANALYSIS.run(options(make_sweep(*cells), tmp_path))
    (row,) = rows([path for path in written if path.stem == "guidelines"])
    assert (row["❄"], row["🔥"]) == (row["🔥"], row["❄"]), "each mode's best on dev"
    frozen, tuned = rows([path for path in written if path.stem == "guidelines_heads"])
    assert (frozen["few"], frozen["parameters"], frozen["many"], frozen["parameters of many"]) == (
        "crf", "900", "bilstm_crf", "90000",
    )  # fmt: skip
    assert (frozen["advice"], frozen["P1 says"]) == ("add task parameters", "add many task parameters")
    assert (tuned["advice"], tuned["P1 says"]) == ("add few task parameters", "add minimal task parameters")
    expected = ttest_ind(HIGH, LOW, equal_var=False).confidence_interval(0.95)
    assert (float(frozen["low"]), float(frozen["high"])) == pytest.approx((expected.low, expected.high))
    assert float(tuned["Δ"]) == pytest.approx(-float(frozen["Δ"]))
    assert "90,000" in (tmp_path / "guidelines_heads.md").read_text(encoding="utf-8")


def test_one_size_of_head_gives_no_second_table(make_cell, make_sweep, tmp_path):
    cells = [make_cell(mode, finals=finals(LOW), task_parameters=900) for mode in (ICE, FIRE)]
    assert {path.stem for path in ANALYSIS.run(options(make_sweep(*cells), tmp_path))} == {"guidelines"}


def test_what_cannot_be_compared_is_refused_in_one_line(make_cell, make_sweep, tmp_path):
    alone = make_sweep(make_cell(FIRE, finals=finals(LOW)))
    with pytest.raises(ValueError, match="compares feature_extraction and fine_tuning; sweep 'first' does not"):
        ANALYSIS.run(options(alone, tmp_path))
    unfinished = make_sweep(make_cell(ICE), make_cell(FIRE, finals=finals(LOW)))
    with pytest.raises(ValueError, match=r"Cell 'minilm\.feature_extraction\.sst2' has no finals yet; finish"):
        ANALYSIS.run(options(unfinished, tmp_path))
    with pytest.raises(ValueError, match="name the sweep in place of '-'"):
        ANALYSIS.run(options(None, tmp_path))
    assert list(tmp_path.iterdir()) == []
