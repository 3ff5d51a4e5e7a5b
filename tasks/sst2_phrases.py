"""SST-2, trained on GLUE's phrases (Wang et al. 2019); dev and test are whole sentences, as in `sst2`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import read_table
from meltpoint.tasks.core.sources import text_row
from meltpoint.tasks.core.task import Example, Task, glue
from meltpoint.tasks.sst2 import DEV_READER, LABELS, PINNED, TEST_READER


def _read(folder: Path) -> list[Example]:
    records = read_table(folder / "glue" / "train.tsv", ["sentence", "label"], header=True)
    ids = {"0": 0, "1": 1}
    return [
        Example(str(position), texts=(record.text("sentence"),), label=record.label("label", ids))
        for position, record in enumerate(records)
    ]


TASK = Task(
    name="sst2_phrases",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers={"train": _read, "dev": DEV_READER, "test": TEST_READER},
    files={"train": ("glue/train.tsv",), "dev": ("stsa.binary.dev",), "test": ("stsa.binary.test",)},
    labels=LABELS,
    hub=glue("sst2", partial(text_row, texts=("sentence",), labels=LABELS, id_column="idx"), {"train": "train"}),
    pinned=PINNED,
    tokenised=True,
    test_examples=1821,
    description="sentiment of film reviews, trained on GLUE's 67 349 phrases",
)
