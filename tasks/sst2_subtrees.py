"""SST-2, trained on every node of the trees that is not neutral (the setting of Peters et al. 2019)."""

from __future__ import annotations

from pathlib import Path

from meltpoint.tasks.core.sst import LABELS, read_subtrees
from meltpoint.tasks.core.task import Example, Task
from meltpoint.tasks.sst2 import DEV_READER, TEST_READER


def _read(folder: Path) -> list[Example]:
    return read_subtrees(folder / "trees" / "train.txt")


TASK = Task(
    name="sst2_subtrees",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers={"train": _read, "dev": DEV_READER, "test": TEST_READER},
    files={"train": ("trees/train.txt",), "dev": ("stsa.binary.dev",), "test": ("stsa.binary.test",)},
    labels=LABELS,
    description="sentiment of film reviews, trained on 98 794 tree nodes; needs --data-dir",
)
