"""SICK-E: entailment between sentences about everyday scenes (Marelli et al. 2014).

The reader of SICK's files also serves SICK-R, relatedness.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import Record, examples_of, read_table
from meltpoint.tasks.core.task import Example, Label, PinnedFiles, Split, Task

LABELS = ("entailment", "neutral", "contradiction")
WRITTEN = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
"""The labels as the files spell them."""

FILES: dict[Split, tuple[str, ...]] = {
    "train": ("SICK_train.txt",),
    "dev": ("SICK_trial.txt",),
    "test": ("SICK_test_annotated.txt",),
}

PINNED = PinnedFiles(
    url="https://raw.githubusercontent.com/alvations/stasis/1fc82d8a9bc988b7d2ddedc8fc61b71ec2e69c4d/SICK-data",
    sha256={
        "SICK_train.txt": "266cf8047149bd1d68138dd30439f3122bff30069740ac6705bb6197d9f1b48e",
        "SICK_trial.txt": "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
        "SICK_test_annotated.txt": "2b8aa806658d6fc23c6824c83776c2d4fee7556000817b5ec0f982861413b7d0",
    },
)
"""The 4 500, 500 and 4 927 pairs of SemEval-2014's task 1. The hub's RobZamp/sick has 4 439, 495 and 4 906."""

_COLUMNS = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]


def read_sick(folder: Path, split: Split, label: Callable[[Record], Label]) -> list[Example]:
    """Read a split of SICK, labelled with one of SICK's two fields."""
    records = read_table(folder / FILES[split][0], _COLUMNS, header=True)
    return examples_of(records, ("sentence_A", "sentence_B"), label, id=("pair_ID",))


def _entailment(record: Record) -> Label:
    return record.label("entailment_judgment", WRITTEN)


TASK = Task(
    name="sick_e",
    kind="pair_classification",
    metric="accuracy",
    folder="sick",
    readers={split: partial(read_sick, split=split, label=_entailment) for split in FILES},
    files=FILES,
    labels=LABELS,
    pinned=PINNED,
    test_examples=4927,
    description="does a sentence follow from another? everyday scenes",
)
