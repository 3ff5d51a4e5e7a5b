"""SST-2, trained on every node of the trees that is not neutral (the setting of Peters et al. 2019).

All three splits are read from the trees, which keep their case where `stsa.binary.*` is lower-cased: ELMo and cased
encoders were pretrained on cased text, and an uncased encoder lower-cases by itself. Dev and test are the sentences of
`sst2`, in another order.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.sst import LABELS, read_roots, read_subtrees
from meltpoint.tasks.core.task import Example, Task


def _read(folder: Path) -> list[Example]:
    return read_subtrees(folder / "trees" / "train.txt")


def _roots(folder: Path, name: str) -> list[Example]:
    return read_roots(folder / "trees" / name)


TASK = Task(
    name="sst2_subtrees",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers={"train": _read, "dev": partial(_roots, name="dev.txt"), "test": partial(_roots, name="test.txt")},
    files={"train": ("trees/train.txt",), "dev": ("trees/dev.txt",), "test": ("trees/test.txt",)},
    labels=LABELS,
    tokenised=True,
    description="sentiment of film reviews, trained on 98 794 tree nodes, in their own case; needs --data-dir",
)
