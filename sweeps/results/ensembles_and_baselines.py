"""Results to compare trials with: baselines without an encoder, and ensembles of finalists.

Baselines of a task (majority or mean, and a linear model on TF-IDF) are fitted with scikit-learn in seconds, to at most
`MOST_EXAMPLES` training examples, tuned on dev, never on test, and stored as `baselines/TASK.json`.

An ensemble averages the probabilities of finalists from several cells of one task (arXiv 1907.05338, experiment B). No
model is trained and no test split is opened: it uses the predictions that were stored when each finalist was scored.
Its members are named by the user, or are all finished cells of the task; a test score never chooses them.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meltpoint.adapters import modes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import ScoredExamples, predictions_path, read_scored
from meltpoint.sweeps.ledger.records import TrialRecord, identity
from meltpoint.sweeps.results.kept_results import Baseline, Ensemble, EnsembleMember, read_baselines
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.sweeps.specification.cells import data_spec, word_of
from meltpoint.sweeps.storage.files import StoragePath, sweep_folder, write
from meltpoint.tasks import get
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import Prediction, gain
from meltpoint.tasks.core.scoring import Probabilities, score, value
from meltpoint.tasks.core.splits import load_training_data, sample
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
    train = sample(data.train, MOST_EXAMPLES) if len(data.train) > MOST_EXAMPLES else data.train
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
    """The baselines of every task with finals; missing or outdated ones are computed and stored.

    They read all of train, so a task of which only smaller sizes ran (`--train-sizes`) gets none.
    """
    found = dict(read_baselines(ledger))
    whole = [cell for cell in summary.cells if not summary.spec.train_examples_of(cell.header.variant)]
    of_task = {cell.header.task: cell.header.data_fingerprint for cell in whole if cell.finals}
    for task, fingerprint in of_task.items():
        known = found.get(task)
        if known is not None and known.data_fingerprint == fingerprint:
            continue
        data = load_training_data(data_spec(summary.spec, word_of(summary.spec, task)))
        found[task] = baseline_of(data)
        ledger.place(ledger.folder / "baselines" / f"{task}.json", found[task].model_dump_json(indent=1) + "\n")
    return found


# Ensembles.

Scored = Literal["dev", "test"]


def ensemble(storage: StoragePath, name: str, task: str, cells: Sequence[str] = ()) -> Ensemble:
    """Average the probabilities of finished cells' finalists, seed by seed, and store the result with the sweep.

    Finalists with the same seed are combined, for each seed that all cells share.

    Args:
        storage: the folder of all sweeps.
        name: the sweep.
        task: the task's name, or a task file.
        cells: the members, `E.M.T`; empty for all finished cells of the task.

    Raises:
        ValueError: an unknown sweep, task or cell; fewer than two members; members that are not finished, or not of
            that task; another kind of task than classification; predictions that are missing or differ from the
            records.
    """
    ledger = Ledger(sweep_folder(storage, name))
    summary = summarise(ledger)
    task = _task_name(summary, task)
    chosen, notes = _chosen(summary, task, cells)
    header = chosen[0].header
    is_random = [modes.get(cell.header.mode).is_random for cell in chosen]
    seeds = [{final.seed for final in cell.finals} for cell in chosen]
    common = set.intersection(*([own for own, one in zip(seeds, is_random, strict=True) if one] or seeds))
    finals = [  # a mode in which nothing is random has one run, the same for every seed
        [final for final in cell.finals if final.seed in common] if one else cell.finals[:1] * len(common)
        for cell, one in zip(chosen, is_random, strict=True)
    ]
    more = [cell.name for cell in chosen if len(cell.finals) > len(common)]
    notes += [f"seeds that not every member has are left out: {', '.join(more)}"] if more else []
    codes = tuple(dict.fromkeys(final.code_version for of_seed in zip(*finals, strict=True) for final in of_seed))
    notes += [f"its members' finalists mix versions of Meltpoint's code: {', '.join(codes)}"] if len(codes) > 1 else []
    members = tuple(
        EnsembleMember(
            sweep=name, encoder=cell.header.encoder, mode=cell.header.mode, head=cell.header.head,
            variant=cell.header.variant, cell=cell.name, trials=tuple(final.id for final in own),
            seeds=tuple(sorted(common)),
        )
        for cell, own in zip(chosen, finals, strict=True)
    )  # fmt: skip
    dev, missing = _scores_on(ledger, chosen, finals, "dev")
    test, hidden = _scores_on(ledger, chosen, finals, "test")
    if not dev and not test:
        raise ValueError(f"An ensemble cannot be scored: {'; '.join([*missing, *hidden]) or 'no seed in common'}.")
    cells_of = sorted([member.sweep, member.cell] for member in members)
    made = Ensemble(
        id=identity({"task": task, "members": cells_of}), task=task, kind=header.kind, metric=header.metric,
        members=members, dev=dev, test=test, data_fingerprint=header.data_fingerprint,
        notes=(*notes, *missing, *hidden), made_at=time.time(), code_versions=codes,
    )  # fmt: skip
    write(ledger.ensembles / f"{made.id}.json", made.model_dump_json(indent=1) + "\n")
    return made


def _chosen(summary: SweepSummary, task: str, cells: Sequence[str]) -> tuple[list[CellSummary], list[str]]:
    """The named cells, or all finished ones of the task, and a note that names the unfinished ones."""
    named = [summary.named(word) for word in dict.fromkeys(cells)]
    of_task = [cell for cell in named or summary.cells if cell.header.task == task]
    chosen, left = [cell for cell in of_task if cell.is_done], [cell.name for cell in of_task if not cell.is_done]
    wrong = [cell.name for cell in named if cell not in chosen]
    if wrong:
        raise ValueError(f"Cell '{wrong[0]}' is not a finished cell of {task}; see `meltpoint status {summary.name}`.")
    if len(chosen) < 2:
        raise ValueError(f"An ensemble needs two finished cells of {task}; see `meltpoint status {summary.name}`.")
    kind = chosen[0].header.kind
    if kinds.get(kind).target != "label":
        raise ValueError(f"Ensembles support only classification; {task} is {kind.replace('_', ' ')}.")
    return chosen, [f"left out, not finished: {', '.join(left)}"] if left else []


def _task_name(summary: SweepSummary, task: str) -> str:
    """The name of a task that the user gave by name or file.

    Raises:
        ValueError: the task is unknown, or the sweep has no cell of it.
    """
    known = dict.fromkeys(cell.header.task for cell in summary.cells)
    name = task if task in known else get(task).name
    if name not in known:
        raise ValueError(f"Sweep '{summary.name}' has no cell of task '{name}'. Tasks: {', '.join(known)}.")
    return name


def _scores_on(
    ledger: Ledger, chosen: Sequence[CellSummary], finals: Sequence[Sequence[TrialRecord]], split: Scored
) -> tuple[tuple[dict[str, float], ...], list[str]]:
    """The ensemble's scores on a split, one per seed; empty, with a note, if a member has no stored predictions."""

    def path(cell: CellSummary, final: TrialRecord) -> StoragePath:
        return predictions_path(ledger.folder, cell.name, final, split)

    lacking = [
        cell.name for cell, own in zip(chosen, finals, strict=True) for final in own
        # Finalists have no test score if the test labels are hidden or there is no test split.
        if (not path(cell, final).exists() if split == "dev" else not final.test)
    ]  # fmt: skip
    if lacking:
        return (), [f"no {split} score: nothing stored to score for {', '.join(dict.fromkeys(lacking))}"]
    scored = []
    for of_seed in zip(*finals, strict=True):
        pairs = zip(chosen, of_seed, strict=True)
        members = {path(cell, final): _read(path(cell, final), cell, final, split) for cell, final in pairs}
        check_aligned(members)
        scored.append(averaged_scores(list(members.values()), chosen[0].header))
    return tuple(scored), []


