"""MultiNLI (Williams et al. 2018), scored on matched dev; only GLUE's server has the matched test's labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.hub import text_row
from meltpoint.tasks.core.readers import first_present, read_table
from meltpoint.tasks.core.task import Example, HubSource, Task

LABELS = ("entailment", "neutral", "contradiction")

TRAIN = "train.tsv|train_subset.tsv"


def _read(folder: Path, name: str) -> list[Example]:
    columns = ["genre", "gold_label", "sentence1", "sentence2"]
    records = read_table(first_present(folder, name), columns, header=True)
    ids = {label: position for position, label in enumerate(LABELS)}
    return [
        Example(
            id=str(position),
            # Two hypotheses are the text " n/a": a sentence like any other.
            texts=(record.text("sentence1"), record.text("sentence2")),
            label=record.label("gold_label", ids),
            group=record.cell("genre"),
        )
        for position, record in enumerate(records)
    ]


def _read_unlabelled(folder: Path) -> list[Example]:
    records = read_table(folder / "test_matched.tsv", ["index", "genre", "sentence1", "sentence2"], header=True)
    return [
        Example(record.cell("index"), (record.text("sentence1"), record.text("sentence2")), group=record.cell("genre"))
        for record in records
    ]


TASK = Task(
    name="mnli",
    kind="pair_classification",
    metric="accuracy",
    folder="mnli",
    readers={
        "train": partial(_read, name=TRAIN),
        "dev": partial(_read, name="dev_matched.tsv"),
        "test": _read_unlabelled,
    },
    files={"train": (TRAIN,), "dev": ("dev_matched.tsv",), "test": ("test_matched.tsv",)},
    labels=LABELS,
    # The authors' copy has the genres, which GLUE's lacks; GLUE's has the test sentences.
    hub=HubSource(
        id="nyu-mll/multi_nli",
        revision="da70db2af9d09693783c3320c4249840212ee221",
        config=None,
        splits={"train": "train", "dev": "validation_matched", "test": "test_matched"},
        example=partial(
            text_row, texts=("premise", "hypothesis"), labels=LABELS, id_column="pairID", group="genre"
        ),
        pattern="data/{split}-*.parquet",
        columns=("pairID", "premise", "hypothesis", "genre", "label"),
        elsewhere={
            "test": HubSource(
                id="nyu-mll/glue",
                revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
                config="mnli",
                splits={"test": "test_matched"},
                example=partial(text_row, texts=("premise", "hypothesis"), labels=LABELS, id_column="idx"),
                pattern="{config}/{split}-*.parquet",
            )
        },
    ),
    test_labels="hidden",
    description="does a sentence follow from another? ten genres; GLUE hides the test labels",
)  # fmt: skip
