"""SST-2, trained on whole sentences: the Stanford Sentiment Treebank's two classes (Socher et al. 2013).

The treebank's escapes (`-lrb-`, `\\/`, `\\*`) are undone, so that the three SST-2 tasks share one dev and one test
split; dev equals GLUE's dev word for word.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.hub import HubRow, text_row
from meltpoint.tasks.core.sst import LABELS, plain, read_sentences
from meltpoint.tasks.core.task import Example, HubSource, Task


def _read(folder: Path, name: str) -> list[Example]:
    return read_sentences(folder / name)


def _hub_row(row: HubRow, position: int, names: tuple[str, ...]) -> Example:
    unescaped = {**row, "text": plain(str(row["text"]))}
    return text_row(unescaped, position, names, texts=("text",), labels=LABELS)


DEV_READER = partial(_read, name="stsa.binary.dev")
TEST_READER = partial(_read, name="stsa.binary.test")

# The copy whose test labels are public: GLUE's and stanfordnlp/sst2's are -1.
HUB = HubSource(
    id="SetFit/sst2",
    revision="refs/convert/parquet",
    rows={"train": 6920, "dev": 872, "test": 1821},
    config="default",
    splits={"train": "train", "dev": "validation", "test": "test"},
    example=_hub_row,
    columns=("text", "label"),
)

TASK = Task(
    name="sst2",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers={"train": partial(_read, name="stsa.binary.train"), "dev": DEV_READER, "test": TEST_READER},
    files={"train": ("stsa.binary.train",), "dev": ("stsa.binary.dev",), "test": ("stsa.binary.test",)},
    labels=LABELS,
    hub=HUB,
    tokenised=True,
    description="sentiment of film reviews, trained on the 6 920 sentences",
)
