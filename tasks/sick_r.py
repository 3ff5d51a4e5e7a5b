"""SICK-R: relatedness of sentences about everyday scenes, 1 to 5 (Marelli et al. 2014)."""

from __future__ import annotations

from functools import partial

from meltpoint.tasks.core.task import Task
from meltpoint.tasks.sick_e import FILES, LABEL_RANGE, PINNED, read_sick

TASK = Task(
    name="sick_r",
    kind="pair_regression",
    metric="pearson",
    folder="sick",
    readers={split: partial(read_sick, split=split, field="relatedness") for split in FILES},
    files=FILES,
    label_range=LABEL_RANGE,
    pinned=PINNED,
    test_examples=4927,
    description="how related are two sentences, 1 to 5? everyday scenes",
)
