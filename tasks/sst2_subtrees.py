"""SST-2, trained on every node of the trees that is not neutral (the setting of Peters et al. 2019).

All three splits are read from the trees, which keep their case, unlike `stsa.binary.*`: ELMo and cased encoders were
pretrained on cased text, and an uncased encoder lower-cases its input itself. Dev and test are the sentences of `sst2`,
in another order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from meltpoint.tasks import sst2
from meltpoint.tasks.core.task import Example, PinnedFiles


def _read(folder: Path) -> list[Example]:
    return sst2.read_subtrees(folder / "trees" / "train.txt")


def _roots(folder: Path, name: str) -> list[Example]:
    return sst2.read_roots(folder / "trees" / name)


# The treebank's own files. In that repository train.txt is cut off after 1 455 trees; the copy next to it is complete.
PINNED = PinnedFiles(
    url="https://raw.githubusercontent.com/iron-fe/rntn_on_Spark/c42e0605cdc05ea9526ae4d93ade1d6ced1a562e",
    sha256={
        "trees/train.txt": "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
        "trees/dev.txt": "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
        "trees/test.txt": "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
    },
    renamed={"trees/train.txt": "trees/train%E5%89%AF%E6%9C%AC.txt"},
)

TASK = replace(
    sst2.TASK,
    name="sst2_subtrees",
    readers={"train": _read, "dev": partial(_roots, name="dev.txt"), "test": partial(_roots, name="test.txt")},
    files={"train": ("trees/train.txt",), "dev": ("trees/dev.txt",), "test": ("trees/test.txt",)},
    pinned=PINNED,
    description="sentiment of film reviews, trained on 98 794 tree nodes, in their own case",
)
