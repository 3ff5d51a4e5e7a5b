"""STS-B: how similar are two sentences, 0 to 5? (Cer et al. 2017), with the original's public test scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import examples_of, read_table
from meltpoint.tasks.core.sources import text_row
from meltpoint.tasks.core.task import Example, HubSource, Split, Task

LABEL_RANGE = (0.0, 5.0)

FILES: dict[Split, str] = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}


def _read(folder: Path, name: str) -> list[Example]:
    columns = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
    # Some rows name the sources of both sentences in two more cells.
    records = read_table(folder / name, columns, header=False, widths=(9,))
    texts, id = ("sentence1", "sentence2"), ("file", "year", "id")
    return examples_of(records, texts, lambda record: record.score("score", LABEL_RANGE), id=id, group="genre")


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
        example=partial(text_row, texts=("sentence1", "sentence2"), label="score", scale=5.0),
        label_column="score",
        pattern="data/{split}-*.parquet",
    ),
    test_examples=1379,
    description="how similar are two sentences, 0 to 5? news, captions, forums",
)