def check_aligned(members: Mapping[StoragePath, ScoredExamples]) -> None:
    """Check that the predictions of all files cover the same examples in the same order, with the same labels.

    Raises:
        ValueError: two files differ; the message names them.
    """
    (path, first), *others = members.items()
    for other_path, other in others:
        for what, is_same in (("labels", first.labels == other.labels), ("examples", first.digest == other.digest)):
            if not is_same:
                raise ValueError(f"{path} and {other_path} differ in their {what}; combine cells of one data set.")


def averaged(members: Sequence[ScoredExamples]) -> NDArray[np.float64]:
    """The mean probability of each label for each example, (examples, labels)."""
    mean: NDArray[np.float64] = np.mean([one.probabilities for one in members if one.probabilities is not None], axis=0)
    return mean


def averaged_scores(members: Sequence[ScoredExamples], header: CellHeader) -> dict[str, float]:
    """The metrics of the label with the highest mean probability; the first one in a tie."""
    first, shares = members[0], averaged(members)
    # Not read from the task's file, which may have been removed: a score needs only kind, metric and labels.
    task = Task(header.task, header.kind, header.metric, "", {}, first.labels, beside=header.beside)
    return score(task, first.gold.tolist(), shares.argmax(axis=1).tolist(), shares.tolist())


def _read(path: StoragePath, cell: CellSummary, final: TrialRecord, split: Scored) -> ScoredExamples:
    """Read a finalist's stored predictions, and check that their score is the recorded one (on a GPU, nearly).

    Raises:
        ValueError: they are missing or damaged, or have another score.
    """
    read, metric = read_scored(path, cell.header.kind), cell.header.metric
    found = read.score(metric)
    recorded = final.dev if split == "dev" else (final.test or {}).get(metric)
    allowed = final.dev_tolerance if split == "dev" else 0.0
    if recorded is None or abs(found - recorded) > allowed:
        raise ValueError(
            f"{path} gives {split} {found!r}, but the record of trial {final.id} has {recorded!r}; restore one of them."
        )
    return read
