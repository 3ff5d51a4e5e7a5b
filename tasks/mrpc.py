"""MRPC: do two news sentences say the same? (Dolan & Brockett 2005), with GLUE's split of the original training file.

GLUE's training file is the original without the pairs of GLUE's dev, in the original order; either file is read.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import examples_of, first_present, read_table
from meltpoint.tasks.core.sources import text_row
from meltpoint.tasks.core.task import Example, Task, glue

LABELS = ("not_equivalent", "equivalent")

TRAIN = "glue/train.tsv|msr_paraphrase_train.txt"
DEV, TEST = "glue/dev.tsv", "msr_paraphrase_test.txt"


def _read(folder: Path, name: str) -> list[Example]:
    ids, texts = ("#1 ID", "#2 ID"), ("#1 String", "#2 String")
    records = read_table(first_present(folder, name), ["Quality", *ids, *texts], header=True)
    return examples_of(records, texts, lambda record: record.label("Quality", ("0", "1")), id=ids)


def _train(folder: Path) -> list[Example]:
    dev = {example.id for example in _read(folder, DEV)}
    return [example for example in _read(folder, TRAIN) if example.id not in dev]


TASK = Task(
    name="mrpc",
    kind="pair_classification",
    metric="accuracy",
    beside=("f1",),  # GLUE reports both
    folder="mrpc",
    readers={"train": _train, "dev": partial(_read, name=DEV), "test": partial(_read, name=TEST)},
    files={"train": (TRAIN, DEV), "dev": (DEV,), "test": (TEST,)},
    labels=LABELS,
    # The only GLUE test with its labels.
    hub=glue("mrpc", partial(text_row, texts=("sentence1", "sentence2"), labels=LABELS, id_column="idx")),
    test_examples=1725,
    description="do two news sentences say the same? GLUE's split",
)
