"""Public data sets in their original layouts, from their files to examples by a task file alone."""

from __future__ import annotations

from collections import Counter

import pytest

from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.tasks.layouts import LAYOUTS


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
