"""Training data of a task: train and dev. Nothing in this module can open a test split."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence

from meltpoint.tasks.core.counts import counted, some
from meltpoint.tasks.core.slices import parse_slice
from meltpoint.tasks.core.sources import find, read_split
from meltpoint.tasks.core.task import DataSpec, Example, Task, TrainingData

SAMPLE_SEED = 0


def load_training_data(spec: DataSpec) -> TrainingData:
    """Load train and dev of a task as a sweep specifies them.

    Raises:
        ValueError: the data is missing or broken, or the specification does not fit it.
    """
    task = find(spec)
    train, dev = read_split(spec, "train"), read_split(spec, "dev")
    notes = list(task.notes)
    if spec.data_dir is None and task.hub is not None and task.hub.note:
        notes.append(task.hub.note)
    if spec.test_from:
        cut = parse_slice(spec.test_from)
        if cut.split == "train":
            train, _ = cut.carve(train)
        else:
            dev, _ = cut.carve(dev)
        notes.append(f"test = {cut.text}")
    elif task.test_labels == "hidden":
        notes.append("test labels hidden")
    if spec.max_train_examples is not None and spec.max_train_examples < len(train):
        notes.append(f"{counted(spec.max_train_examples)} of {some(len(train), 'training example')}, seed 0")
        train = sample(train, spec.max_train_examples)
    return TrainingData(task, train, dev, fingerprint(task, train, dev), tuple(notes))


def sample(examples: Sequence[Example], size: int) -> list[Example]:
    """A seeded sample without replacement, in the examples' original order.

    Raises:
        ValueError: a size below 1.
    """
    if size < 1:
        raise ValueError(f"--max-train-examples is {size}; it takes a whole number of at least 1.")
    chosen = random.Random(SAMPLE_SEED).sample(range(len(examples)), size)
    return [examples[position] for position in sorted(chosen)]


def fingerprint(task: Task, *splits: Sequence[Example]) -> str:
    """sha256 (hex, 16 characters) over the task's labels and the splits' texts, words and labels, in order."""
    digest = hashlib.sha256()
    parts: list[object] = [task.kind, task.labels, task.label_range, [len(split) for split in splits]]
    parts += [[example.texts, example.words, example.label] for split in splits for example in split]
    for part in parts:
        digest.update(json.dumps(part).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
