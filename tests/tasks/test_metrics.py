"""Metrics equal those of seqeval, scikit-learn and SciPy; scores are shown in the unit of their metric."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from sklearn import metrics as sk

from meltpoint.tasks.core import metrics
from meltpoint.tasks.core.metrics import METRICS, gain
from meltpoint.tasks.core.scoring import difference_text, score, scores_text, value
from meltpoint.tasks.core.task import Task

NOT_FINITE = (float("nan"), float("inf"))
NER = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def task(kind, metric, labels=(), label_range=None):
    return Task("toy", kind, metric, "toy", {}, labels, label_range)


ENTITIES = task("sequence_labelling", "span_f1", NER)
PAIRS = task("pair_classification", "accuracy", ("no", "yes"))
SIMILAR = task("pair_regression", "pearson", label_range=(0.0, 5.0))


tagged = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2)),
    min_size=1,
    max_size=8,
)


@given(tagged)
def test_span_scores_equal_seqeval(sentences):
    gold, predicted = ([list(pair[side]) for pair in sentences] for side in (0, 1))
    names = [[[NER[tag] for tag in tags] for tags in side] for side in (gold, predicted)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns about divisions by 0; both give 0
        wanted = [one(*names) for one in (f1_score, precision_score, recall_score)]
        report = classification_report(*names, output_dict=True, zero_division=0)
    scores = score(ENTITIES, gold, predicted)
    parts = ("f1", "precision", "recall")
    assert [scores[f"span_{part}"] for part in parts] == pytest.approx(wanted, abs=1e-12)
    for kind in ("PER", "LOC"):
        own = report.get(kind, {"f1-score": 0.0, "precision": 0.0, "recall": 0.0})
        found = [value(f"span_{part}.{kind}", ENTITIES, gold, predicted) for part in parts]
        assert found == pytest.approx([own["f1-score"], own["precision"], own["recall"]])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30), st.sampled_from([2, 3, 4]))
def test_classification_equals_scikit_learn(pairs, count):
    gold, predicted = [pair[0] % count for pair in pairs], [pair[1] % count for pair in pairs]
    what = task("pair_classification", "accuracy", tuple("abcd"[:count]))
    wanted = {"accuracy": sk.accuracy_score(gold, predicted)}
    averages = {"macro_f1": "macro", "micro_f1": "micro", "weighted_f1": "weighted"} | (
        {"f1": "binary"} if count == 2 else {}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted |= {
            name: sk.f1_score(gold, predicted, average=average, zero_division=0) for name, average in averages.items()
        }
        wanted["matthews"] = sk.matthews_corrcoef(gold, predicted)
        wanted["balanced_accuracy"] = sk.balanced_accuracy_score(gold, predicted)
    assert {name: value(name, what, gold, predicted) for name in wanted} == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", ["sentence_classification", "pair_classification"])
@pytest.mark.parametrize(
    ("metric", "labels", "expected"),
    [
        ("accuracy", ("no", "yes"), ["accuracy", "f1"]), ("f1", ("no", "yes"), ["f1", "accuracy"]),
        ("matthews", ("no", "yes"), ["matthews", "accuracy", "f1"]),
        ("macro_f1", ("no", "yes"), ["macro_f1", "accuracy", "f1"]),
        ("accuracy", ("a", "b", "c"), ["accuracy", "macro_f1"]),
        ("macro_f1", ("a", "b", "c"), ["macro_f1", "accuracy"]),
    ],
)  # fmt: skip
def test_f1_is_reported_for_every_classification_of_one_class_of_two_or_as_the_mean_of_more(
    kind, metric, labels, expected
):
    assert list(score(task(kind, metric, labels), [0, 1, 1], [0, 1, 0])) == expected


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-9, 9)), min_size=3, max_size=30))
def test_correlations_equal_scipy(pairs):
    gold, predicted = [pair[0] / 4 for pair in pairs], [pair[1] / 3 for pair in pairs]
    scores = score(SIMILAR, gold, predicted)
    assert list(scores) == ["pearson", "spearman"]
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-9)
        assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predicted", "wanted"), [([0.1] * 3, 0.0), *(([0.0, one, 5 * one], 1.0) for one in (1e-200, 1e200))]
)
def test_correlations_bear_constant_tiny_and_huge_predictions_without_a_warning(predicted, wanted):
    scores = score(SIMILAR, [0.0, 1.0, 5.0], predicted)
    assert scores == {"pearson": pytest.approx(wanted), "spearman": pytest.approx(wanted)}


@pytest.mark.parametrize(
    ("what", "gold", "predicted", "match"),
    [
        (PAIRS, [0, 1], [1], "1 prediction for 2 examples"),
        (PAIRS, [], [], "0 predictions for 0 examples"),
        (PAIRS, [0, None], [1, 1], "labels are hidden"),
        (ENTITIES, [(0, 0), (1,)], [[0, 0], [1, 0]], "sentence 1: 2 labels for 1 word"),
        *((SIMILAR, [0.0, 1.0], [1.0, bad], "not a finite number; the training diverged") for bad in NOT_FINITE),
        (task("pair_classification", "roc_auc", ("no", "yes")), [0, 1], [0, 1],
         "roc_auc of toy needs probabilities, but there are none"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(what, gold, predicted, match):
    with pytest.raises(ValueError, match=match):
        score(what, gold, predicted)


@pytest.mark.parametrize("found", NOT_FINITE)
def test_a_metric_that_gives_no_number_is_refused_with_its_name(monkeypatch, found):
    broken = replace(METRICS["accuracy"], compute=lambda task, gold, predicted: found)
    monkeypatch.setitem(metrics.BUILT_IN, "accuracy", broken)
    with pytest.raises(ValueError, match=f"accuracy of toy is {found} on 2 examples; it must be finite"):
        value("accuracy", PAIRS, [0, 1], [0, 1])


# --- metrics by scikit-learn, SciPy and seqeval ---


@given(st.integers(0, 2**31), st.sampled_from([2, 3, 4]))
def test_areas_under_curves_equal_scikit_learn(seed, count):
    draw = np.random.default_rng(seed)
    gold = [*range(count), *draw.integers(0, count, 12).tolist()]  # each label occurs
    shares = draw.dirichlet(np.ones(count), len(gold)).round(1)
    shares /= shares.sum(axis=1, keepdims=True)
    what = task("pair_classification", "accuracy", tuple("abcd"[:count]))
    found = [value(name, what, gold, gold, shares.tolist()) for name in ("roc_auc", "average_precision")]
    if count == 2:
        assert found[0] == pytest.approx(sk.roc_auc_score(gold, shares[:, 1]))
        assert found[1] == pytest.approx(sk.average_precision_score(gold, shares[:, 1]))
    else:
        assert found[0] == pytest.approx(sk.roc_auc_score(gold, shares, multi_class="ovr", average="macro"))
        assert found[1] == pytest.approx(sk.average_precision_score(gold, shares, average="macro"))
    assert value("roc_auc", PAIRS, [1, 1], [1, 1], [[0.2, 0.8], [0.1, 0.9]]) == 0.5, "without two sides"
    assert value("average_precision", PAIRS, [0, 0], [1, 1], [[0.2, 0.8], [0.1, 0.9]]) == 0.0


@given(st.integers(0, 2**31), st.sampled_from([2, 3]))
def test_the_calibration_error_is_the_mean_gap_of_ten_bins(seed, count):
    draw = np.random.default_rng(seed)
    gold, shares = draw.integers(0, count, 40).tolist(), draw.dirichlet(np.ones(count), 40)
    what = task("pair_classification", "accuracy", tuple("abc"[:count]))
    bins = [[row for row in range(40) if low < shares[row].max() * 10 <= low + 1] for low in range(10)]
    gaps = [
        len(rows) * abs(np.mean([shares[row].max() for row in rows])
                        - np.mean([shares[row].argmax() == gold[row] for row in rows]))
        for rows in bins if rows
    ]  # fmt: skip
    assert value("calibration_error", what, gold, gold, shares.tolist()) == pytest.approx(sum(gaps) / 40)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=20))
def test_errors_equal_scikit_learn_and_lower_is_better(pairs):
    gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert value("mse", SIMILAR, gold, predicted) == pytest.approx(sk.mean_squared_error(gold, predicted), abs=1e-12)
    assert value("mae", SIMILAR, gold, predicted) == pytest.approx(sk.mean_absolute_error(gold, predicted), abs=1e-12)
    assert [gain(name, 0.5) for name in ("mse", "mae", "pearson", "no_metric")] == [-0.5, -0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("metric", "mean", "deviation", "text"),
    [
        ("accuracy", 0.8512, 0.0034, "85.1 ± 0.3"), ("pearson", -0.25, None, "−25.0"),
        ("matthews", -0.0004, 0.0, "0.0 ± 0.0"),
        ("mse", 0.0213, 0.0012, "0.021 ± 0.001"), ("mae", 1.5, None, "1.500"), ("mse", 1234.56, 1.0, "1234.6 ± 1.000"),
        ("a metric of another version", 0.5, None, "50.0"),
    ],
)  # fmt: skip
def test_a_mean_over_seeds_is_shown_in_the_unit_of_its_metric(metric, mean, deviation, text):
    assert scores_text(mean, deviation, metric) == text


@pytest.mark.parametrize(
    ("metric", "difference", "text"),
    [
        ("accuracy", 0.012, "+1.2"), ("accuracy", -0.012, "−1.2"), ("accuracy", 0.0001, "0.0"),
        ("mse", 0.012, "+0.012"),
        ("mse", -0.0001, "0.000"), ("mae", -2.0, "−2.000"),
    ],
)  # fmt: skip
def test_a_difference_has_its_sign_unless_it_rounds_to_zero(metric, difference, text):
    assert difference_text(difference, metric) == text
