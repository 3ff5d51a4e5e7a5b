"""Every task and every kind in tables; the errors for unknown names; the demo tasks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from meltpoint import tasks
from meltpoint.adapters import heads, modes
from meltpoint.adapters.objectives import OBJECTIVES
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.sources import pinned_names
from meltpoint.tasks.core.task import KINDS, SPLITS
from meltpoint.tasks.demo_sentiment import SIZES

DEMO = {"demo_entities", "demo_entailment", "demo_sentiment", "demo_similarity"}
REAL = {
    "cola", "conll2003", "mnli", "mrpc", "qqp", "sick_e", "sick_r", "sst2", "sst2_phrases", "sst2_subtrees", "stsb",
    "yahoo",
}  # fmt: skip


def test_the_names_are_the_files():
    assert set(tasks.names()) == DEMO | REAL
    assert tasks.names() == sorted(tasks.names())


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_is_whole(name):
    task = tasks.get(name)
    assert task.name == name
    assert task.kind in KINDS
    assert METRICS[task.metric].fits(task)
    assert bool(task.labels) != bool(task.label_range)
    assert task.description
    assert {"train", "dev", "test"} == set(task.readers)
    assert task.generated or {"train", "dev", "test"} == set(task.files)
    if task.kind == "sequence_labelling":
        assert task.labels[0] == "O"
        assert all(f"B-{label[2:]}" in task.labels for label in task.labels if label.startswith("I-"))
    assert task.outputs == (len(task.labels) or 1)


@pytest.mark.parametrize("name", sorted(REAL))
def test_every_split_of_every_real_task_can_be_downloaded_at_a_commit(name):
    task = tasks.get(name)
    sources = [task.hub, *task.hub.elsewhere.values()] if task.hub else []
    commits = [source.revision for source in sources]
    assert all("{split}" in source.pattern for source in sources)
    if task.pinned:
        commits += re.findall(r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/(\w+)(?:/|$)", task.pinned.url)
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in task.pinned.sha256.values())
    assert len(commits) == len(sources) + bool(task.pinned)
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits)
    named = set(task.hub.splits) if task.hub else set()
    assert named | {split for split in SPLITS if pinned_names(task, split)} == {"train", "dev", "test"}


def test_an_unknown_task_names_its_near_misses():
    with pytest.raises(ValueError, match=r"^Unknown task 'sst3'\. Did you mean sst2.*Choose from: cola, ") as caught:
        tasks.get("sst3")
    assert "\n" not in str(caught.value)


def test_a_task_without_variants_says_so():
    with pytest.raises(ValueError, match=r"^Task 'sst2' has no variants; write --task sst2\.$"):
        tasks.get("sst2:a+b")
    with pytest.raises(ValueError, match=r"^Unknown task 'yaho'\. Did you mean yahoo\?"):
        tasks.get("yaho:sports+health")


@pytest.mark.parametrize("word", ["", "core", "core.task", "../sst2", "sst2.py"])
def test_words_that_are_no_task_are_refused(word):
    with pytest.raises(ValueError, match="Unknown task"):
        tasks.get(word)


@pytest.mark.parametrize("name", kinds.names())
def test_every_kind_has_what_the_other_rooms_ask_of_it(name):
    kind = kinds.get(name)
    assert all(kind.target in METRICS[metric].targets for metric in kind.metrics)
    assert kind.target in OBJECTIVES
    assert [word for word in heads.names() if name in heads.get(word).kinds]
    assert all(name in modes.get(mode).default_heads.joint for mode in modes.names())


def test_an_unknown_kind_is_refused_with_the_near_ones():
    with pytest.raises(ValueError, match="Did you mean pair_regression"):
        kinds.get("pair_regresion")


NAMES = [name for name in tasks.names() if name.startswith("demo_")]
NOWHERE = Path("nowhere")


def text(example):
    return " ".join((*example.texts, *example.words)).lower()


def splits(name):
    return {split: reader(NOWHERE) for split, reader in tasks.get(name).readers.items()}


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_their_sizes_and_share_no_text(name):
    by_split = splits(name)
    assert {split: len(examples) for split, examples in by_split.items()} == SIZES
    texts = [text(example) for examples in by_split.values() for example in examples]
    assert len(set(texts)) == len(texts) == 1_000


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_gives_the_same_examples_each_time(name):
    assert splits(name) == splits(name)


@pytest.mark.parametrize("name", NAMES)
def test_dev_has_words_that_training_never_shows(name):
    by_split = splits(name)
    seen = {word for example in by_split["train"] for word in text(example).split()}
    new = sum(any(word not in seen for word in text(example).split()) for example in by_split["dev"])
    assert 0.4 < new / len(by_split["dev"]) < 1.0


@pytest.mark.parametrize("name", ["demo_sentiment", "demo_entailment"])
def test_classes_are_balanced(name):
    task = tasks.get(name)
    for examples in splits(name).values():
        shares = np.array([count / len(examples) for count in Counter(e.label for e in examples).values()])
        assert len(shares) == len(task.labels)
        assert np.all(np.abs(shares - 1 / len(task.labels)) < 0.1)
