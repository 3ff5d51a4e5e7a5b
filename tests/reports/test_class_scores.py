"""Scores of classes and confusion matrices: those of scikit-learn and seqeval, from stored predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from seqeval.metrics import classification_report
from sklearn import metrics as sk

from meltpoint.reports.statistics.finals_scores import class_document, class_rows, class_scores, confusion_rows
from meltpoint.sweeps.ledger.predictions import ScoredExamples, read_scored

LABELS = ("a", "b", "c")


def drawn(kind, labels, count=2, examples=40, seed=0):
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, len(labels), examples).astype(np.int32)
    ones = np.ones(examples, dtype=np.int64)
    return [
        ScoredExamples(kind, labels, gold, draw.integers(0, len(labels), examples).astype(np.int32), ones)
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["pair_classification", "ordinal_classification"])
def test_classes_and_matrix_are_the_means_of_scikit_learns(kind):
    runs = drawn(kind, LABELS)
    found = class_scores(runs, "test")
    parts = [sk.precision_recall_fscore_support(run.gold, run.predicted, labels=[0, 1, 2]) for run in runs]
    for place, row in enumerate(found.rows):
        wanted = [np.mean([part[which][place] for part in parts]) for which in range(3)]
        assert [row.precision, row.recall, row.f1] == pytest.approx(wanted)
        assert row.examples == parts[0][3][place]
    matrices = [sk.confusion_matrix(run.gold, run.predicted) for run in runs]
    assert found.confusion == pytest.approx(np.mean(matrices, axis=0))
    assert found.confusion.sum() == 40
    shown = confusion_rows(found)
    assert shown[0] == ["gold \\ predicted", "a", "b", "c"]
    assert float(shown[1][1]) == pytest.approx(found.confusion[0, 0])
    assert json.loads(json.dumps(class_document(found)))["rows"][2]["class"] == "c"
    assert class_rows(found)[0][0] == "a"


def test_of_several_labels_each_is_a_class_and_there_is_no_matrix():
    draw = np.random.default_rng(1)
    gold, guessed = draw.integers(0, 2, (2, 30, 3)).astype(np.int32)
    run = ScoredExamples("multi_label_classification", LABELS, gold, guessed, np.ones(30, dtype=np.int64))
    found = class_scores([run], "dev")
    wanted = sk.f1_score(gold, guessed, average=None)
    assert [row.f1 for row in found.rows] == pytest.approx(wanted)
    assert [row.examples for row in found.rows] == gold.sum(axis=0).tolist()
    assert found.confusion is None
    assert confusion_rows(found) == []


def test_of_spans_each_type_is_a_class(tmp_path):
    tags = [(["B-PER", "O", "B-LOC"], ["B-PER", "O", "O"]), (["O", "B-PER", "I-PER"], ["O", "B-LOC", "I-PER"])]
    path = tmp_path / "predictions.jsonl"
    lines = [json.dumps({"id": str(n), "gold": gold, "prediction": own}) for n, (gold, own) in enumerate(tags)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = class_scores([read_scored(path, "sequence_labelling")], "test")
    wanted = classification_report(*map(list, zip(*tags, strict=True)), output_dict=True, zero_division=0)
    assert found.labels == ("LOC", "PER")
    for row in found.rows:
        own = wanted[row.name]
        assert (row.precision, row.recall, row.f1) == pytest.approx((own["precision"], own["recall"], own["f1-score"]))
        assert row.examples == own["support"]


def test_of_words_each_class_counts_also_one_that_only_some_finals_predict(tmp_path):
    gold = [["NOUN", "VERB"], ["NOUN"]]
    guesses = [[["NOUN", "VERB"], ["VERB"]], [["ADJ", "VERB"], ["NOUN"]]]
    runs = []
    for number, guess in enumerate(guesses):
        path = tmp_path / f"{number}.jsonl"
        lines = [json.dumps({"id": "x", "gold": one, "prediction": own}) for one, own in zip(gold, guess, strict=True)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        runs.append(read_scored(path, "word_tagging"))
    found = class_scores(runs, "dev")
    assert found.labels == ("ADJ", "NOUN", "VERB")
    flat = [tag for one in gold for tag in one]
    flats = [[tag for one in guess for tag in one] for guess in guesses]
    wanted = [sk.f1_score(flat, own, labels=found.labels, average=None, zero_division=0) for own in flats]
    assert [row.f1 for row in found.rows] == pytest.approx(np.mean(wanted, axis=0))
    assert [row.examples for row in found.rows] == [0, 2, 1]
    assert found.confusion.sum() == 3
    assert runs[0].score("word_accuracy") == pytest.approx(2 / 3)


def test_a_matrix_of_many_classes_is_not_printed():
    found = class_scores(drawn("sentence_classification", tuple("abcdefghijklm"), examples=80), "dev")
    assert confusion_rows(found) == []
    assert class_document(found)["confusion"] is not None


def test_stored_predictions_of_several_labels_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "predictions.jsonl"
    rows = [
        {"id": "1", "gold": ["a", "c"], "prediction": [], "probabilities": {"a": 0.1, "b": 0.2, "c": 0.3}},
        {"id": "2", "gold": [], "prediction": ["b"], "probabilities": {"a": 0.1, "b": 0.7, "c": 0.3}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    found = read_scored(path, "multi_label_classification")
    assert found.gold.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert found.predicted.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert found.score("subset_accuracy") == 0.0
    rows[1]["gold"] = ["d"]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a label that is not one of a, b, c; restore the file"):
        read_scored(path, "multi_label_classification")
