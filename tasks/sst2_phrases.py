"""SST-2, trained on GLUE's phrases (Wang et al. 2019); dev and test are whole sentences, as in `sst2`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from meltpoint.tasks import sst2
from meltpoint.tasks.core.readers import examples_of, read_table
from meltpoint.tasks.core.sources import text_row
from meltpoint.tasks.core.task import Example, glue


def _read(folder: Path) -> list[Example]:
    records = read_table(folder / "glue" / "train.tsv", ["sentence", "label"], header=True)
    return examples_of(records, ("sentence",), lambda record: record.label("label", ("0", "1")))


TASK = replace(
    sst2.TASK,
    name="sst2_phrases",
    readers={**sst2.READERS, "train": _read},
    files={**sst2.TASK.files, "train": ("glue/train.tsv",)},
    hub=glue("sst2", partial(text_row, texts=("sentence",), labels=sst2.LABELS, id_column="idx"), {"train": "train"}),
    description="sentiment of film reviews, trained on GLUE's 67 349 phrases",
)
