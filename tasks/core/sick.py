"""The files of SICK (Marelli et al. 2014), which the tasks entailment and relatedness share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from meltpoint.tasks.core.hub import HubRow, score_row, text_row
from meltpoint.tasks.core.readers import read_table
from meltpoint.tasks.core.task import Example, HubSource, Split

LABELS = ("entailment", "neutral", "contradiction")

LABEL_RANGE = (1.0, 5.0)

FILES: dict[Split, tuple[str, ...]] = {
    "train": ("SICK_train.txt",),
    "dev": ("SICK_trial.txt",),
    "test": ("SICK_test_annotated.txt",),
}

_COLUMNS = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]

Field = Literal["entailment", "relatedness"]


def read_sick(folder: Path, split: Split, field: Field) -> list[Example]:
    """Read a split of SICK, labelled with one of its two fields."""
    ids = {label.upper(): position for position, label in enumerate(LABELS)}
    return [
        Example(
            id=record.cell("pair_ID"),
            texts=(record.text("sentence_A"), record.text("sentence_B")),
            label=record.label("entailment_judgment", ids)
            if field == "entailment"
            else record.score("relatedness_score", LABEL_RANGE),
        )
        for record in read_table(folder / FILES[split][0], _COLUMNS, header=True)
    ]


def _hub_row(row: HubRow, position: int, names: tuple[str, ...], field: Field) -> Example:
    texts = ("sentence_A", "sentence_B")
    if field == "entailment":
        return text_row(row, position, names, texts=texts, labels=LABELS, id_column="id")
    return score_row(row, position, names, texts=texts, score="relatedness_score", id_column="id")


def hub(field: Field) -> HubSource:
    """SICK on the hub: 4 439 / 495 / 4 906 pairs, slightly fewer than the original's 4 500 / 500 / 4 927."""
    return HubSource(
        id="RobZamp/sick",
        revision="refs/convert/parquet",
        config="default",
        splits={"train": "train", "dev": "validation", "test": "test"},
        example=partial(_hub_row, field=field),
        columns=("id", "sentence_A", "sentence_B", "label", "relatedness_score"),
        rows={"train": 4439, "dev": 495, "test": 4906},
        note="the hub's copy, 4 439 / 495 / 4 906 of the original's 4 500 / 500 / 4 927 pairs",
    )
