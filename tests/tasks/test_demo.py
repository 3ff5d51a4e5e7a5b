"""The generated demo tasks: deterministic, disjoint, balanced, with held-out words in dev and test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from meltpoint import tasks
from meltpoint.tasks.demo_sentiment import SIZES, sentence

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


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_short_clean_sentences(name):
    for example in splits(name)["train"]:
        for one in example.texts or (" ".join(example.words),):
            assert one[0].isupper()
            assert one.endswith((".", "!"))
            assert "  " not in one
            assert not set("{}") & set(one)
            assert 3 <= len(one.split()) <= 20


@pytest.mark.parametrize("name", ["demo_sentiment", "demo_entailment"])
def test_classes_are_balanced(name):
    task = tasks.get(name)
    for examples in splits(name).values():
        shares = np.array([count / len(examples) for count in Counter(e.label for e in examples).values()])
        assert len(shares) == len(task.labels)
        assert np.all(np.abs(shares - 1 / len(task.labels)) < 0.1)


def bag_of_words(name, pick):
    by_split = splits(name)
    texts = {split: [pick(example) for example in examples] for split, examples in by_split.items()}
    labels = {split: [example.label for example in examples] for split, examples in by_split.items()}
    words = CountVectorizer(token_pattern=r"[^ ]+").fit(texts["train"])
    model = LogisticRegression(max_iter=1000).fit(words.transform(texts["train"]), labels["train"])
    return model.score(words.transform(texts["test"]), labels["test"])


def test_words_alone_settle_part_of_the_sentiment():
    assert 0.52 < bag_of_words("demo_sentiment", text) < 0.75


def test_the_hypothesis_alone_settles_a_part_of_the_entailment():
    assert 0.4 < bag_of_words("demo_entailment", lambda example: example.texts[1]) < 0.65


def test_ambiguous_names_have_several_types():
    task = tasks.get("demo_entities")
    kinds: dict[str, set[str]] = {}
    for example in splits("demo_entities")["train"]:
        for word, tag in zip(example.words, example.label, strict=True):
            if tag:
                kinds.setdefault(word, set()).add(task.labels[tag][2:])
    several = [word for word, tags in kinds.items() if len(tags) > 1]
    assert len(several) >= 15


def test_similarity_falls_with_the_facts_that_are_not_shared():
    scores = [example.label for example in splits("demo_similarity")["train"]]
    assert min(scores) == 0.0
    assert max(scores) == 5.0
    assert 1.0 < np.std(scores) < 2.5
    assert len(set(scores)) > 20


def test_a_becomes_an_before_a_vowel():
    assert sentence("a  owl saw a cat .") == "An owl saw a cat ."
