"""CoLA: is a sentence acceptable English? (Warstadt et al. 2019). Dev is in-domain and out-of-domain dev together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import examples_of, read_table
from meltpoint.tasks.core.sources import text_row
from meltpoint.tasks.core.task import Example, Task, glue

LABELS = ("unacceptable", "acceptable")


def _read(folder: Path, names: tuple[str, ...]) -> list[Example]:
    return [example for name in names for example in _read_one(folder / f"{name}.tsv")]


def _read_one(path: Path) -> list[Example]:
    records = read_table(path, ["source", "label", "mark", "sentence"], header=False)
    examples = examples_of(records, ("sentence",), lambda record: record.label("label", ("0", "1")))
    return [replace(one, id=f"{path.stem}-{one.id}", group=path.name.rsplit("_", 1)[0]) for one in examples]


def _read_unlabelled(folder: Path) -> list[Example]:
    return examples_of(
        read_table(folder / "test.tsv", ["index", "sentence"], header=True), ("sentence",), id=("index",)
    )


TASK = Task(
    name="cola",
    kind="sentence_classification",
    metric="matthews",
    folder="cola",
    readers={
        "train": partial(_read, names=("in_domain_train",)),
        "dev": partial(_read, names=("in_domain_dev", "out_of_domain_dev")),
        "test": _read_unlabelled,
    },
    files={
        "train": ("in_domain_train.tsv",),
        "dev": ("in_domain_dev.tsv", "out_of_domain_dev.tsv"),
        "test": ("test.tsv",),
    },
    labels=LABELS,
    hub=glue("cola", partial(text_row, texts=("sentence",), labels=LABELS, id_column="idx")),
    test_labels="hidden",
    description="is a sentence acceptable English? GLUE hides the test labels",
)
