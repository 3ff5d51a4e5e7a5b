"""Access to the locked test split.

No other module opens the test split: it is opened once per finalist, after selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from meltpoint.tasks.core.sources import find, read_locked_also, read_locked_split
from meltpoint.tasks.core.splits import carved_test, fingerprint, left_out
from meltpoint.tasks.core.task import DataSpec, Example


@dataclass(frozen=True)
class TestData:
    """A task's test split.

    Attributes:
        examples: the examples; their labels are None where they are hidden.
        labelled: True if every example has a label, so that predictions can be scored locally.
        fingerprint: sha256 (hex, 16 characters) over the task's labels and every example.
        notes: remarks on this split for the result tables ("test = train[-1000:]").
        also: the further test splits by name (`Task.also_test`); their labels are never hidden.
    """

    __test__: ClassVar[bool] = False  # pytest would collect it by its name

    examples: list[Example]
    labelled: bool
    fingerprint: str
    notes: tuple[str, ...] = ()
    also: Mapping[str, list[Example]] = field(default_factory=dict)


def open_test(spec: DataSpec) -> TestData:
    """Open the test split: the task's own, or the part that `test_from` carves off train or dev.

    The caller records the opening. A carved test split never overlaps the result of `load_training_data`.

    Raises:
        ValueError: the task has no test split, the specification closes it, or its file is missing or broken.
    """
    task = find(spec)
    if spec.is_test_closed:
        raise ValueError(f"test of {task.name} stays closed: the sweep's specification says `split: dev`.")
    if spec.test_from or task.test_from:
        examples, notes = carved_test(spec, task)
    else:
        examples = read_locked_split(spec)
        notes = left_out("test", examples)
    labelled = all(example.label is not None for example in examples)
    if not labelled:
        notes.append("test labels hidden")
    also = read_locked_also(spec)
    return TestData(examples, labelled, fingerprint(task, examples, *also.values()), tuple(notes), also)
