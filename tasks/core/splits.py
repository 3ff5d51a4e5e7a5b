"""Training data of a task: train and dev, and warnings about them. Nothing in this module can open a test split."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from meltpoint.tasks.core.carving import Cut, Draw, carve, parse_cut
from meltpoint.tasks.core.kinds import TaskKind
from meltpoint.tasks.core.sources import find, read_split
from meltpoint.tasks.core.task import DataSpec, Example, Label, ReadExamples, Split, Task, TrainingData
from meltpoint.tasks.core.wording import counted, some

SAMPLE_SEED = 0
FEWEST_SAMPLED = 500
"""The smallest size of a dev sample: an accuracy of 90 % on 500 examples has a standard error of 1.3 points, and the
difference of two settings that disagree on a tenth of them has a standard error of 1.4."""
SAMPLED_PER_TRAINED = 2
"""Dev examples in a sample for each training example: scoring them takes two fifths of an epoch, since a training step
costs three forward passes (Kaplan et al. 2020, section 2.1)."""
WORTH_SAMPLING = 1.5
"""Dev is sampled only if it is over 1.5 times the sample: a smaller saving is not worth the precision."""


def load_training_data(spec: DataSpec) -> TrainingData:
    """Load train and dev of a task as a sweep specifies them.

    Raises:
        ValueError: the data is missing or broken, or the specification does not fit it.
    """
    task = find(spec)
    parts, carved_notes = _carved(spec, task)
    notes = [*task.notes, *carved_notes]
    if "test" not in parts and task.test_labels == "hidden":
        notes.append("test labels hidden")
    all_dev = parts["dev"]
    train = _sampled(parts["train"], spec.max_train_examples, spec.nested, notes)
    dev = _dev_sample(all_dev, spec.max_dev_examples, len(train), notes)
    unseen = () if len(dev) == len(all_dev) else (all_dev,)  # finals are scored on it
    return TrainingData(
        task, train, dev, fingerprint(task, train, dev, *unseen), tuple(notes),
        _documents(task, parts["train"], train), _documents(task, all_dev, dev), all_dev,
    )  # fmt: skip


def _carved(spec: DataSpec, task: Task) -> tuple[dict[Split, list[Example]], list[str]]:
    """Train, dev and, if it is carved, test; and remarks for the tables."""
    dev_cut, test_cut = cuts(spec, task)
    train = read_split(spec, "train")
    notes = left_out("train", train)
    wanted: dict[Split, Cut | None] = {"test": test_cut, "dev": dev_cut}
    rest, parts = carve(train, {name: cut for name, cut in wanted.items() if cut and cut.split == "train"})
    if dev_cut is not None:
        notes.append(f"dev = {dev_cut.note(train)}")
    else:
        parts["dev"] = read_split(spec, "dev")
        notes += left_out("dev", parts["dev"])
    if test_cut is not None:
        notes.append(f"test = {test_cut.note(train if test_cut.split == 'train' else parts['dev'])}")
        if test_cut.split == "dev":
            parts["dev"], of_dev = carve(parts["dev"], {"test": test_cut})
            parts |= of_dev
    return {**parts, "train": rest}, notes


def carved_test(spec: DataSpec, task: Task) -> tuple[list[Example], list[str]]:
    """The test split that is carved off train or dev, and remarks for the tables; only `locked` may call this.

    Raises:
        ValueError: the part is empty, or leaves nothing.
    """
    dev_cut, test_cut = cuts(spec, task)
    assert test_cut is not None, "the task has its own test split"
    if test_cut.split == "dev" and dev_cut is None:
        dev = read_split(spec, "dev")
        return carve(dev, {"test": test_cut})[1]["test"], [f"test = {test_cut.note(dev)}"]
    parts, notes = _carved(spec, task)
    return parts["test"], [note for note in notes if note.startswith("test = ")]


def cuts(spec: DataSpec, task: Task) -> tuple[Cut | None, Cut | None]:
    """The parts that are carved off as (dev, test); the specification's test takes precedence over the task's.

    Raises:
        ValueError: a part is not in the grammar of `carving`.
    """
    dev = parse_cut(task.dev_from, "dev_from") if task.dev_from else None
    test = parse_cut(task.test_from, "test_from") if task.test_from else None
    if spec.test_from:
        test = parse_cut(spec.test_from)
    if task.is_grouped:
        dev, test = (cut and replace(cut, by_group=True) for cut in (dev, test))
    return dev, test


def left_out(split: str, examples: Sequence[Example]) -> list[str]:
    """The remarks on the rows of a split that its reader left out."""
    notes = examples.notes if isinstance(examples, ReadExamples) else ()
    return [f"{split}: {note}" for note in notes]


def _sampled(examples: list[Example], size: int | None, is_nested: bool, notes: list[str]) -> list[Example]:
    """At most `size` training examples; `notes` gets a line if some are left out."""
    if size is None or size >= len(examples):
        return examples
    how = ", nested and stratified" if is_nested else ""
    notes.append(f"{counted(size)} of {some(len(examples), 'training example')}{how}, seed {SAMPLE_SEED}")
    return nested(examples, size) if is_nested else sample(examples, size)


def dev_sample_size(train_examples: int, dev_examples: int) -> int:
    """The default number of dev examples that epochs are scored on: all of them, or a sample of a large dev split."""
    size = max(FEWEST_SAMPLED, SAMPLED_PER_TRAINED * train_examples)
    return size if dev_examples > WORTH_SAMPLING * size else dev_examples


def _dev_sample(
    dev: list[Example], asked: int | Literal["auto"] | None, train_examples: int, notes: list[str]
) -> list[Example]:
    """The part of dev that epochs are scored on; the default sample is stratified if examples have classes.

    A sample of a requested size is drawn as in earlier versions, so that older sweeps and exports keep their samples.
    """
    size = dev_sample_size(train_examples, len(dev)) if asked == "auto" else asked
    if size is None or size >= len(dev):
        return dev
    how, drawn = "", sample(dev, size) if asked != "auto" else []
    if asked == "auto":
        how = ", stratified" if all(isinstance(example.label, int) for example in dev) else ""
        draw = Draw("dev", SAMPLE_SEED, stratified=None, fraction=size / len(dev), fold=None, of=None)
        drawn = [dev[position] for position in draw.positions(dev)]
    notes.append(
        f"dev sample of {counted(size)} of {counted(len(dev))} for epochs{how}, seed {SAMPLE_SEED}; finals on all of it"
    )
    return drawn


def _documents(task: Task, whole: list[Example], kept: list[Example]) -> list[Example] | None:
    """The complete split, if its sentences form documents and only some of them were kept."""
    in_documents = task.of_kind.labels_words and any(example.group for example in whole)
    return whole if in_documents and len(kept) < len(whole) else None


def sample(examples: Sequence[Example], size: int) -> list[Example]:
    """A seeded sample without replacement, in the examples' original order.

    Raises:
        ValueError: a size below 1.
    """
    if size < 1:
        raise ValueError(f"a sample of {size} examples: write a whole number of at least 1.")
    chosen = random.Random(SAMPLE_SEED).sample(range(len(examples)), size)
    return [examples[position] for position in sorted(chosen)]


def nested(examples: Sequence[Example], size: int) -> list[Example]:
    """A seeded sample that contains every smaller one, in the examples' original order.

    Examples with one class each are drawn so that a sample of any size has the classes' shares, within one example a
    class: the k-th drawn of a class of n gets the place (k - ½) / n, and a sample takes the first places.
    """
    draws = random.Random(SAMPLE_SEED)
    ranked = sorted(range(len(examples)), key=lambda _: draws.random())
    of_class: dict[Label, list[int]] = {}
    for position in ranked:
        label = examples[position].label
        of_class.setdefault(label if isinstance(label, int) else None, []).append(position)
    places = {
        position: ((rank + 0.5) / len(members), order)
        for order, members in enumerate(of_class.values()) for rank, position in enumerate(members)
    }  # fmt: skip
    return [examples[position] for position in sorted(sorted(places, key=lambda position: places[position])[:size])]


def fingerprint(task: Task, *splits: Sequence[Example]) -> str:
    """sha256 (hex, 16 characters) over the task's labels and the splits' texts, words and labels, in order."""
    digest = hashlib.sha256()
    parts: list[object] = [task.kind, task.labels, task.label_range, [len(split) for split in splits]]
    parts += [task.class_weights] if task.class_weights else []
    for example in (example for split in splits for example in split):
        parts.append([example.texts, example.words, example.label, *([example.group] if task.is_grouped else [])])
    for part in parts:
        digest.update(json.dumps(part).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


WIDEST_POINTS = 5.0
"""A dev split that tells two settings apart less exactly than this causes a warning: fewer than 154 examples."""
USUAL_DISAGREEMENT = 0.1
"""The share of examples on which two settings of one cell disagree; their comparison is paired."""
LEAST_SHARED = 0.01
"""The share of dev in train from which a warning is given; a smaller share moves a score by under a point."""
NORMAL_95 = 1.959964
"""The 97.5th percentile of the normal distribution."""


def data_warnings(data: TrainingData) -> list[str]:
    """One line for each fault of a task's data: shared texts, missing classes, a small dev split."""
    return [*_shared(data), *_missing_classes(data), *_small_dev(data)]


