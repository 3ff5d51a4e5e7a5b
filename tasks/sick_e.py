"""SICK-E: entailment between sentences about everyday scenes (Marelli et al. 2014)."""

from __future__ import annotations

from functools import partial

from meltpoint.tasks.core.sick import FILES, LABELS, PINNED, read_sick
from meltpoint.tasks.core.task import Task

TASK = Task(
    name="sick_e",
    kind="pair_classification",
    metric="accuracy",
    folder="sick",
    readers={
        "train": partial(read_sick, split="train", field="entailment"),
        "dev": partial(read_sick, split="dev", field="entailment"),
        "test": partial(read_sick, split="test", field="entailment"),
    },
    files=FILES,
    labels=LABELS,
    pinned=PINNED,
    test_examples=4927,
    description="does a sentence follow from another? everyday scenes",
)
