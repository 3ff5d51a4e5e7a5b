r"""Yahoo Answers: the topic of a question with its best answer (Zhang, Zhao & LeCun 2015), ten classes or a subset.

`yahoo` has all ten; `yahoo:society_culture+science_mathematics` only those two, the setting of arXiv 1907.05338. The
text is the question's title, its content and the best answer, joined with spaces; the two characters `\n`, which
represent a line break in the release, become one.

The release has no dev split: every 139th row of `train.csv` is dev, 10 071 of 1 400 000. If only the sample of two
classes exists, every 11th row of its training file is dev. Both numbers are prime, so that dev has the class
proportions of train both in a file sorted by class and in one that alternates the classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.readers import Record, read_table
from meltpoint.tasks.core.sources import HubRow
from meltpoint.tasks.core.task import SPLITS, Example, HubSource, Split, Task

# In the order of the release's `classes.txt`.
CLASSES = (
    "society_culture", "science_mathematics", "health", "education_reference", "computers_internet", "sports",
    "business_finance", "entertainment_music", "family_relationships", "politics_government",
)  # fmt: skip

NUMBERS = tuple(str(place + 1) for place in range(len(CLASSES)))


def _original(record: Record) -> tuple[str, str]:
    place = record.label("class", NUMBERS)
    text = _joined(record.cell(column) for column in ("title", "content", "answer"))
    if not text:
        raise record.problem("title", "title, content and answer are empty. Fill one in or remove the row.")
    return CLASSES[place], text


def _sampled(record: Record) -> tuple[str, str]:
    return CLASSES[record.label("label", CLASSES)], record.text("text")


def _joined(parts: Iterable[str]) -> str:
    return " ".join(part for part in (part.strip(" ") for part in parts) if part)


def _example(position: int, name: str, text: str, labels: Sequence[str]) -> Example | None:
    if name not in labels:
        return None
    return Example(str(position), (text.replace("\\n", "\n"),), label=labels.index(name))


def _is_of(split: Split, position: int, step: int) -> bool:
    """True if a row belongs to a split: dev is `train[step - 1::step]`, test is a separate file."""
    return split == "test" or (position % step == step - 1) == (split == "dev")


@dataclass(frozen=True)
class Release:
    """File layout of a release.

    Attributes:
        train, test: the file names; dev is a part of train.
        columns: the column names, in order.
        parse: row → (class, text).
        dev_step: every `dev_step`-th row of the training file is dev.
    """

    train: str
    test: str
    columns: tuple[str, ...]
    parse: Callable[[Record], tuple[str, str]]
    dev_step: int


ORIGINAL = Release("train.csv", "test.csv", ("class", "title", "content", "answer"), _original, 139)
SAMPLE = Release("sample_2class_train.csv", "sample_2class_test.csv", ("text", "label"), _sampled, 11)


def _read(folder: Path, release: Release, labels: Sequence[str], split: Split) -> list[Example]:
    path = folder / (release.test if split == "test" else release.train)
    seen, examples = set(), []
    records = read_table(path, release.columns, header=False, separator=",", quoted=True)
    for position, record in enumerate(records):
        name, text = release.parse(record)
        seen.add(name)
        example = _example(position, name, text, labels)
        if example is not None and _is_of(split, position, release.dev_step):
            examples.append(example)
    missing = [name for name in labels if name not in seen]
    if missing:
        available = "+".join(name for name in CLASSES if name in seen)
        remedy = f"Name classes that it has (yahoo:{available}), or put the original train.csv and test.csv there."
        raise ValueError(f"{path} has no example of {', '.join(missing)}. {remedy}")
    return examples


def _hub_row(
    row: HubRow, position: int, names: tuple[str, ...], *, labels: Sequence[str], split: Split
) -> Example | None:  # fmt: skip
    if not _is_of(split, position, ORIGINAL.dev_step):
        return None
    number = row["topic"]
    assert isinstance(number, int), "a class column holds numbers"
    # The hub writes "Society & Culture".
    name = re.sub(r"[^a-z]+", "_", names[number].lower()) if names else CLASSES[number]
    if name not in CLASSES:
        raise ValueError(f"{registry.unknown(name, 'class of yahoo', CLASSES)} Check the hub's pinned revision.")
    text = _joined(str(row[column] or "") for column in ("question_title", "question_content", "best_answer"))
    return _example(position, name, text, labels)


def _hub(labels: Sequence[str]) -> HubSource:
    def of(split: Split, elsewhere: dict[Split, HubSource]) -> HubSource:
        return HubSource(
            id="community-datasets/yahoo_answers_topics",
            revision="6652a1e7c94f7260a0bfd0c9092dd48e2d536ea1",
            config="yahoo_answers_topics",
            splits={"train": "train", "dev": "train", "test": "test"},
            example=partial(_hub_row, labels=labels, split=split),
            label_column="topic",
            pattern="{config}/{split}-*.parquet",
            columns=("topic", "question_title", "question_content", "best_answer"),
            elsewhere=elsewhere,
        )

    return of("train", {"dev": of("dev", {}), "test": of("test", {})})


def _task(labels: tuple[str, ...], release: Release = ORIGINAL) -> Task:
    """The task with a subset of the classes, in the order of `CLASSES`."""
    is_original = release is ORIGINAL
    return Task(
        name="yahoo" if labels == CLASSES else f"yahoo:{'+'.join(labels)}",
        kind="sentence_classification",
        metric="accuracy",
        beside=("f1" if len(labels) == 2 else "macro_f1",),  # arXiv 1907.05338, experiment B, names both
        folder="yahoo",
        readers={split: partial(_read, release=release, labels=labels, split=split) for split in SPLITS},
        files={"train": (release.train,), "dev": (release.train,), "test": (release.test,)},
        labels=labels,
        hub=_hub(labels) if is_original else None,
        description="the topic of a question and its answer; ten classes, or some: yahoo:sports+health",
        notes=(f"dev = every {release.dev_step}th row of {release.train}",),
        sample=_task(labels, SAMPLE) if is_original else None,
    )


def variant(chosen: Sequence[str]) -> Task:
    """The task with some of the classes; their order on the command line does not matter.

    Raises:
        ValueError: an unknown class (close matches are listed), a class named twice, or fewer than two classes.
    """
    registry.check_parts("yahoo", chosen, CLASSES, "class")
    if len(chosen) < 2:
        raise ValueError(f"yahoo:{chosen[0]} is one class; name two or more, such as yahoo:sports+health.")
    return _task(tuple(name for name in CLASSES if name in chosen))


TASK = _task(CLASSES)
