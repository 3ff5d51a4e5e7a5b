"""CoNLL-2003 named entities in English news (Tjong Kim Sang & De Meulder 2003)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from meltpoint.tasks.core.conll import ConllLayout, read_conll
from meltpoint.tasks.core.sources import tagged_row
from meltpoint.tasks.core.task import Example, HubSource, Split, Task

LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")

FILES: dict[Split, str] = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}

LAYOUT = ConllLayout(word=0, tag=3, width=4, scheme="iob1")


def _read(folder: Path, name: str) -> list[Example]:
    return read_conll(folder / name, LABELS, LAYOUT)


TASK = Task(
    name="conll2003",
    kind="sequence_labelling",
    metric="span_f1",
    folder="conll2003",
    readers={split: partial(_read, name=name) for split, name in FILES.items()},
    files={split: (name,) for split, name in FILES.items()},
    labels=LABELS,
    # The hub's copy has no -DOCSTART- lines, so its examples have no group.
    hub=HubSource(
        id="lhoestq/conll2003",
        revision="19edcb426bfd625c275c17b9a99b2239243f4377",
        config=None,
        pattern="data/{split}-*.parquet",
        splits={"train": "train", "dev": "validation", "test": "test"},
        example=partial(tagged_row, tokens="tokens", tags="ner_tags", labels=LABELS),
        label_column="ner_tags",
        columns=("tokens", "ner_tags"),
    ),
    tokenised=True,
    conll_columns=(LAYOUT.word, LAYOUT.tag),
    test_examples=3453,
    description="named entities in news: PER, ORG, LOC, MISC",
)
