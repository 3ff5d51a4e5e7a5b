"""Scores of classes, and scores of resamples, against scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from seqeval.metrics import classification_report
from sklearn import metrics as sk

from meltpoint.reports.statistics.example_statistics import SCORERS, scorer
from meltpoint.reports.statistics.finals_scores import class_rows, class_scores, confusion_rows, small_sample_factor
from meltpoint.reports.statistics.hierarchical_bootstrap import counts_of, resampled
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tests.reports.stored_sweeps import as_read

LABELS = ("a", "b", "c")


def drawn(kind, labels, examples=40):
    """Two runs of random labels."""
    gold, *guesses = np.random.default_rng(0).integers(0, len(labels), (3, examples)).astype(np.int32)
    return [ScoredExamples(kind, labels, gold, guess, np.ones(examples, dtype=np.int64)) for guess in guesses]


@pytest.mark.parametrize("kind", ["pair_classification", "ordinal_classification"])
def test_classes_and_matrix_are_the_means_of_scikit_learns(kind):
    runs = drawn(kind, LABELS)
    found = class_scores(runs, "test")
    parts = [sk.precision_recall_fscore_support(run.gold, run.predicted, labels=[0, 1, 2]) for run in runs]
    for place, row in enumerate(found["rows"]):
        wanted = [np.mean([part[which][place] for part in parts]) for which in range(3)]
        assert [row["precision"], row["recall"], row["f1"]] == pytest.approx(wanted)
        assert row["examples"] == parts[0][3][place]
    matrices = [sk.confusion_matrix(run.gold, run.predicted) for run in runs]
    assert found["confusion"] == pytest.approx(np.mean(matrices, axis=0))
    assert np.sum(found["confusion"]) == 40
    shown = confusion_rows(found)
    assert shown[0] == ["gold \\ predicted", "a", "b", "c"]
    assert float(shown[1][1]) == pytest.approx(found["confusion"][0][0])
    assert json.loads(json.dumps(found))["rows"][2]["class"] == "c"
    assert class_rows(found)[0][0] == "a"
    many = class_scores(drawn("sentence_classification", tuple("abcdefghijklm"), examples=80), "dev")
    assert (confusion_rows(many), many["confusion"] is None) == ([], False), "too large to print"


def test_of_several_labels_each_is_a_class_and_there_is_no_matrix():
    draw = np.random.default_rng(1)
    gold, guessed = draw.integers(0, 2, (2, 30, 3)).astype(np.int32)
    run = ScoredExamples("multi_label_classification", LABELS, gold, guessed, np.ones(30, dtype=np.int64))
    found = class_scores([run], "dev")
    wanted = sk.f1_score(gold, guessed, average=None)
    assert [row["f1"] for row in found["rows"]] == pytest.approx(wanted)
    assert [row["examples"] for row in found["rows"]] == gold.sum(axis=0).tolist()
    assert found["confusion"] is None
    assert confusion_rows(found) == []


def test_of_spans_each_type_is_a_class(tmp_path):
    tags = [(["B-PER", "O", "B-LOC"], ["B-PER", "O", "O"]), (["O", "B-PER", "I-PER"], ["O", "B-LOC", "I-PER"])]
    rows = [{"gold": gold, "prediction": own} for gold, own in tags]
    found = class_scores([as_read(tmp_path / "one.jsonl", "sequence_labelling", rows)], "test")
    wanted = classification_report(*map(list, zip(*tags, strict=True)), output_dict=True, zero_division=0)
    assert [row["class"] for row in found["rows"]] == ["LOC", "PER"]
    for row in found["rows"]:
        own = wanted[row["class"]]
        figures = [row[name] for name in ("precision", "recall", "f1", "examples")]
        assert figures == pytest.approx([own[name] for name in ("precision", "recall", "f1-score", "support")])


def test_of_words_each_class_counts_also_one_that_only_some_finals_predict(tmp_path):
    gold = [["NOUN", "VERB"], ["NOUN"]]
    guesses = [[["NOUN", "VERB"], ["VERB"]], [["ADJ", "VERB"], ["NOUN"]]]
    rows = [[{"gold": one, "prediction": own} for one, own in zip(gold, guess, strict=True)] for guess in guesses]
    runs = [as_read(tmp_path / "one.jsonl", "word_tagging", each) for each in rows]
    found = class_scores(runs, "dev")
    assert [row["class"] for row in found["rows"]] == ["ADJ", "NOUN", "VERB"]
    flat = [tag for one in gold for tag in one]
    flats = [[tag for one in guess for tag in one] for guess in guesses]
    labels = ["ADJ", "NOUN", "VERB"]
    wanted = [sk.f1_score(flat, own, labels=labels, average=None, zero_division=0) for own in flats]
    assert [row["f1"] for row in found["rows"]] == pytest.approx(np.mean(wanted, axis=0))
    assert [row["examples"] for row in found["rows"]] == [0, 2, 1]
    assert np.sum(found["confusion"]) == 3
    assert runs[0].score("word_accuracy") == pytest.approx(2 / 3)


def test_stored_predictions_of_several_labels_are_read_as_they_were_written(tmp_path):
    rows = [
        {"gold": ["a", "c"], "prediction": [], "probabilities": {"a": 0.1, "b": 0.2, "c": 0.3}},
        {"gold": [], "prediction": ["b"], "probabilities": {"a": 0.1, "b": 0.7, "c": 0.3}},
    ]
    found = as_read(tmp_path / "one.jsonl", "multi_label_classification", rows)
    assert found.gold.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert found.predicted.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert found.score("subset_accuracy") == 0.0
    for damaged in ({"gold": ["d"]}, {"probabilities": {"a": 0.1, "c": 0.3}}):
        with pytest.raises(ValueError, match="a line's labels are not a, b, c; restore the file"):
            as_read(tmp_path / "one.jsonl", "multi_label_classification", [rows[0], {**rows[1], **damaged}])


IOB = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CLASSES = {"f1": 2, "macro_f1": 4, "matthews": 3, "accuracy": 3}


def runs_of(metric: str, kind: str, draw: np.random.Generator, examples: int, count: int) -> list[ScoredExamples]:
    """Runs on the same examples; few distinct values, so that labels are absent and scores tie."""
    target, lengths = kinds.get(kind), np.ones(examples, dtype=np.int64)
    if target.is_regression:
        gold = draw.integers(0, 4, examples) / 3
        return [
            ScoredExamples(kind, (), gold, draw.integers(0, 6, examples) * 0.1 + 3.0, lengths) for _ in range(count)
        ]
    labels = IOB if target.labels_words else tuple("abcd"[: CLASSES.get(metric, 3)])
    if target.labels_words:
        lengths = draw.integers(1, 5, examples)
    words = int(lengths.sum())
    shape, most = ((words, len(labels)), 2) if target.has_labels else ((words,), len(labels))
    gold = draw.integers(0, most, shape).astype(np.int32)
    found = []
    for _ in range(count):
        guessed = np.where(draw.random(shape) < 0.5, gold, draw.integers(0, most, shape)).astype(np.int32)
        shares = draw.integers(0, 4, (words, len(labels))) / 3 if METRICS[metric].of_probabilities else None
        found.append(ScoredExamples(kind, labels, gold, guessed, lengths, probabilities=shares))
    return found


PARTS = [(f"{name}.{part}", "sequence_labelling") for name, part in
         (("span_f1", "PER"), ("span_precision", "LOC"), ("span_recall", "PER"))]  # fmt: skip
TARGETS = {kinds.get(kind).target: kind for kind in kinds.names()}
"""What is predicted → one kind of it: statistics depend on no more."""
CASES = [(name, TARGETS[target]) for name in METRICS for target in METRICS[name].targets]


def only(run: ScoredExamples, drawn: NDArray[np.int64]) -> ScoredExamples:
    """A run's examples at these indices, in that order; an index may occur more than once."""
    starts = np.cumsum(run.lengths) - run.lengths
    places = np.concatenate([np.arange(starts[at], starts[at] + run.lengths[at]) for at in drawn])
    shares = None if run.probabilities is None else run.probabilities[drawn]
    return replace(
        run, gold=run.gold[places], predicted=run.predicted[places], lengths=run.lengths[drawn], probabilities=shares
    )


