"""Every task and every kind in tables; the errors for unknown names; the demo tasks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.adapters import heads, modes
from meltpoint.adapters.objectives import OBJECTIVES
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.sources import pinned_names
from meltpoint.tasks.core.task import KINDS, SPLITS
from meltpoint.tasks.core.wording import some
from meltpoint.tasks.demo_sentiment import SIZES

DEMO = {"demo_entities", "demo_entailment", "demo_sentiment", "demo_similarity"}
REAL = {
    "cola", "conll2003", "mnli", "mrpc", "qqp", "sick_e", "sick_r", "sst2", "sst2_phrases", "sst2_subtrees", "stsb",
    "yahoo",
}  # fmt: skip


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_is_whole(name):
    assert tasks.names() == sorted(DEMO | REAL)
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


@pytest.mark.parametrize(
    ("read", "word", "message"),
    [
        (tasks.get, "sst3", r"^Unknown task 'sst3'\. Did you mean sst2.*Choose from: cola, "),
        (tasks.get, "sst2:a+b", r"^Task 'sst2' has no variants; write --task sst2\.$"),
        (tasks.get, "yaho:sports+health", r"^Unknown task 'yaho'\. Did you mean yahoo\?"),
        *((tasks.get, word, "Unknown task") for word in ("", "core", "core.task", "../sst2", "sst2.py")),
        (kinds.get, "pair_regresion", "Did you mean pair_regression"),
    ],
)  # fmt: skip
def test_an_unknown_task_variant_or_kind_is_refused_in_one_line_with_its_near_misses(read, word, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(word)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "cell", "1 cell"), (0, "cell", "0 cells"), (2, "entry", "2 entries"), (1, "entry", "1 entry"),
        (12345, "trial", "12 345 trials"), (1.0, "CPU", "1 CPU"), (0.25, "GPU", "0.25 GPUs"),
    ],
)  # fmt: skip
def test_a_count_of_one_is_singular(number, noun, text):
    assert some(number, noun) == text


@pytest.mark.parametrize("name", kinds.names())
def test_every_kind_has_what_the_other_rooms_ask_of_it(name):
    kind = kinds.get(name)
    assert all(kind.target in METRICS[metric].targets for metric in kind.metrics)
    assert kind.target in OBJECTIVES
    assert [word for word in heads.names() if name in heads.get(word).kinds]
    assert all(name in modes.get(mode).default_heads.joint for mode in modes.names())


NAMES = [name for name in tasks.names() if name.startswith("demo_")]
NOWHERE = Path("nowhere")


def text(example):
    return " ".join((*example.texts, *example.words)).lower()


def splits(name):
    return {split: reader(NOWHERE) for split, reader in tasks.get(name).readers.items()}


@pytest.mark.parametrize("name", NAMES)
def test_splits_of_a_demo_have_their_sizes_share_no_text_and_dev_has_words_that_training_never_shows(name):
    by_split = splits(name)
    assert by_split == splits(name), "the generator gives the same examples each time"
    assert {split: len(examples) for split, examples in by_split.items()} == SIZES
    texts = [text(example) for examples in by_split.values() for example in examples]
    assert len(set(texts)) == len(texts) == 1_000
    seen = {word for example in by_split["train"] for word in text(example).split()}
    new = sum(any(word not in seen for word in text(example).split()) for example in by_split["dev"])
    assert 0.4 < new / len(by_split["dev"]) < 1.0
    if tasks.get(name).kind.endswith("classification"):
        for examples in by_split.values():
            counts = Counter(example.label for example in examples)
            assert len(counts) == len(tasks.get(name).labels)
            assert all(abs(count / len(examples) - 1 / len(counts)) < 0.1 for count in counts.values())
