"""Suspects in a task's data: labels that a probe contradicts, and texts of dev that nearly occur in train.

Labels are ranked as in confident learning (Northcutt, Jiang & Chuang 2021, "normalized margin"): by the probability of
the given label less that of the likeliest other one, from probes that did not see the example. Near-duplicates are
found by MinHash over sets of character 5-grams (Broder 1997), and their Jaccard similarity is then computed exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.adapters import encoders
from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Value, figures
from meltpoint.reports.analyses.core.states import States, load_inputs, split_states
from meltpoint.tasks.core.task import Example, TrainingData

NAME = "suspects"
MOST = 100
"""Rows of each kind and task, the most suspect first."""
FOLDS = 5
C = 0.01
"""Inverse strength of the probes' penalty: strong, since an overfitted probe is sure of wrong labels, too."""
GRAM, PERMUTATIONS, CANDIDATES, ALIKE = 5, 256, 0.6, 0.8
"""Characters of a gram, and of MinHash: its permutations, and the similarity of candidates; least similarity shown."""
TEXT = 80

FAR = 2.5
"""Standard deviations from its prediction above which a score is suspect."""

COLUMNS = (
    Column("task"), Column("encoder"), Column("suspect"), Column("example"), Column("given"), Column("instead"),
    figures("score", ".2f"), Column("text"),
)  # fmt: skip
METHOD = (
    f"label: train's examples by the probability of the given label less that of the likeliest other one, from probes "
    f"fitted without the example ({FOLDS} folds, logistic regression on mean states of the layer that predicts best); "
    f"of scores, minus the distance to ridge regression in standard deviations, from {FAR} on. At most {MOST} of each "
    "task and encoder. A class with one example has no probe.",
    f"near-duplicate: a dev example whose text is a train example's ('instead'), up to some characters: the share of "
    f"common 5-grams of characters is at least {ALIKE}. The test split is not read.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """List the suspects of every task of the given encoders.

    Raises:
        ValueError: see `states.load_inputs`.
    """
    rows: list[tuple[Value, ...]] = []
    inputs, notes = load_inputs(options)
    for encoder_name, data in inputs:
        options.tell(f"{data.task.name}, {encoder_name}: reading states")
        encoder = encoders.load(encoders.resolve(options.encoder_word(encoder_name), data.task.kind))
        states = split_states(encoder, data.task, data.train)
        rows += _label_rows(data, encoder_name, states)
        rows += _near_rows(data)
    table = AnalysisTable(NAME, "Suspect examples", COLUMNS, tuple(dict.fromkeys(rows)), (*METHOD, *notes))
    return write_table(table, options)


def _label_rows(data: TrainingData, encoder: str, states: States) -> Iterator[tuple[Value, ...]]:
    labels = np.array([example.label for example in data.train])
    names = data.task.labels
    if data.task.of_kind.target == "score":
        margins, found = residuals(states, labels.astype(np.float64))
        given, instead = ([f"{value:g}" for value in labels], [f"{value:.2f}" for value in found])
    else:
        margins, best = label_margins(states, labels)
        given, instead = ([names[int(label)] for label in values] for values in (labels, best))
    for index in np.argsort(margins, kind="stable")[:MOST]:
        if margins[index] < (-FAR if data.task.of_kind.target == "score" else 0):
            example = data.train[index]
            yield (
                data.task.name, encoder, "label", example.id, given[index], instead[index], float(margins[index]),
                _shown(example),
            )  # fmt: skip


def label_margins(states: States, labels: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Each example's out-of-fold margin, and the likeliest other label.

    Args:
        states: (layers, examples, dim).
        labels: ids; the only example of a label has a margin of 0.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(labels)
    margins, instead = np.zeros(len(labels)), labels.copy()
    (kept,) = np.nonzero(counts[labels] > 1)
    if len(np.unique(labels[kept])) < 2:
        return margins, instead
    states, labels = states[:, kept], labels[kept]
    classes = np.unique(labels)
    place = np.searchsorted(classes, labels)
    folds = StratifiedKFold(min(FOLDS, int(np.bincount(place).max())), shuffle=True, random_state=0)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer examples than folds; a minimum at infinity
        layers = [cross_val_predict(model, layer, labels, cv=folds, method="predict_proba") for layer in states]
    shares = max(layers, key=lambda found: float(np.log(found[np.arange(len(labels)), place] + 1e-12).mean()))
    own = shares[np.arange(len(labels)), place]
    others = shares.copy()
    others[np.arange(len(labels)), place] = -1.0
    best = others.argmax(1)
    margins[kept], instead[kept] = own - others[np.arange(len(labels)), best], classes[best]
    return margins, instead


def residuals(states: States, scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minus each score's out-of-fold distance from ridge regression, in standard deviations, and the prediction."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = KFold(min(FOLDS, len(scores)), shuffle=True, random_state=0)
    model = make_pipeline(StandardScaler(), Ridge(alpha=1 / C))
    layers = [cross_val_predict(model, layer, scores, cv=folds) for layer in states]
    found = min(layers, key=lambda one: float(np.abs(one - scores).mean()))
    distance = np.abs(found - scores)
    return -distance / max(float((found - scores).std()), 1e-12), found


def _near_rows(data: TrainingData) -> Iterator[tuple[Value, ...]]:
    train, dev = ([" ".join((*e.texts, *e.words)) for e in split] for split in (data.train, data.all_dev))
    pairs = sorted(near_duplicates(train, dev), key=lambda pair: -pair[2])[:MOST]
    for first, second, alike in pairs:
        example, other = data.all_dev[second], data.train[first]
        yield data.task.name, "", "near-duplicate", example.id, "dev", f"train {other.id}", alike, _shown(example)


def near_duplicates(train: Sequence[str], dev: Sequence[str]) -> Iterator[tuple[int, int, float]]:
    """(index in train, index in dev, Jaccard similarity) of each dev text and its nearest train text, if alike."""
    from datasketch import MinHash, MinHashLSH

    def sketch(grams: frozenset[bytes]) -> MinHash:
        made = MinHash(num_perm=PERMUTATIONS, seed=1)
        made.update_batch(list(grams))
        return made

    sets = [_grams(text) for text in train]
    index = MinHashLSH(threshold=CANDIDATES, num_perm=PERMUTATIONS)
    for number, grams in enumerate(sets):
        index.insert(number, sketch(grams))
    for number, text in enumerate(dev):
        own = _grams(text)
        found = [(len(own & sets[other]) / len(own | sets[other]), -other) for other in index.query(sketch(own))]
        alike, nearest = max(found, default=(0.0, 0))
        if alike >= ALIKE:
            yield -nearest, number, alike


def _grams(text: str) -> frozenset[bytes]:
    plain = f" {' '.join(text.lower().split())} "
    return frozenset(plain[start : start + GRAM].encode() for start in range(max(1, len(plain) - GRAM + 1)))


def _shown(example: Example) -> str:
    text = " ".join(" / ".join(example.texts).split())
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
