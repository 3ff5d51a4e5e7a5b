"""Checks of a task's train and dev split that bear on what a comparison may conclude; test is never read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from meltpoint.tasks.core.counts import counted, some
from meltpoint.tasks.core.kind import TaskKind
from meltpoint.tasks.core.task import Example, TrainingData

WIDEST_POINTS = 5.0
"""A dev split that tells two settings apart less exactly than this is named: fewer than 154 examples."""
USUAL_DISAGREEMENT = 0.1
"""The share of examples on which two settings of one cell disagree; theirs is a paired comparison."""
LEAST_SHARED = 0.01
"""A share of dev that stands in train is named from here on; a smaller one moves a score by less than a point."""
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
            f"{some(shared, 'dev example')} of {counted(len(data.dev))} ({percent:.1f} %) stand in train too: dev "
            "flatters what remembers them"
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
    """Of labelling, `I-X` may be missing where no span has two words; `O` and `B-X` may not."""
    names = data.task.labels
    for split, examples in (("train", data.train), ("dev", data.dev)):
        found = _labels(examples, data.task.of_kind)
        missing = [name for number, name in enumerate(names) if not found[number] and not name.startswith("I-")]
        if missing:
            shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            yield f"{split} has no example of {shown}"


def _small_dev(data: TrainingData) -> Iterator[str]:
    """The interval of a difference of two settings on the same examples (McNemar); other metrics: a rough figure."""
    count = max(1, len(data.dev))
    points = 100 * NORMAL_95 * math.sqrt(USUAL_DISAGREEMENT / count)
    if points > WIDEST_POINTS:
        yield (
            f"dev has {some(len(data.dev), 'example')}: settings that differ there by less than about "
            f"{points:.0f} points are chosen by chance"
        )