def _texts(example: Example) -> tuple[str, ...]:
    return tuple(text.strip().casefold() for text in example.texts) or tuple(word.casefold() for word in example.words)


def _shared(data: TrainingData) -> Iterator[str]:
    known = {_texts(example) for example in data.train}
    shared = sum(_texts(example) in known for example in data.dev)
    if shared and shared >= LEAST_SHARED * len(data.dev):
        percent = 100 * shared / len(data.dev)
        yield (
            f"{some(shared, 'dev example')} of {counted(len(data.dev))} ({percent:.1f} %) also occur in train: dev "
            "flatters models that memorise them"
        )


def _labels(examples: Sequence[Example], kind: TaskKind) -> Counter[int]:
    found: Counter[int] = Counter()
    for example in examples:
        label = example.label
        if isinstance(label, tuple) and kind.has_labels:
            found.update(place for place, has in enumerate(label) if has)
        elif isinstance(label, tuple):
            found.update(label)
        elif isinstance(label, int):
            found[label] += 1
    return found


def _missing_classes(data: TrainingData) -> Iterator[str]:
    """Warn of labels without an example; `I-X` may be missing, because every span may be one word long."""
    names = data.task.labels
    for split, examples in (("train", data.train), ("dev", data.dev)):
        found = _labels(examples, data.task.of_kind)
        missing = [name for number, name in enumerate(names) if not found[number] and not name.startswith("I-")]
        if missing:
            shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            yield f"{split} has no example of {shown}"


def _small_dev(data: TrainingData) -> Iterator[str]:
    """Warn if two settings' difference on the same examples has a wide interval (McNemar; rough for other metrics)."""
    count = max(1, len(data.dev))
    points = 100 * NORMAL_95 * math.sqrt(USUAL_DISAGREEMENT / count)
    if points > WIDEST_POINTS:
        yield (
            f"dev has {some(len(data.dev), 'example')}: a difference of less than about {points:.0f} points between "
            "settings may be chance"
        )
