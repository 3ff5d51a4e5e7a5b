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
DEV = "glue/dev.tsv"


def _read(path: Path) -> list[Example]:
    records = read_table(path, ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], header=True)
    texts = ("#1 String", "#2 String")
    return examples_of(records, texts, lambda record: record.label("Quality", ("0", "1")), id=("#1 ID", "#2 ID"))


def _train(folder: Path) -> list[Example]:
    examples = _read(first_present(folder, TRAIN))
    dev = {example.id for example in _dev(folder)}
    return [example for example in examples if example.id not in dev]


def _dev(folder: Path) -> list[Example]:
    return _read(folder / DEV)


def _test(folder: Path) -> list[Example]:
    return _read(folder / "msr_paraphrase_test.txt")


TASK = Task(
    name="mrpc",
    kind="pair_classification",
    metric="accuracy",
    beside=("f1",),  # GLUE reports both
    folder="mrpc",
    readers={"train": _train, "dev": _dev, "test": _test},
    files={"train": (TRAIN, DEV), "dev": (DEV,), "test": ("msr_paraphrase_test.txt",)},
    labels=LABELS,
    # The only GLUE test with its labels.
    hub=glue("mrpc", partial(text_row, texts=("sentence1", "sentence2"), labels=LABELS, id_column="idx")),
    test_examples=1725,
    description="do two news sentences say the same? GLUE's split",
)