@pytest.mark.parametrize(("metric", "kind"), [*CASES, *PARTS])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), examples=st.integers(1, 12))
def test_the_scores_of_resamples_are_the_metric_on_each_resample_written_out(metric, kind, seed, examples):
    draw = np.random.default_rng(seed)
    runs = runs_of(metric, kind, draw, examples, 2)
    drawn = draw.integers(0, examples, (6, examples))
    counts = np.stack([np.bincount(row, minlength=examples) for row in drawn]).astype(float)
    expected = [[only(run, row).score(metric) for run in runs] for row in drawn]
    assert METRICS.keys() == SCORERS.keys()
    assert scorer(metric, runs)(counts) == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize("lengths", [(0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_a_sentence_without_words_counts_for_nothing(lengths):
    gold = np.array([0, 1, 2], dtype=np.int32)
    run = ScoredExamples("word_tagging", tuple("abc"), gold, np.array([0, 0, 2], dtype=np.int32), np.array(lengths))
    assert scorer("word_accuracy", [run])(np.ones((1, 3))) == pytest.approx(2 / 3)


def test_draws_follow_from_the_splits_name_and_are_the_same_for_every_cell_of_a_task():
    first, again, other = (np.concatenate(list(counts_of(30, 50, name))) for name in ("a test", "a test", "b test"))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first.sum(axis=1) == 30).all()
    assert [len(chunk) for chunk in counts_of(300_000, 10, "large")] == [3, 3, 3, 1]
    assert resampled(lambda counts: counts[:, :2], 400_000, 5, "large").shape == (5, 2)


def test_groups_are_drawn_whole_as_a_cluster_bootstrap_written_out_draws_them():
    draw = np.random.default_rng(3)
    right, groups = draw.random(60) < 0.7, np.repeat(np.arange(12), draw.multinomial(48, [1 / 12] * 12) + 1)
    gold = np.ones(60, dtype=np.int32)
    run = ScoredExamples(
        "sentence_classification", ("a", "b"), gold, right.astype(np.int32), np.ones(60, dtype=np.int64)
    )
    found = resampled(scorer("accuracy", [run]), 60, 4000, "a test", groups)[:, 0]
    members = [right[groups == group] for group in range(12)]
    written = [np.concatenate([members[at] for at in draw.integers(12, size=12)]).mean() for _ in range(4000)]
    assert found.mean() == pytest.approx(np.mean(written), abs=0.006)
    assert found.std() == pytest.approx(np.std(written), rel=0.05)
    counts = next(counts_of(60, 10, "a test", groups))
    assert all((counts[:, groups == group] == counts[:, groups == group][:, :1]).all() for group in range(12))
    assert (counts[:, np.unique(groups, return_index=True)[1]].sum(axis=1) == 12).all()


def test_intervals_over_few_groups_are_wide_enough():
    draw, held = np.random.default_rng(0), {3: 0, 10: 0}
    for groups in held:
        for _ in range(1500):
            values = draw.normal(size=groups)
            means = values[draw.integers(0, groups, (400, groups))].mean(axis=1) - values.mean()
            deviation = np.sqrt(groups / (groups - 1)) * means.std() * small_sample_factor(groups)
            held[groups] += abs(values.mean()) < 1.96 * deviation
        assert held[groups] / 1500 == pytest.approx(0.95, abs=0.02)
    assert small_sample_factor(1000) == pytest.approx(1.0, abs=0.002)
