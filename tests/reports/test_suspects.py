"""Planted faults are found: wrong labels by a probe, near-duplicates by MinHash; sound examples are not."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from meltpoint.adapters import encoders
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.reports.analyses.core.states import split_states, word_states
from meltpoint.reports.analyses.suspects import _label_rows, label_margins, near_duplicates, residuals, run
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, TrainingData
from meltpoint.tests.adapters.tiny_tasks import tiny_task as task_of

TOPICS = "yahoo:society_culture+science_mathematics"


@pytest.mark.slow
def test_of_a_hundred_planted_wrong_labels_most_are_among_the_first_hundred(minilm: Path, shared: Path):
    data = load_training_data(DataSpec(TOPICS, str(shared / "data"), 2000, is_test_closed=True))
    train = data.train
    encoder = encoders.load(encoders.resolve(f"hf:{minilm}", "sentence_classification"))
    states = split_states(encoder, data.task, train)
    labels = np.array([example.label for example in train])
    planted = np.random.default_rng(0).choice(len(labels), 100, replace=False)
    labels[planted] = 1 - labels[planted]
    margins, best = label_margins(states, labels)
    first = np.argsort(margins)[:100]
    assert len(set(first) & set(planted)) >= 60
    assert all(best[index] == 1 - labels[index] for index in first)


def test_a_wrong_label_and_a_wrong_score_are_the_most_suspect():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 150)
    states = np.stack([draw.normal(size=(150, 8)), np.eye(3)[labels] @ draw.normal(size=(3, 8)) * 5]).astype(np.float32)
    states[1] += draw.normal(size=(150, 8))
    wrong = labels.copy()
    wrong[7] = (labels[7] + 1) % 3
    margins, best = label_margins(states, wrong)
    assert margins.argmin() == 7
    assert best[7] == labels[7]
    scores = states[1] @ draw.normal(size=8)
    scores[9] += 20
    assert residuals(states, scores)[0].argmin() == 9


def test_the_only_example_of_a_class_is_no_suspect_and_ends_nothing():
    draw = np.random.default_rng(0)
    labels = np.array([0, 1] * 20 + [2])
    states = (np.eye(3)[labels] @ draw.normal(size=(3, 8)) * 5 + draw.normal(size=(41, 8)))[None].astype(np.float32)
    margins, best = label_margins(states, labels)
    assert margins[-1] == 0.0
    assert best[-1] == 2
    assert (margins[:-1] > 0).all()
    margins, _ = label_margins(states[:, 39:], labels[39:])
    assert (margins == 0).all(), "two classes with one example each"


def test_planted_near_duplicates_are_found_and_sound_pairs_are_not(shared: Path):
    data = load_training_data(DataSpec("sst2", str(shared / "data"), 3000, is_test_closed=True))
    texts = [example.texts[0] for example in data.train if len(example.texts[0]) > 60][:2000]
    train, others = texts[:1000], texts[1000:]
    draw = random.Random(0)

    def nearly(text: str) -> str:
        words = text.split()
        place = draw.randrange(len(words))
        return " ".join([*words[:place], words[place] + "s", *words[place + 1 :]]).upper()

    planted = [nearly(text) for text in train[:50]]
    found = {second: first for first, second, _ in near_duplicates(train, [*planted, *others])}
    assert sum(found.get(number) == number for number in range(50)) / 50 >= 0.95
    assert not [number for number in found if number >= 50]


def test_the_analysis_writes_a_row_for_each_suspect(tiny_encoder, tiny_task: Path, tmp_path: Path):
    options = AnalysisOptions(None, None, tmp_path, (tiny_encoder,), (str(tiny_task),), formats=("md", "csv"))
    table, rows = run(options)
    assert table.read_text(encoding="utf-8").startswith("# Suspect examples")
    kinds = {line.split(",")[2] for line in rows.read_text(encoding="utf-8").splitlines()[1:]}
    assert kinds <= {"label", "near-duplicate"}
    assert kinds


def test_a_words_state_is_the_mean_of_its_first_pieces_layers(tiny_encoder):
    encoder = encoders.load(encoders.resolve(tiny_encoder, "sequence_labelling"))
    examples = [Example("0", words=("the", "film", "was", "fine"), label=(0, 1, 0, 0)),
                Example("1", words=("lovely",), label=(1,))]  # fmt: skip
    found = word_states(encoder, task_of("sequence_labelling"), examples)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder.revision)
    with torch.no_grad():
        ids = tokenizer(
            [list(one.words) for one in examples], is_split_into_words=True, padding=True, return_tensors="pt"
        )
        layers = torch.stack(encoder.model(**ids, output_hidden_states=True).hidden_states).mean(dim=0)
    assert found.shape == (1, 5, 32)
    np.testing.assert_allclose(found[0], np.concatenate([layers[0, 1:5], layers[1, 1:2]]), atol=2e-6)


@pytest.mark.parametrize("kind", ["sequence_labelling", "multi_label_classification"])
def test_wrong_tags_and_wrong_labels_among_several_are_suspects(kind, tiny_encoder):
    encoder = encoders.load(encoders.resolve(tiny_encoder, kind))
    train = [
        Example(str(number), words=("the", ("film", "fine")[number % 2], "was"), label=(0, number % 2, 0))
        if kind == "sequence_labelling"
        else Example(str(number), texts=(("the film was", "the fine was")[number % 2],), label=(1, number % 2))
        for number in range(40)
    ]
    wrong = (0, 0, 0) if kind == "sequence_labelling" else (1, 0)
    train[7] = replace(train[7], label=wrong)
    data = TrainingData(task_of(kind), train, train[:4], "")
    rows = sorted(_label_rows(data, encoder), key=lambda row: row[3])
    expected = {
        "sequence_labelling": ("7, word 2", "O", "B-LOC", "the [fine] was"),
        "multi_label_classification": ("7", "not yes", "yes", "the fine was"),
    }
    assert (*rows[0][:3], rows[0][4]) == expected[kind]
