"""SICK-R: relatedness of sentences about everyday scenes, 1 to 5 (Marelli et al. 2014)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from meltpoint.tasks import sick_e
from meltpoint.tasks.core.readers import Record

LABEL_RANGE = (1.0, 5.0)


def _relatedness(record: Record) -> float:
    return record.score("relatedness_score", LABEL_RANGE)


TASK = replace(
    sick_e.TASK,
    name="sick_r",
    kind="pair_regression",
    metric="pearson",
    readers={split: partial(sick_e.read_sick, split=split, label=_relatedness) for split in sick_e.FILES},
    labels=(),
    label_range=LABEL_RANGE,
    description="how related are two sentences, 1 to 5? everyday scenes",
)
