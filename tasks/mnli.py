"""MultiNLI (Williams et al. 2018), scored on matched dev; only GLUE's server has the labels of matched test.

`mnli` is the whole dataset; `mnli:fiction` is one of its five genres, trained and scored on that genre alone, as in
table 6 of Peters, Ruder & Smith 2019. A genre has no test split, since the server scores all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.readers import examples_of, first_present, read_table
from meltpoint.tasks.core.sources import HubRow, text_row
from meltpoint.tasks.core.task import Example, HubSource, Split, Task, glue

LABELS = ("entailment", "neutral", "contradiction")

GENRES = ("fiction", "government", "slate", "telephone", "travel")
"""The genres of the training data; matched dev has the same."""

TEXTS = ("sentence1", "sentence2")

SPLIT_FILES: dict[Split, str] = {"train": "train.tsv|train_subset.tsv", "dev": "dev_matched.tsv"}


def _read(folder: Path, name: str, genres: Sequence[str] = ()) -> list[Example]:
    path = first_present(folder, name)
    records = read_table(path, ["genre", "gold_label", "sentence1", "sentence2"], header=True)
    # The text of two hypotheses is " n/a"; they are kept.
    every = examples_of(records, TEXTS, lambda record: record.label("gold_label", LABELS), group="genre")
    examples = [example for example in every if not genres or example.group in genres]
    if not examples:
        raise ValueError(f"{path} has no example of {', '.join(genres)}; put the original file there.")
    return examples


def _read_unlabelled(folder: Path) -> list[Example]:
    records = read_table(folder / "test_matched.tsv", ["index", "genre", *TEXTS], header=True)
    return examples_of(records, TEXTS, id=("index",), group="genre")


_ROW = partial(text_row, texts=("premise", "hypothesis"), labels=LABELS, id_column="pairID", group="genre")

TASK = Task(
    name="mnli",
    kind="pair_classification",
    metric="accuracy",
    folder="mnli",
    readers={
        **{split: partial(_read, name=name) for split, name in SPLIT_FILES.items()},
        "test": _read_unlabelled,
    },
    files={**{split: (name,) for split, name in SPLIT_FILES.items()}, "test": ("test_matched.tsv",)},
    labels=LABELS,
    # The authors' copy has the genres, which GLUE's lacks; GLUE's has the test sentences.
    hub=HubSource(
        id="nyu-mll/multi_nli",
        revision="da70db2af9d09693783c3320c4249840212ee221",
        config=None,
        splits={"train": "train", "dev": "validation_matched", "test": "test_matched"},
        example=_ROW,
        pattern="data/{split}-*.parquet",
        columns=("pairID", "premise", "hypothesis", "genre", "label"),
        elsewhere={
            "test": glue(
                "mnli",
                partial(text_row, texts=("premise", "hypothesis"), labels=LABELS, id_column="idx"),
                {"test": "test_matched"},
            )
        },
    ),
    test_labels="hidden",
    description="does a sentence follow from another? five genres, or some: mnli:fiction; GLUE hides the test labels",
)  # fmt: skip


def variant(chosen: Sequence[str]) -> Task:
    """The task of some of the genres; their order on the command line does not matter.

    Raises:
        ValueError: an unknown genre (close matches are listed), or a genre named twice.
    """
    registry.check_parts("mnli", chosen, GENRES, "genre")
    genres = tuple(name for name in GENRES if name in chosen)
    assert TASK.hub is not None
    hub = replace(
        TASK.hub, splits={"train": "train", "dev": "validation_matched"}, example=partial(_row_of, genres=genres),
        elsewhere={},
    )  # fmt: skip
    readers = {split: partial(_read, name=name, genres=genres) for split, name in SPLIT_FILES.items()}
    files = {split: TASK.files[split] for split in SPLIT_FILES}
    return replace(TASK, name=f"mnli:{'+'.join(genres)}", readers=readers, files=files, hub=hub)


def _row_of(row: HubRow, position: int, names: tuple[str, ...], *, genres: Sequence[str]) -> Example | None:
    return _ROW(row, position, names) if row["genre"] in genres else None
