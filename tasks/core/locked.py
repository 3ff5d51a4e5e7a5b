"""Access to the locked test split, and GLUE submissions for tests whose labels only the server has.

No other module opens the test split: it is opened once per finalist, after selection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.sources import find, read_locked_also, read_locked_split
from meltpoint.tasks.core.splits import carved_test, fingerprint, left_out
from meltpoint.tasks.core.task import DataSpec, Example, Task


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


FILES: Mapping[str, str] = {
    "cola": "CoLA.tsv", "mnli": "MNLI-m.tsv", "mrpc": "MRPC.tsv", "qnli": "QNLI.tsv", "qqp": "QQP.tsv",
    "rte": "RTE.tsv", "sst2": "SST-2.tsv", "sst2_phrases": "SST-2.tsv", "sst2_subtrees": "SST-2.tsv",
    "stsb": "STS-B.tsv", "wnli": "WNLI.tsv",
}  # fmt: skip
"""Task → the file name that the server expects; also for a user's task with one of these names."""

# The server expects these tasks' labels as names and the others' as numbers.
_LABELS_AS_NAMES = frozenset({"mnli", "qnli", "rte"})


def write_glue_submission(task: Task, predictions: Sequence[Prediction], ids: Sequence[str], folder: Path) -> Path:
    """Write the predictions on GLUE's test split in the server's format: a header, then `index TAB prediction`.

    Args:
        task: a GLUE task.
        predictions: one class id or score for each test example.
        ids: the examples' ids: GLUE's own indices.
        folder: the folder of the file; created if missing.

    Returns:
        the file's path.

    Raises:
        ValueError: not a GLUE task, or ids that are not a permutation of the numbers from 0.
    """
    if task.name not in FILES:
        raise registry.unknown(task.name, "GLUE task", FILES)
    if sorted(ids) != sorted(str(index) for index in range(len(ids))):
        raise ValueError(f"The ids are not GLUE's indices 0 to {len(ids) - 1}; predict on GLUE's own {task.name} test.")
    rows = sorted((int(index), _formatted(task, value)) for index, value in zip(ids, predictions, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILES[task.name]
    lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _formatted(task: Task, value: Prediction) -> str:
    assert isinstance(value, int | float), "GLUE has no sequence labelling"
    if task.label_range is not None:
        low, high = task.label_range
        return f"{min(max(value, low), high):.3f}"
    assert isinstance(value, int)
    return task.labels[value] if task.name in _LABELS_AS_NAMES else str(value)


# `python -m meltpoint.tasks.core.locked`: the check of test splits before a search, in a separate process.


def fault_of(spec: DataSpec) -> str:
    """The first fault of a test split, in one line; "" if it has none."""
    try:
        open_test(spec)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def main() -> None:
    """Read data specifications from standard input, one line of JSON each, and answer each with its `fault_of`.

    Nothing else about a test split leaves the process: no text, no number of examples or labels, no fingerprint.
    """
    for line in sys.stdin:
        print(json.dumps(fault_of(DataSpec(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
