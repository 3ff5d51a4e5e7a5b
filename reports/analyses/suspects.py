"""Suspects in a task's data: labels that a probe contradicts, and texts that nearly occur in two splits.

Labels are ranked as in confident learning (Northcutt, Jiang & Chuang 2021, "normalized margin"): by the probability of
the given label less that of the likeliest other one, from probes that did not see the example. Near-duplicates are
found by MinHash over sets of character 5-grams (Broder 1997), and their Jaccard similarity is then computed exactly.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.adapters import encoders
from meltpoint.adapters.encoder import Encoder
from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Value, figures
from meltpoint.reports.analyses.core.states import States, every_input, split_states, word_states
from meltpoint.sweeps.storage.files import append_line
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.task import DataSpec, Example, Task, TrainingData

NAME = "suspects"
MOST = 100
"""Rows of each kind and task, the most suspect first."""
FOLDS = 5
C = 0.01
"""Inverse strength of the probes' penalty: strong, since an overfitted probe is sure of wrong labels, too."""
GRAM, PERMUTATIONS, CANDIDATES, ALIKE = 5, 256, 0.6, 0.8
"""Characters of a gram, and of MinHash: its permutations, and the similarity of candidates; least similarity shown."""
TEXT, WORDS = 80, 5
"""Most characters of a text, and the words on either side of a word, that are shown."""

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
    "task and encoder. A class with one example has no probe. Words have the mean state of all layers; of several "
    "labels, each has its own probe.",
    "near-duplicate: an example of the split 'given' whose text is that of 'instead', up to some characters: the share "
    f"of common 5-grams of characters is at least {ALIKE}.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """List the suspects of every task of the given encoders.

    Raises:
        ValueError: see `states.every_input`.
    """
    rows: list[tuple[Value, ...]] = []
    inputs, notes = every_input(options), []
    for encoder_name, data in inputs:
        options.tell(f"{data.task.name}, {encoder_name}: reading states")
        encoder = encoders.load(encoders.resolve(options.encoder_word(encoder_name), data.task.kind))
        found = sorted(_label_rows(data, encoder), key=lambda row: row[3])[:MOST]
        rows += [(data.task.name, encoder_name, "label", *row) for row in found]
    tasks = {task: data for (_, task), (_, data) in zip(options.pairs(), inputs, strict=True)}
    for spec, data in ((options.data(task), data) for task, data in tasks.items()):
        splits = {"train": data.train, "dev": data.all_dev}
        if sources.check(spec) not in ("absent", "closed"):
            splits |= _test(options, data.task.name, spec)
            if "test" not in splits:
                notes.append(f"{data.task.name}: test is read once its finalists are scored on it.")
        for (earlier, first), (later, second) in combinations(splits.items(), 2):
            rows += [(data.task.name, "", "near-duplicate", *row) for row in _near_rows(earlier, first, later, second)]
    return write_table(AnalysisTable(NAME, "Suspect examples", COLUMNS, tuple(rows), (*METHOD, *notes)), options)


def _test(options: AnalysisOptions, task: str, spec: DataSpec) -> dict[str, list[Example]]:
    """The test split of a sweep's task whose cells have all been scored on it, so that no choice depends on it."""
    every = options.sweep.cells if options.sweep else []
    cells = [cell for cell in every if cell.header.task == task and cell.finals]
    if options.ledger is None or not cells or any(final.test is None for cell in cells for final in cell.finals):
        return {}
    fingerprint = cells[0].header.data_fingerprint
    line = {"task": task, "data_fingerprint": fingerprint, "looked_at": time.time(), "found": NAME}
    append_line(options.ledger.test_checks, line)
    return {"test": open_test(spec).examples}


Row = tuple[str, str, str, float, str]
"""The columns from `example` on."""


def _label_rows(data: TrainingData, encoder: Encoder) -> Iterator[Row]:
    """The training examples, or words, whose labels a probe contradicts."""
    task, train = data.task, data.train
    if task.of_kind.labels_words:
        words = [(example, place) for example in train for place in range(len(example.words))]
        tags = np.concatenate([np.array(example.label, dtype=np.int64) for example in train])
        margins, best = label_margins(word_states(encoder, task, train), tags)
        for index in np.flatnonzero(margins < 0):
            example, place = words[index]
            named = (task.labels[tags[index]], task.labels[best[index]])
            yield f"{example.id}, word {place + 1}", *named, float(margins[index]), _around(example.words, place)
        return
    states, labels = split_states(encoder, task, train), np.array([example.label for example in train])
    if task.of_kind.target == "score":
        margins, found = residuals(states, labels.astype(np.float64))
        for index in np.flatnonzero(margins < -FAR):
            named = (f"{labels[index]:g}", f"{found[index]:.2f}")
            yield train[index].id, *named, float(margins[index]), _shown(train[index])
        return
    for names, given in _choices(task, labels):
        margins, best = label_margins(states, given)
        for index in np.flatnonzero(margins < 0):
            named = (names[given[index]], names[best[index]])
            yield train[index].id, *named, float(margins[index]), _shown(train[index])


def _choices(task: Task, labels: NDArray[np.int64]) -> Iterable[tuple[Sequence[str], NDArray[np.int64]]]:
    """(names, label ids) of the probes to fit: one, or one for each label if an example may have several."""
    if not task.of_kind.has_labels:
        return [(task.labels, labels)]
    return [((f"not {name}", name), having) for name, having in zip(task.labels, labels.T, strict=True)]


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


def _near_rows(earlier: str, first: Sequence[Example], later: str, second: Sequence[Example]) -> Iterator[Row]:
    """The examples of the later split that nearly occur in the earlier one."""
    texts = ([" ".join((*example.texts, *example.words)) for example in split] for split in (first, second))
    for known, number, alike in sorted(near_duplicates(*texts), key=lambda pair: -pair[2])[:MOST]:
        yield second[number].id, later, f"{earlier} {first[known].id}", alike, _shown(second[number])


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
    text = " ".join(" / ".join(example.texts or [" ".join(example.words)]).split())
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def _around(words: Sequence[str], place: int) -> str:
    """A word in brackets with its neighbours."""
    before, after = words[max(0, place - WORDS) : place], words[place + 1 : place + 1 + WORDS]
    return " ".join([*before, f"[{words[place]}]", *after])
