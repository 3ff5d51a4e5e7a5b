"""Baselines of a task without an encoder: majority or mean, and a linear model on TF-IDF, tuned on dev; never on test.

They are fitted with scikit-learn in seconds, to at most `MOST_EXAMPLES` training examples, and stored in the sweep's
folder as `baselines/TASK.json`.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.kept_results import Baseline, read_baselines
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.cells import data_spec, word_of
from meltpoint.tasks.core.metrics import Prediction, gain
from meltpoint.tasks.core.scoring import Probabilities, value
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Example, Task, TrainingData

MOST_EXAMPLES = 20_000
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Inverse regularisation strengths (C; 1 / alpha of ridge regression) to try on dev."""
CONSTANTS = {
    "score": "the mean score",
    "label": "the most frequent class",
    "grade": "the most frequent class",
    "labels": "the labels that most examples have",
}
"""Target of a kind → the constant prediction for every example."""
LEXICON = "the most frequent tag of each word"


def baseline_of(data: TrainingData) -> Baseline:
    """Fit the baselines of a task's kind to its training split, and score them on all of dev, as finals are."""
    began, task, dev = time.monotonic(), data.task, data.all_dev
    train = data.train[:: -(-len(data.train) // MOST_EXAMPLES)]
    names, chosen = _labelling(train, dev, task), None
    if not task.of_kind.labels_words:
        constant = CONSTANTS[task.of_kind.target]
        linear, chosen = _linear(train, dev, task)
        names = {constant: _constant(train, dev, task), "a linear model on TF-IDF": linear}
    return Baseline(
        task=task.name, metric=task.metric, data_fingerprint=data.fingerprint, scores=names,
        train_examples=len(train), chosen=chosen, seconds=time.monotonic() - began,
    )  # fmt: skip


def _scored(
    task: Task, examples: Sequence[Example], predicted: Sequence[Prediction], probabilities: Probabilities = ()
) -> float:
    return value(task.metric, task, [example.label for example in examples], predicted, probabilities)


def _constant(train: Sequence[Example], dev: Sequence[Example], task: Task) -> float:
    labels: list[Any] = [example.label for example in train]
    if task.of_kind.is_regression:
        return _scored(task, dev, [float(np.mean(labels))] * len(dev))
    if task.of_kind.has_labels:
        shares = np.mean(labels, axis=0)
        return _scored(task, dev, [(shares >= 0.5).astype(int).tolist()] * len(dev), [shares.tolist()] * len(dev))
    usual = Counter(labels).most_common(1)[0][0]
    shares = np.bincount(labels, minlength=len(task.labels)) / len(labels)
    return _scored(task, dev, [usual] * len(dev), [shares.tolist()] * len(dev))


def _labelling(train: Sequence[Example], dev: Sequence[Example], task: Task) -> dict[str, float]:
    """Score each word's most frequent tag in train; a word not in train gets the most frequent tag overall."""
    if not task.of_kind.labels_words:
        return {}
    tags: dict[str, Counter[int]] = defaultdict(Counter)
    for example in train:
        assert isinstance(example.label, tuple)
        for word, tag in zip(example.words, example.label, strict=True):
            tags[word][tag] += 1
    usual = sum(tags.values(), Counter[int]()).most_common(1)[0][0]
    lexicon = {word: counts.most_common(1)[0][0] for word, counts in tags.items()}
    return {LEXICON: _scored(task, dev, [[lexicon.get(word, usual) for word in example.words] for example in dev])}


def _linear(train: Sequence[Example], dev: Sequence[Example], task: Task) -> tuple[float, float]:
    """The best dev score of a linear model, and its strength."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=1, token_pattern=r"(?u)\b\w+\b|[^\w\s]")
    vectors.fit([text for example in train for text in example.texts])
    features = [_features(split, vectors.transform) for split in (train, dev)]
    labels: list[Any] = [example.label for example in train]
    rows, dev_rows = features
    found = [(_fitted(task, strength, rows, dev_rows, labels, dev), strength) for strength in STRENGTHS]
    return max(found, key=lambda one: gain(task.metric, one[0]))


def _features(examples: Sequence[Example], transform: Callable[[list[str]], Any]) -> Any:
    """TF-IDF of a text; for a pair, [u; v; |u − v|; u ∗ v], as in the GLUE baselines. (examples, features), sparse."""
    from scipy.sparse import hstack

    sides = [transform([example.texts[side] for example in examples]) for side in range(len(examples[0].texts))]
    if len(sides) == 1:
        return sides[0]
    first, second = sides
    overlap = first.multiply(second)
    return hstack([first, second, abs(first - second), overlap, overlap.sum(axis=1)]).tocsr()


def _fitted(task: Task, strength: float, train: Any, dev: Any, labels: list[Any], examples: Sequence[Example]) -> float:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if task.of_kind.is_regression:
        ridge = Ridge(alpha=1 / strength, solver="lsqr").fit(train, labels)
        return _scored(task, examples, ridge.predict(dev).tolist())
    model = LogisticRegression(C=strength, max_iter=200)
    if task.of_kind.has_labels:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about labels that all or no training examples have: they stay constant
            several = OneVsRestClassifier(model).fit(train, np.array(labels))
        shares = several.predict_proba(dev)
        return _scored(task, examples, (shares >= 0.5).astype(int).tolist(), shares.tolist())
    if len(set(labels)) < 2:
        return _constant([Example("", label=labels[0])], examples, task)
    model.fit(train, labels)
    shares = np.zeros((len(examples), len(task.labels)))
    shares[:, model.classes_] = model.predict_proba(dev)
    return _scored(task, examples, model.predict(dev).tolist(), shares.tolist())


def settle_baselines(ledger: Ledger, summary: SweepSummary) -> dict[str, Baseline]:
    """The baselines of every task with finals; missing or outdated ones are computed and stored."""
    found = dict(read_baselines(ledger))
    of_task = {cell.header.task: cell.header.data_fingerprint for cell in summary.cells if cell.finals}
    for task, fingerprint in of_task.items():
        known = found.get(task)
        if known is not None and known.data_fingerprint == fingerprint:
            continue
        data = load_training_data(data_spec(summary.spec, word_of(summary.spec, task)))
        found[task] = baseline_of(data)
        ledger.place(ledger.folder / "baselines" / f"{task}.json", found[task].model_dump_json(indent=1) + "\n")
    return found
