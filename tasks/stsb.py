"""STS-B: how similar are two sentences, 0 to 5? (Cer et al. 2017), with the original's public test scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import read_table
from meltpoint.tasks.core.sources import score_row
from meltpoint.tasks.core.task import Example, HubSource, Split, Task

LABEL_RANGE = (0.0, 5.0)

FILES: dict[Split, str] = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}


def _read(folder: Path, name: str) -> list[Example]:
    columns = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
    # Some rows name the sources of both sentences in two more cells.
    records = read_table(folder / name, columns, header=False, widths=(9,))
    return [
        Example(
            id=f"{record.cell('file')}-{record.cell('year')}-{record.cell('id')}",
            texts=(record.text("sentence1"), record.text("sentence2")),
            label=record.score("score", LABEL_RANGE),
            group=record.cell("genre"),
        )
        for record in records
    ]


TASK = Task(
    name="stsb",
    kind="pair_regression",
    metric="pearson",
    folder="stsb",
    readers={split: partial(_read, name=name) for split, name in FILES.items()},
    files={split: (name,) for split, name in FILES.items()},
    label_range=LABEL_RANGE,
    # GLUE's copy hides the test scores; this one has them, all scores divided by 5.
    hub=HubSource(
        id="sentence-transformers/stsb",
        revision="ab7a5ac0e35aa22088bdcf23e7fd99b220e53308",
        config=None,
        splits={"train": "train", "dev": "validation", "test": "test"},
        example=partial(score_row, texts=("sentence1", "sentence2"), score="score", scale=5.0),
        label_column="score",
        pattern="data/{split}-*.parquet",
    ),
    test_examples=1379,
    description="how similar are two sentences, 0 to 5? news, captions, forums",
)
