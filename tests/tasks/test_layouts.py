"""Public data sets in their original layouts, from their files to examples by a task file alone."""

from __future__ import annotations

from collections import Counter

import pytest

from meltpoint import tasks
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.tasks.layouts import LAYOUTS

MOST_LINES = 9
"""The most lines of a task file here."""


def shown(task, examples):
    """The examples as a layout states them: texts or words, with the label's name, the score, or the tags."""
    return [(example.texts or example.words, in_words(task, example.label)) for example in examples]


def in_words(task, label):
    if task.of_kind.has_labels:
        return tuple(name for name, has in zip(task.labels, label, strict=True) if has)
    if isinstance(label, tuple):
        return tuple(task.labels[tag] for tag in label)
    return task.labels[label] if task.labels else label


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_task_file_alone_reads_a_data_set_as_it_is_published(name, tmp_path):
    layout = LAYOUTS[name]
    spec = DataSpec(layout.write(tmp_path))
    has_test = "test:" in layout.yaml
    assert check(spec) == ("labelled" if has_test else "absent")
    data = load_training_data(spec)
    assert data.notes == layout.notes
    train, dev = shown(data.task, data.train), shown(data.task, data.dev)
    if layout.dev is not None:
        assert (train, dev) == (layout.train, layout.dev)
    else:
        assert Counter(map(str, train + dev)) == Counter(map(str, layout.train))
        assert len({label for _, label in dev}) == 2, "stratified: each class is in dev"
    assert data.train[0].id != data.train[-1].id
    if has_test:
        opened = open_test(spec)
        assert opened.labelled
        assert not {example.texts for example in opened.examples} & {example.texts for example in data.train}
    assert layout.yaml_lines() <= MOST_LINES


def test_real_data_in_their_original_layouts_give_the_examples_of_the_built_in_tasks(shared_data, tmp_path):
    own = {
        "cola": "kind: sentence_classification\nmetric: matthews\nformat: tsv\nheader: false\n"
        "files: {train: DIR/in_domain_train.tsv, dev: DIR/in_domain_dev.tsv}\n"
        "columns: {text: 3, label: 1}\nlabels: {0: unacceptable, 1: acceptable}\n",
        "conll2003": "kind: sequence_labelling\nformat: conll\ntag_scheme: iob1\n"
        "files: {train: DIR/eng.train, dev: DIR/eng.testa, test: DIR/eng.testb}\n"
        "labels: [O, B-PER, I-PER, B-ORG, I-ORG, B-LOC, I-LOC, B-MISC, I-MISC]\n",
    }
    for name, text in own.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: my_{name}\n" + text.replace("DIR", str(shared_data / name)), encoding="utf-8")
        mine, built_in = load_training_data(DataSpec(str(path))), load_training_data(DataSpec(name, str(shared_data)))
        key = (
            (lambda one: (one.texts, one.words, one.label)) if name != "cola" else (lambda one: (one.texts, one.label))
        )
        assert list(map(key, mine.train)) == list(map(key, built_in.train)), name
        assert mine.task.labels == tasks.get(name).labels
