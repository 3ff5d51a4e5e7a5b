"""QQP: do two questions of Quora ask the same? (Iyer, Dandekar & Csernai 2017), with GLUE's split.

Two defects of GLUE's files are repaired: a question with a line break continues on the next line, and two training
pairs have an empty question; such pairs are dropped from train and dev. If only a sample of Quora's release exists
(`sample.tsv`), the sample is read; its splits follow the pairs' ids, not GLUE's split.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import Record, examples_of, read_table
from meltpoint.tasks.core.sources import HubRow, text_row
from meltpoint.tasks.core.task import SPLITS, Example, Split, Task, glue

LABELS = ("not_duplicate", "duplicate")

TEXTS = ("question1", "question2")

SAMPLE = "sample.tsv"
SAMPLE_DIGITS: dict[str, Split] = {"8": "dev", "9": "test"}
"""Last digit of a pair's id → its split in the sample; the other eight are train."""


def _read(folder: Path, name: str) -> list[Example]:
    records = read_table(folder / name, ["id", *TEXTS, "is_duplicate"], header=True, broken_rows=True)
    return [
        Example(record.cell("id"), pair, label=record.label("is_duplicate", ("0", "1")))
        for record in records
        if all(pair := (record.cell("question1").strip(" "), record.cell("question2").strip(" ")))
    ]


def _read_unlabelled(folder: Path) -> list[Example]:
    records = read_table(folder / "test.tsv", ["id", *TEXTS], header=True, broken_rows=True)
    return examples_of(records, TEXTS, id=("id",))


def _read_sample(folder: Path, split: Split) -> list[Example]:
    # Some characters of the sample are truncated; they become U+FFFD.
    columns = ["label", *TEXTS, "id"]
    records = read_table(folder / SAMPLE, columns, header=False, damaged=True)
    chosen = (record for record in records if SAMPLE_DIGITS.get(_last_digit(record), "train") == split)
    return examples_of(chosen, TEXTS, lambda record: record.label("label", ("0", "1")), id=("id",))


def _last_digit(record: Record) -> str:
    pair = record.cell("id")
    if not (pair.isascii() and pair.isdigit()):
        raise record.problem("id", f"'{pair}' is not a number. Restore the pair's id.")
    return pair[-1]


def _hub_row(row: HubRow, position: int, names: tuple[str, ...]) -> Example | None:
    example = text_row(row, position, names, texts=TEXTS, labels=LABELS, id_column="idx")
    return example if all(example.texts) or example.label is None else None


TASK = Task(
    name="qqp",
    kind="pair_classification",
    metric="accuracy",
    beside=("f1",),  # GLUE reports both
    folder="qqp",
    readers={
        "train": partial(_read, name="train.tsv"),
        "dev": partial(_read, name="dev.tsv"),
        "test": _read_unlabelled,
    },
    files={"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
    labels=LABELS,
    hub=glue("qqp", _hub_row),
    test_labels="hidden",
    description="do two questions of Quora ask the same? GLUE hides the test labels",
)

TASK = replace(
    TASK,
    sample=replace(
        TASK,
        readers={split: partial(_read_sample, split=split) for split in SPLITS},
        files=dict.fromkeys(SPLITS, (SAMPLE,)),
        hub=None,
        test_labels="public",
        notes=(f"{SAMPLE}, not GLUE's split: dev has the pairs whose id ends in 8, test the pairs whose id ends in 9",),
    ),
)
